from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowSkipException

from mlops_provider.assets import model_asset
from mlops_provider.deployment import Deployment
from mlops_provider.links import ModelLink
from mlops_provider.operators.base import StepOperator
from mlops_provider.refs import ModelVersionRef, Ref, ReportRef
from mlops_provider.spec import Register

if TYPE_CHECKING:
    from airflow.sdk import Context


class RegisterOperator(StepOperator):
    """
    Register the model version and make it the champion; skipped, with the reason, where the evaluation did not pass.

    Settings: :class:`mlops_provider.spec.Register`. Returns a ModelVersionRef and updates the asset
    ``model://<registered model>``.

    :param report: the ReportRef of the evaluation (templated)
    """

    step = "register"
    section = Register
    operator_extra_links = (ModelLink(),)

    def __init__(self, *, report: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=report, **kwargs)
        self.model = model_asset(self.settings["registered_model"])
        self.outlets = [*self.outlets, self.model]

    def execute(self, context: Context) -> dict[str, Any]:
        report = ReportRef.from_wire(self.upstream)
        if not report.passed:
            raise AirflowSkipException(f"not registered: {report.reason}")
        return super().execute(context)

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        version = ref.ancestor(ModelVersionRef)
        self.links[ModelLink.name] = f"{deployment.tracking_url}/#/models/{version.name}/versions/{version.version}"
        context["outlet_events"][self.model].extra = {"ref": ref.to_wire()}
