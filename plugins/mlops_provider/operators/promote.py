from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops_provider.assets import model_asset
from mlops_provider.deployment import Deployment
from mlops_provider.links import ModelLink, model_url
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.champion import skip_unless_champion
from mlops_provider.promote_spec import Promote
from mlops_provider.refs import ModelVersionRef, Ref

if TYPE_CHECKING:
    from airflow.sdk import Context


class PromoteOperator(StepOperator):
    """
    Put a model version into production, if the champion is still the one that it was judged against.

    Settings: :class:`mlops_provider.promote_spec.Promote`. Returns the ModelVersionRef and updates the asset
    ``model://<registered model>``. Cleared after the version was taken back, it is skipped: it does not promote again.

    :param version: the ModelVersionRef (templated)
    :param registered_model: its name, for the asset
    """

    step = "promote"
    section = Promote
    operator_extra_links = (ModelLink(),)

    def __init__(self, *, version: XComArg | Mapping[str, Any] | str, registered_model: str, **kwargs: Any) -> None:
        super().__init__(upstream=version, **kwargs)
        self.model = model_asset(registered_model)
        self.outlets = [*self.outlets, self.model]

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return move("promote", approval=settings["approval"] is not None)

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        version = ref.ancestor(ModelVersionRef)
        self.links[ModelLink.name] = model_url(deployment.tracking_url, version)
        skip_unless_champion(version, deployment)
        context["outlet_events"][self.model].extra = {"ref": ref.to_wire()}


def move(
    action: str, *, why: str = "", approver: str | None = None, approval: bool = False, request: str | None = None
) -> dict[str, Any]:
    """What the promote step is told, see ``training.steps.promote.PromoteConfig``."""
    return {"action": action, "why": why, "approver": approver, "approval": approval, "request": request}
