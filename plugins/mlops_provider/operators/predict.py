from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops.contract.refs import ModelVersionRef, Ref
from mlops.contract.sections.predict import Predict
from mlops_provider.assets import event_extra, predictions_asset
from mlops_provider.deployment import Deployment
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.champion import version_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class PredictOperator(StepOperator):
    """
    Ask a registered model about the rows of a snapshot, once for each data interval, and store what it answers.

    Settings: :class:`mlops.contract.sections.predict.Predict`. Returns a PredictionsRef and updates the asset
    ``predictions://<pipeline>``.

    :param dataset: the DatasetRef of the rows, or the ValidationRef that says that they fit (templated)
    """

    step = "predict"
    section = Predict

    def __init__(self, *, dataset: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=dataset, **kwargs)
        self._version: ModelVersionRef | None = None
        self.predictions = predictions_asset(self.pipeline)
        self.outlets = [*self.outlets, self.predictions]

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        model, named = settings["registered_model"], settings["version"]
        which, sign = ({"version": named}, "/") if named.isdecimal() else ({"alias": named}, "@")
        self._version = version_of(model, self._deployment(), f"{model}{sign}{named}, which is to predict", **which)
        return dict(settings)

    def connections(self, settings: Mapping[str, Any]) -> dict[str, str]:
        output = settings["output"]
        return {"predict.output.connection": output["connection"]} if output and output["kind"] == "sql" else {}

    def baselines(self, deployment: Deployment) -> dict[str, Ref]:
        # Where there is none any more, the step says so, unless the interval is predicted already.
        return {} if self._version is None else {"model": self._version}

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        context["outlet_events"][self.predictions].extra = event_extra(ref)
