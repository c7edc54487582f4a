from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops.contract.extensions import recipe_folders
from mlops.contract.refs import CheckpointRef, Ref
from mlops.contract.sections.evaluate import Evaluate
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.links import ReportLink, TrackingLink, run_url
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.champion import champion_of
from mlops_provider.registry import NotOursError

if TYPE_CHECKING:
    from airflow.sdk import Context


class EvaluateOperator(StepOperator):
    """
    Measure a checkpoint and the production model on the same held-out rows and decide whether it may replace it.

    Settings: :class:`mlops.contract.sections.evaluate.Evaluate`. Returns a ReportRef.

    :param checkpoint: the CheckpointRef of the candidate (templated)
    """

    step = "evaluate"
    section = Evaluate
    operator_extra_links = (ReportLink(), TrackingLink())

    def __init__(self, *, checkpoint: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=checkpoint, **kwargs)

    def baselines(self, deployment: Deployment) -> dict[str, Ref]:
        model = self.settings["registered_model"]
        try:
            champion = champion_of(model, deployment)
        except NotOursError as error:
            raise StepFailedError(
                f"{error}, and it is in production, so that it cannot be scored. Put a version of this pipeline in its "
                f"place: mlops models promote {model} VERSION --why ..."
            ) from error
        return {} if champion is None else {"champion": champion}

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        return recipe_folders(settings)

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        run = ref.ancestor(CheckpointRef).tracking_run
        self.links[TrackingLink.name] = run_url(deployment, run)
