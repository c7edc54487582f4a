"""How the pipelines of a deployment stand, as the REST API has them."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, get_args

from pydantic import BaseModel

from mlops.contract.rest.progress import TrainingProgress

Standing = Literal["broken", "failed", "asked", "held", "stopped", "running", "promoted", "done", "idle"]
STANDINGS: Final[tuple[Standing, ...]] = get_args(Standing)
"""What needs a person first."""


class Question(BaseModel):
    """A form of Airflow that waits for somebody's answer."""

    subject: str
    approvers: list[str]
    """Who may answer; empty where Airflow cannot check it."""
    address: str
    """Of the form, relative to Airflow's."""


class PipelineTonight(BaseModel):
    """A pipeline, by the run that is under way, or else by its newest one."""

    name: str
    standing: Standing
    """
    ``broken``: Airflow cannot read its file; ``failed``; ``asked``: somebody's answer is waited for; ``held``: its run
    cannot go on, for the pipeline is paused; ``stopped``: nothing failed, and nothing went into production;
    ``running``, or waiting to begin; ``promoted``; ``done``, where the pipeline promotes nothing; ``idle``: it has not
    run yet.
    """
    said: str
    """What came of the run, or what it does now, in a sentence; somebody's note of it where there is one."""
    since: datetime | None
    """When that began: the run's end, the question, the run's begin; null where it has not run."""
    run: str | None
    """``DAG@RUN``."""
    questions: list[Question]
    trainings: list[TrainingProgress]
    """That go on, those of a search included."""
    is_paused: bool
    next_run: datetime | None
    """When Airflow begins the next one; null where there is no schedule, or the pipeline is paused."""
    airflow: str
    """Address of the run's page, or of the DAG's, relative to Airflow's."""


class Judged(BaseModel):
    """How the model of a night was judged."""

    interval: tuple[datetime, datetime]
    """Of the data."""
    passed: bool
    reason: str
    metric: str | None
    """That the gate goes by."""
    value: float | None
    champion: str | None
    """Version that was in production then; null where none was. It is measured on the same rows."""
    champion_value: float | None
    difference: float | None
    """To the champion, in the metric's own direction: less may be better."""
    difference_low: float | None
    difference_high: float | None
    """Limits of its interval, by bootstrap."""
    report: str | None
    """Address, relative to Airflow's."""


class Night(BaseModel):
    """What came of a pipeline's own run."""

    run: str
    """``DAG@RUN``."""
    standing: Standing
    """As of :class:`PipelineTonight`."""
    said: str
    due_at: datetime
    """The time that the run is of: its logical date, or where it has none, when it was due."""
    begun_at: datetime | None
    since: datetime | None
    judged: Judged | None
    """Null where nothing was evaluated."""
    airflow: str
    """Address of the run's page, relative to Airflow's."""


class Nights(BaseModel):
    """The newest nights of a pipeline, the newest first by when they were due, or triggered."""

    nights: list[Night]


class Tonight(BaseModel):
    """How the pipelines stand that one may read, those that need a person first."""

    pipelines: list[PipelineTonight]
    problem: str
    """Why it is not known how far some trainings are; empty otherwise."""
