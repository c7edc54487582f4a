from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowSkipException

from mlops_provider.assets import model_asset
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepRetryableError
from mlops_provider.links import ModelLink, model_url
from mlops_provider.operators.base import StepOperator
from mlops_provider.promote_spec import Promote
from mlops_provider.refs import ModelVersionRef, Ref
from mlops_provider.registry import RegistryError, champion_version

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
        champion = champion_now(deployment.tracking_uri, version.name)
        if champion != version.version:
            # The asset's listeners would serve what is not in production any more.
            raise AirflowSkipException(
                f"version {version.version} of {version.name} was put into production and taken back since, by version "
                f"{champion}; it is not promoted again. Who did it, and why: mlops models history {version.name}"
            )
        context["outlet_events"][self.model].extra = {"ref": ref.to_wire()}


def champion_now(tracking_uri: str, model: str) -> str | None:
    """
    The version in production.

    :raises StepRetryableError: where the registry cannot be reached
    """
    try:
        return asyncio.run(champion_version(tracking_uri, model))
    except RegistryError as error:
        raise StepRetryableError(f"the model in production cannot be looked up: {error}") from error


def move(
    action: str, *, why: str = "", approver: str | None = None, approval: bool = False, request: str | None = None
) -> dict[str, Any]:
    """What the promote step is told, see ``training.steps.promote.PromoteConfig``."""
    return {"action": action, "why": why, "approver": approver, "approval": approval, "request": request}
