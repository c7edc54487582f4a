from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import XComArg

from mlops.contract.refs import Ref, ValidationRef
from mlops.contract.sections.validate import Validate
from mlops_provider.deployment import Deployment
from mlops_provider.links import ReportLink
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.champion import champion_of
from mlops_provider.registry import NotOursError


class ValidateOperator(StepOperator):
    """
    Hold a snapshot against all that is expected of it; fail at once, without retry, where it does not fit.

    Settings: :class:`mlops.contract.sections.validate.Validate`. Returns a ValidationRef.

    :param dataset: the DatasetRef to validate (templated)
    :param registered_model: the model whose production version's data is the reference for drift; without it the
        reference is the previous snapshot alone
    """

    step = "validate"
    section = Validate
    operator_extra_links = (ReportLink(),)

    def __init__(
        self,
        *,
        dataset: XComArg | Mapping[str, Any] | str,
        registered_model: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.registered_model = registered_model
        super().__init__(upstream=dataset, **kwargs)

    def models(self) -> list[str]:
        return [] if self.registered_model is None else [self.registered_model]

    def baselines(self, deployment: Deployment) -> dict[str, Ref]:
        if self.registered_model is None:
            return {}
        try:
            champion = champion_of(self.registered_model, deployment)
        except NotOursError:  # it names no data
            return {}
        return {} if champion is None else {"champion": champion.ancestor(ValidationRef)}

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        return [settings["schema_path"]]
