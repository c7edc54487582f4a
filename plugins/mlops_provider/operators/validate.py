from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from airflow.sdk import XComArg

from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepRetryableError
from mlops_provider.links import ReportLink
from mlops_provider.operators.base import StepOperator
from mlops_provider.refs import Ref, ValidationRef
from mlops_provider.registry import NotOursError, RegistryError, find_model_version
from mlops_provider.spec import Validate
from mlops_provider.stages import CHAMPION


class ValidateOperator(StepOperator):
    """
    Hold a snapshot against all that is expected of it; fail at once, without retry, where it does not fit.

    Settings: :class:`mlops_provider.spec.Validate`. Returns a ValidationRef.

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
        super().__init__(upstream=dataset, **kwargs)
        self.registered_model = registered_model

    def baselines(self, deployment: Deployment) -> dict[str, Ref]:
        if self.registered_model is None:
            return {}
        lookup = find_model_version(deployment.tracking_uri, self.registered_model, alias=CHAMPION)
        try:
            champion = asyncio.run(lookup)
        except NotOursError:  # it names no data
            return {}
        except RegistryError as error:
            raise StepRetryableError(f"the model in production cannot be looked up: {error}") from error
        return {} if champion is None else {"champion": champion.ancestor(ValidationRef)}

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        return [settings["schema_path"]]
