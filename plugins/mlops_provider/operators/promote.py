from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops.contract.refs import ModelVersionRef, Ref
from mlops.contract.sections.release import Promote
from mlops.contract.sections.steps import PromoteStep
from mlops_provider.assets import event_extra, model_asset
from mlops_provider.deployment import Deployment
from mlops_provider.links import ModelLink, model_url
from mlops_provider.operators.champion import why_not_champion
from mlops_provider.operators.keys import trusted_keys
from mlops_provider.operators.transition import TransitionOperator
from mlops_provider.telemetry import tell_production

if TYPE_CHECKING:
    from airflow.sdk import Context


class PromoteOperator(TransitionOperator):
    """
    Put a model version into production, if the champion is still the one that it was judged against.

    Settings: :class:`mlops.contract.sections.release.Promote`. Returns the ModelVersionRef and updates the asset
    ``model://<registered model>``. Cleared after the version was taken back, it is skipped: it does not promote again.

    :param version: the ModelVersionRef (templated)
    :param registered_model: its name, for the asset
    """

    step = "promote"
    section = Promote
    success = "promoted"
    operator_extra_links = (ModelLink(),)

    def __init__(self, *, version: XComArg | Mapping[str, Any] | str, registered_model: str, **kwargs: Any) -> None:
        self.registered_model = registered_model
        super().__init__(upstream=version, **kwargs)
        self.model = model_asset(registered_model)
        self.outlets = [*self.outlets, self.model]

    def approvers(self) -> list[str]:
        approval = self.settings["approval"]
        return [] if approval is None else list(approval["approvers"])

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        approval, canary = settings["approval"], settings["canary"]
        if approval is not None:
            trusted_keys(self._deployment())  # there must be some
        return move(
            "promote",
            approvals=0 if approval is None else approval["minimum"],
            canary_minutes=None if canary is None else canary["minutes"],
        )

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        version = ref.ancestor(ModelVersionRef)
        self.links[ModelLink.name] = model_url(deployment, version)
        if (why := why_not_champion(version, deployment)) is not None:
            # Cleared: what people decided since is no news to them.
            raise self.skipped(why, context, is_told=False)
        tell_production(version)
        self.say(f"Version {version.version} of {version.name} is in production. {version.parent.reason}", context)
        context["outlet_events"][self.model].extra = event_extra(ref)


def move(action: str, **settings: Any) -> dict[str, Any]:
    """What the step is told beside its keys, see :class:`mlops.contract.sections.steps.PromoteStep`."""
    asked = PromoteStep.model_validate({"action": action, **settings})
    # Not among the settings where no canary is asked for: what earlier releases promoted keeps its run key.
    left_out = {"keys"} if asked.canary_minutes is not None else {"keys", "canary_minutes"}
    return asked.model_dump(mode="json", exclude=left_out)
