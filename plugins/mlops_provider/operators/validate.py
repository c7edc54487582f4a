from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import XComArg

from mlops_provider.links import ReportLink
from mlops_provider.operators.base import StepOperator
from mlops_provider.spec import Validate


class ValidateOperator(StepOperator):
    """
    Hold a snapshot against its schema and volume; fail at once, without retry, where it does not fit.

    Settings: :class:`mlops_provider.spec.Validate`. Returns a ValidationRef.

    :param dataset: the DatasetRef to validate (templated)
    """

    step = "validate"
    section = Validate
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, dataset: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=dataset, **kwargs)

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        return [settings["schema_path"]]
