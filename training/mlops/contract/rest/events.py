"""What happened to a run, as the REST API has it."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel


class Event(BaseModel):
    """Something that happened to a run."""

    at: datetime
    kind: str
    """
    ``task_started`` and ``task_ended`` of a task's try; of a training ``started`` and ``ended`` of its processes,
    ``resumed``, ``failed``, ``hung``, ``slow`` (a rank, for which the others wait), ``node_lost``, ``interrupted``
    (told to end), and ``checkpoint`` of those that are kept.
    """
    said: str
    """In words."""
    task: str | None = None
    training: str | None = None
    """Its place in the store."""
    node: str | None = None
    """Which told it."""


class Events(BaseModel):
    """Of a run, in the order in which they happened."""

    events: list[Event]
