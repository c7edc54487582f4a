"""What the REST API takes and answers, for its server and its client; the client passes over what it does not know."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mlops.contract.section import NAME_PATTERN
from mlops.contract.step import EXPERIMENT_STEPS

API_PREFIX: Final = "/mlops/api/v1"
"""Of the API, in Airflow's API server."""
PROBLEM_TYPE: Final = "application/problem+json"
"""Media type of an error."""
MOST_RUNS: Final = 100
"""In one answer; Airflow gives no more at once."""
MOST_SEEDS: Final = 1000
MOST_POINTS: Final = 2500
"""Of a curve in one answer: MLflow gives no more, and leaves out points in between."""
FINISHED: Final = frozenset({"success", "failed"})
"""States of a run that has ended."""
_MOST_CHARACTERS: Final = 50_000
"""Of settings: a pipeline's file has a few thousand."""


class NewRun(BaseModel):
    """An experiment that is asked for."""

    model_config = ConfigDict(extra="forbid")

    pipeline: str = Field(pattern=NAME_PATTERN, examples=["flight_ranking"])
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="Other values for settings, by their name in the pipeline's file; an entry of a list by its number",
        examples=[{"train.learning_rate": 0.0003, "tune": None}],
    )
    as_of: str | None = Field(
        default=None,
        description="Of the data: the newest data interval that had ended by then, a date or an instant of ISO 8601",
        examples=["2013-02-09"],
    )
    until: Literal[EXPERIMENT_STEPS] = Field(default=EXPERIMENT_STEPS[-1], description="The last step")  # type: ignore[valid-type]
    seeds: int = Field(default=1, ge=1, le=MOST_SEEDS, description="Train and evaluate with so many seeds")
    sample: float | None = Field(default=None, gt=0, le=1, description="Train on a share of the samples")
    name: str | None = Field(
        default=None, pattern=NAME_PATTERN, description="Keeps the results apart from those of other names"
    )

    @field_validator("settings")
    @classmethod
    def _not_too_large(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(settings)) > _MOST_CHARACTERS:
            raise ValueError(f"more than {_MOST_CHARACTERS} characters as JSON: put them into the pipeline's file")
        return settings

    def conf(self) -> dict[str, Any]:
        """What is not as usual, with which the run of Airflow is triggered."""
        return self.model_dump(exclude={"pipeline"}, exclude_defaults=True)


class Task(BaseModel):
    """A task of a run."""

    task_id: str
    map_index: int
    """-1 where there is one of them."""
    state: str | None
    try_number: int


class EndedStep(BaseModel):
    """A step of an experiment that has ended."""

    step: str
    place: str
    """In the store."""


class RunSummary(BaseModel):
    """A run, as lists have it."""

    id: str
    """``DAG@RUN``."""
    kind: Literal["experiment", "night"]
    pipeline: str
    state: str
    """``queued``, ``running``, ``success`` or ``failed``."""
    user: str | None
    """Who asked for it; null where the schedule did."""
    asked: dict[str, Any]
    """The settings and the like that it was started with."""
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    note: str | None
    """What somebody has noted at it in Airflow, also who cancelled it."""
    airflow: str
    """Address of its page, relative to Airflow's."""


class Run(RunSummary):
    """A run, and what has come out of it so far."""

    tasks: list[Task]
    steps: list[EndedStep]
    """Of an experiment: what has ended so far."""
    result: dict[str, Any] | None
    """Of an experiment that has ended well: what ``mlops run --json`` prints."""
    failure: str | None
    """Why it failed, in the step's own words."""


class Runs(BaseModel):
    """A page of runs."""

    runs: list[RunSummary]
    next: str | None
    """The cursor of the next page; null on the last one."""


class Curve(BaseModel):
    """A metric of one training; entries with one index belong together."""

    run: str
    """Of MLflow."""
    name: str
    metric: str
    steps: list[int]
    values: list[float | None]
    """Null where it was not finite."""
    at: list[int]
    """Unix time in milliseconds."""


class Curves(BaseModel):
    """Of the trainings of a run."""

    curves: list[Curve]


class Value(BaseModel):
    """A point of a curve, as the stream tells it."""

    run: str
    name: str
    metric: str
    step: int
    value: float | None
    at: int


class ProblemDetails(BaseModel):
    """An error, by RFC 9457."""

    title: str
    """The status, in words."""
    status: int
    detail: str
    """What is wrong, and what would do; a line for each mistake."""
