"""Searches for settings, as the REST API has them."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mlops.contract.refs import VERSION_PATTERN
from mlops.contract.rest.asked import Asked
from mlops.contract.rest.runs import Priority, Settings
from mlops.contract.section import EXPERIMENT_NAME_PATTERN, NAME_PATTERN


class NewStudy(Asked):
    """A search for the settings of a training. What is left out is as ``tune`` of the pipeline's file says."""

    pipeline: str = Field(pattern=NAME_PATTERN, examples=["flight_ranking"])
    space: Settings = Field(
        min_length=1,
        description="By the setting of `train`: a range with `low`, `high`, perhaps `log` and `step`; or `choices`",
        examples=[{"learning_rate": {"low": 0.0001, "high": 0.01, "log": True}}],
    )
    metric: str | None = Field(default=None, description="`train.metric`, which says which way is better")
    sampler: str | None = None
    sampler_settings: Settings | None = None
    pruner: str | None = None
    pruner_settings: Settings | None = None
    trials: int | None = Field(default=None, strict=True, ge=1, description="At most so many")
    hours: float | None = Field(
        default=None, strict=True, gt=0, description="No trial begins so long after the first one has"
    )
    gpu_hours: float | None = Field(
        default=None, strict=True, gt=0, description="No trial begins when all took so long together"
    )
    parallel: int | None = Field(default=None, strict=True, ge=1, description="Trials at once")
    seed: int | None = Field(default=None, strict=True, ge=0, lt=1 << 63)
    settings: Settings = Field(default_factory=dict, description="Other values for settings, as of `POST /runs`")
    as_of: str | None = Field(default=None, description="As of `POST /runs`")
    dataset: str | None = Field(default=None, pattern=VERSION_PATTERN, description="As of `POST /runs`")
    name: str | None = Field(default=None, pattern=EXPERIMENT_NAME_PATTERN, description="As of `POST /runs`")
    priority: Priority = Field(default="normal", description="As of `POST /runs`")

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for name in self._own():
            for key in self.settings:
                if f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}."):
                    raise ValueError(f"settings {key}: {name.rpartition('.')[2]} says it already; keep one of the two")
        return self

    def run(self) -> dict[str, Any]:
        """The fields of the experiment that searches."""
        same = self.model_dump(include={"pipeline", "as_of", "dataset", "name", "priority"})
        return {**same, "settings": {**self.settings, **self._own()}, "until": "tune"}

    def fields(self) -> dict[str, str]:
        """Return the fields that say something of the pipeline's settings, by these."""
        return {name: name.rpartition(".")[2] for name in self._own()}

    def _own(self) -> dict[str, Any]:
        """What its fields say of the pipeline's settings."""
        others = {"pipeline", "metric", "settings", "as_of", "dataset", "name", "priority"}
        own = {f"tune.{name}": value for name, value in self.model_dump(exclude=others, exclude_none=True).items()}
        return own if self.metric is None else {**own, "train.metric": self.metric}


class NewBudget(Asked):
    """What a search that runs may cost. What is left out stays as it is."""

    model_config = ConfigDict(strict=True)

    trials: int | None = Field(default=None, ge=1, description="At most so many in all; those that have begun count")
    hours: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="As of `POST /studies`")
    gpu_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="As of `POST /studies`")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("nothing is given: say trials, hours or gpu_hours")
        return self


class Trial(BaseModel):
    """A training of a search that has ended."""

    number: int
    """From 0."""
    state: str
    """``complete`` or ``pruned``."""
    value: float
    """Of the training's metric at the best epoch, or at the last one where it was pruned."""
    parameters: dict[str, Any]
    """The settings that it was given, by their name in ``space``."""
    tracking_run: str
    """Of MLflow."""


class Trials(BaseModel):
    """Of a search, those that have ended, by their numbers."""

    trials: list[Trial]


class Study(BaseModel):
    """A search, and what it has found so far."""

    id: str
    """The run's."""
    pipeline: str
    state: str
    """As of a run."""
    user: str | None
    trials: dict[str, int]
    """How many there are by state: ``complete``, ``pruned``; at the end also ``failed`` and ``not begun``."""
    best_trial: int | None
    """Its number; null until the search has ended."""
    best_value: float | None
    best_parameters: dict[str, Any] | None
    failure: str | None
    """As of a run."""
    airflow: str
    """Address of its page, relative to Airflow's."""
