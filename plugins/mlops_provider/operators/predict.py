from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops.contract.refs import Ref
from mlops.contract.sections.predict import Predict
from mlops_provider.assets import predictions_asset
from mlops_provider.connections import login_of
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.champion import asked
from mlops_provider.registry import NotOursError, find_model_version

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
        assert self.pipeline is not None
        self.predictions = predictions_asset(self.pipeline)
        self.outlets = [*self.outlets, self.predictions]

    def baselines(self, deployment: Deployment) -> dict[str, Ref]:
        model, named = self.settings["registered_model"], self.settings["version"]
        which = {"version": named} if named.isdecimal() else {"alias": named}
        reader = login_of("reader", deployment)
        try:
            version = asked(
                find_model_version(deployment.tracking_uri, model, login=reader, **which),
                f"version {named} of {model} cannot be looked up",
            )
        except NotOursError as error:
            raise StepFailedError(f"{error}, so that it cannot be asked") from error
        if version is None:
            raise StepFailedError(
                f"there is no {'version' if named.isdecimal() else 'alias'} {named!r} of the model {model!r} to ask; "
                f"what there is: mlops models history {model}"
            )
        return {"model": version}

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        context["outlet_events"][self.predictions].extra = {"ref": ref.to_wire()}
