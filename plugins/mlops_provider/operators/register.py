from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowSkipException

from mlops_provider.deployment import Deployment
from mlops_provider.links import ModelLink, model_url
from mlops_provider.operators.base import StepOperator
from mlops_provider.refs import ModelVersionRef, Ref, ReportRef
from mlops_provider.spec import Register

if TYPE_CHECKING:
    from airflow.sdk import Context


class RegisterOperator(StepOperator):
    """
    Register the model version, in staging; skipped, with the reason, where the evaluation did not pass.

    Settings: :class:`mlops_provider.spec.Register`. Returns a ModelVersionRef.

    :param report: the ReportRef of the evaluation (templated)
    """

    step = "register"
    section = Register
    operator_extra_links = (ModelLink(),)

    def __init__(self, *, report: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=report, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        report = ReportRef.from_wire(self.upstream)
        if not report.passed:
            raise AirflowSkipException(f"not registered: {report.reason}")
        return super().execute(context)

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        self.links[ModelLink.name] = model_url(deployment.tracking_url, ref.ancestor(ModelVersionRef))
