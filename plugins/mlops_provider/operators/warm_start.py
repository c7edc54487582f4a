"""What operators that train share: the registered model that they start from is looked up before the work is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from mlops.contract.refs import CheckpointRef, ModelVersionRef, Ref
from mlops.contract.sections.warm_start import Initialise, StoredWeights
from mlops.contract.step import StepInput
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.links import CurvesLink
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.champion import version_of
from mlops_provider.operators.runs import Asked

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor

STARTED_FROM = "started_from"
"""In the task's state: the version that its first try started from."""


class WarmStartOperator(StepOperator):
    train_setting: ClassVar[str | None] = None
    """The setting that is the section of the training; None: all settings together are."""
    _initial: ModelVersionRef | None = None
    _state: TaskStateStoreAccessor | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        link, instance = CurvesLink(), context["ti"]
        # Airflow keeps links when a task has ended.
        instance.xcom_push(key=link.xcom_key, value=link.get_link(self, ti_key=instance))  # type: ignore[arg-type]
        return super().execute(context)

    def models(self) -> list[str]:
        model = _model(self._train(self.settings))
        return [] if model is None else [_parts(model)[0]]

    def _document(self, asked: Asked, deployment: Deployment) -> StepInput:
        self._state = asked.state
        return super()._document(asked, deployment)

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        train = self._train(settings)
        if (model := _model(train)) is None:
            return dict(settings)
        name, alias, version = _parts(model)
        if version is None and (first := self._first(model)) is not None:
            alias, version = None, first
        what = f"{model}, which train.initialise names"
        self._initial = version_of(name, self._deployment(), what, version=version, alias=alias)
        if self._initial is None:
            raise StepFailedError(f"there is no {what}; what there is: mlops models history {name}")
        if self._state is not None:
            self._state.set(STARTED_FROM, {"model": model, "version": self._initial.version})
        weights = self._initial.ancestor(CheckpointRef).artifacts["weights"]
        found = StoredWeights(**asdict(weights), version=self._initial.version)
        start = Initialise.model_validate({**train["initialise"], "found": found.model_dump()})
        told = {"initialise": start.model_dump(mode="json")}
        return (
            {**settings, **told} if self.train_setting is None else {**settings, self.train_setting: {**train, **told}}
        )

    def baselines(self, deployment: Deployment) -> dict[str, Ref]:
        """The version that was looked up, so that the step holds it against what was committed."""
        return {} if self._initial is None else {"initialise": self._initial}

    def _first(self, model: str) -> str | None:
        """The version that an earlier try of this task found: what an alias means may change between two."""
        noted = None if self._state is None else self._state.get(STARTED_FROM)
        return str(noted["version"]) if isinstance(noted, Mapping) and noted.get("model") == model else None

    def _train(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = settings if self.train_setting is None else settings[self.train_setting]
        return found


def _model(train: Mapping[str, Any]) -> str | None:
    """Return the registered model to start from, as it is named."""
    start = train["initialise"]
    return None if start is None else start["model"]


def _parts(model: str) -> tuple[str, str | None, str | None]:
    """Return name, alias and number of ``NAME@ALIAS`` or ``NAME/VERSION``."""
    name, _, alias = model.partition("@")
    name, _, version = name.partition("/")
    return name, alias or None, version or None
