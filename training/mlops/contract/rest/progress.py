"""How far trainings are, as the REST API has it."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel


class TrainingProgress(BaseModel):
    """How far a training is that goes on, as it has last told MLflow."""

    run: str
    """Of MLflow."""
    name: str
    step: int
    """Optimizer steps done; of a learner that has none, epochs."""
    num_steps: int
    """Of all epochs; it may stop earlier, where that is asked for."""
    loss: float | None
    """Mean over the newest steps; null before the first ones, and where it is not finite."""
    seconds_left: float | None
    """At most, at the pace of its steps so far; null before the first ones."""
    goodput: float | None
    """
    Share of the time since it began that went into steps that count, 0 to 1: the rest went into starts, steps that a
    restart did again, and waiting for a machine.
    """
    told_at: datetime | None
    """When it has told so; null before the first steps."""


class Trainings(BaseModel):
    """The trainings that go on."""

    trainings: dict[str, list[TrainingProgress]]
    """By pipeline."""
    problem: str
    """Why those of some cannot be read now; empty otherwise."""


class RunProgress(BaseModel):
    """How far the trainings of a run are."""

    trainings: list[TrainingProgress]
    """That go on, the oldest first; those that have told nothing for long are the last."""
