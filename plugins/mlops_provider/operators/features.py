from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import XComArg

from mlops.contract.sections.features import Features
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.runs import recipe_folder


class FeaturesOperator(StepOperator):
    """
    Fit a feature set on the training split and materialise every split as shards.

    Settings: :class:`mlops.contract.sections.features.Features`. Returns a FeaturesRef. With ``online``,
    publishes the rows too.

    :param validation: the ValidationRef of the snapshot, which exists only where validation passed (templated)
    """

    step = "features"
    section = Features

    def __init__(self, *, validation: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=validation, **kwargs)

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        return [recipe_folder(settings["feature_set"])]

    def connections(self, settings: Mapping[str, Any]) -> dict[str, str]:
        online = settings["online"]
        if online is None or online["connection"] is None:
            return {}
        return {"features.online.connection": online["connection"]}
