"""What the REST API takes and answers, for its server and its client; the client passes over what it does not know."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mlops.contract.results import ExperimentResult
from mlops.contract.section import NAME_PATTERN
from mlops.contract.step import EXPERIMENT_STEPS

PROBLEM_TYPE: Final = "application/problem+json"
"""Media type of an error."""
MOST_RUNS: Final = 100
"""In one answer."""
MOST_SEEDS: Final = 1000
MOST_POINTS: Final = 2500
"""Of a curve in one answer: MLflow gives no more, and leaves out points in between."""
FINISHED: Final = frozenset({"success", "failed"})
"""States of a run that has ended."""
_MOST_CHARACTERS: Final = 50_000
"""Of settings: a pipeline's file has a few thousand."""


_CANCELLED: Final = "cancelled by "
"""Begins a line of a run's note."""


def cancelled_by(note: str | None) -> str | None:
    """Return how a run was cancelled, in words, by its note; None where it was not by this API."""
    lines = (note or "").splitlines()
    return next((line for line in reversed(lines) if line.startswith(_CANCELLED)), None)


def with_cancellation(note: str | None, user: str) -> str:
    """Return the note of a run that a user cancels."""
    return "\n".join(filter(None, [note, f"{_CANCELLED}{user}"]))


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
    result: ExperimentResult | None
    """Of an experiment that has ended well."""
    failure: str | None
    """Why it failed, in the step's own words; or who has cancelled it."""


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


class Value(BaseModel):
    """A point of a curve, as the stream tells it."""

    run: str
    name: str
    metric: str
    step: int
    value: float | None
    at: int


class Curves(BaseModel):
    """Of the trainings of a run."""

    curves: list[Curve]

    @classmethod
    def of(cls, values: Iterable[Value]) -> Curves:
        """
        Draw up the curves of points.

        :param values: of each curve by steps
        """
        found: dict[tuple[str, str], Curve] = {}
        for value in values:
            name = (value.run, value.metric)
            if name not in found:
                found[name] = Curve(run=value.run, name=value.name, metric=value.metric, steps=[], values=[], at=[])
            found[name].steps.append(value.step)
            found[name].values.append(value.value)
            found[name].at.append(value.at)
        return cls(curves=list(found.values()))


class Dataset(BaseModel):
    """The snapshots of a pipeline."""

    name: str
    """The pipeline's."""
    num_snapshots: int
    newest: datetime
    """End of the newest data interval."""


class Datasets(BaseModel):
    """Of the pipelines that the asker may read."""

    datasets: list[Dataset]


class Deprecation(BaseModel):
    """Why no new work starts from a snapshot."""

    reason: str
    by: str
    at: datetime


class SnapshotSummary(BaseModel):
    """A snapshot, as lists have it."""

    name: str
    version: str
    """SHA-256: equal rows of equal intervals have one version, wherever they are committed."""
    place: str
    """In the store."""
    interval_start: datetime
    interval_end: datetime
    """As-of time: nothing that became known at or after it is in the snapshot."""
    num_rows: int
    num_bytes: int
    schema_hash: str
    committed_at: datetime
    deprecated: Deprecation | None


class SnapshotPage(BaseModel):
    """A page of a dataset's snapshots."""

    snapshots: list[SnapshotSummary]
    damaged: list[str]
    """Places whose snapshot cannot be read: ``mlops store verify`` says what it affects."""
    next: str | None
    """The cursor of the next page; null on the last one."""


class Period(BaseModel):
    """An hour, day, week or month of a snapshot."""

    name: str
    num_rows: int
    num_bytes: int


class Split(BaseModel):
    """Rows that are trained on, or held out."""

    num_rows: int
    periods: list[str]
    """In which it has rows, oldest first."""


class Snapshot(SnapshotSummary):
    """A snapshot, and where it came from."""

    columns: dict[str, str]
    """Name to type, in their order."""
    event_time: str
    """Column that decides to which period a row belongs."""
    timezone: str
    grain: str
    """What the periods are."""
    window: list[str]
    """All periods of the window, whether they have rows or not, oldest first."""
    periods: list[Period]
    """Those with rows."""
    splits: dict[str, Split]
    sources: dict[str, dict[str, Any]]
    """Of each its kind, the position that was read, and the rows."""
    creator: dict[str, Any]
    """The run of Airflow that made it."""
    engine: str


class PeriodDifference(BaseModel):
    """A period whose rows are not the same in two snapshots."""

    name: str
    rows_before: int | None
    """Null where the first snapshot has none."""
    rows_after: int | None


class SnapshotDifference(BaseModel):
    """In what two snapshots differ; of rows within a period ``mlops datasets diff`` tells more."""

    before: str
    """Version."""
    after: str
    columns_added: dict[str, str]
    """Name to type."""
    columns_removed: dict[str, str]
    columns_retyped: dict[str, tuple[str, str]]
    """Name to the type before and after."""
    periods: list[PeriodDifference]


class Model(BaseModel):
    """A registered model."""

    name: str
    pipeline: str
    """That has registered its newest version."""
    aliases: dict[str, str]
    """Version of each: ``champion`` is the one in production."""


class Models(BaseModel):
    """Of the pipelines that the asker may read."""

    models: list[Model]


class ModelVersionSummary(BaseModel):
    """A version of a model, as lists have it."""

    name: str
    version: str
    semantic_version: str | None
    """Null for a moment after it was registered."""
    pipeline: str
    """That has registered it."""
    stage: str | None
    """``staging``, ``canary``, ``production`` or ``archived``; null where it was never in any."""
    registered_at: datetime
    reason: str
    """Why the evaluation let it pass."""
    metrics: dict[str, float] | None
    """Of the evaluation: ``candidate.NAME``, ``champion.NAME``, and the limits of intervals. Null where somebody has
    changed the version's tag with its lineage."""
    dataset_version: str
    """Of the snapshot that it was trained on."""
    tracking_run: str
    """Of MLflow."""


class ModelVersionPage(BaseModel):
    """A page of a model's versions."""

    versions: list[ModelVersionSummary]
    next: str | None
    """The cursor of the next page; null on the last one."""


class ModelVersion(ModelVersionSummary):
    """A version of a model, and where it came from."""

    git_commit: str | None
    artifact_sha256: dict[str, str]
    """Digest of each file that the steps committed, by its key in the store."""
    lineage: list[dict[str, Any]]
    """What each step committed on the way to it, the snapshot first: ``kind``, ``place`` and its own facts."""


class ProblemDetails(BaseModel):
    """An error, by RFC 9457."""

    title: str
    """The status, in words."""
    status: int
    detail: str
    """What is wrong, and what would do; a line for each mistake."""
