"""How a pipeline stands, by what Airflow's database has of its run. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from mlops.contract.rest import STANDINGS, Judged, Night, PipelineTonight, Question, Standing
from mlops_provider.airflow_pages import dag_page, form_page, run_page
from mlops_provider.operator_keys import PROMOTES, TRAINS, TRIES
from mlops_provider.verdicts import happened
from mlops_provider.verdicts.document import happened_in

CANNOT_READ: Final = "Airflow cannot read"
ASKED: Final = "awaiting_input"
AT_WORK: Final = ("running", "deferred", ASKED)
WAITING: Final = ("up_for_retry", "up_for_reschedule", "queued", "scheduled")


class Work(NamedTuple):
    """A task that is under way, or that promotes."""

    task_id: str
    map_index: int
    operator: str
    state: str
    try_number: int
    subject: str | None
    """What people are asked."""
    approvers: Sequence[str]
    asked_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A pipeline, and the run that it is shown by."""

    dag_id: str
    is_paused: bool
    broken: str = ""
    """Why Airflow cannot read its file."""
    broken_beside: Sequence[str] = ()
    """DAGs of that file, all of which one must be able to read to see why."""
    next_run: datetime | None
    run_id: str | None = None
    state: str = ""
    begun_at: datetime | None = None
    ended_at: datetime | None = None
    note: str = ""
    is_noted: bool = False
    """Whether the note is a person's, or a program's."""
    tasks: Sequence[Work] = ()
    """In the order in which they began."""


def standing_of(found: Shown) -> PipelineTonight:
    """Say how a pipeline stands."""
    place = dag_page(found.dag_id) if found.run_id is None else run_page(found.dag_id, found.run_id)
    asked = [task for task in found.tasks if task.state == ASKED]
    standing, said, since = _now(found, asked)
    return PipelineTonight(
        name=found.dag_id,
        standing=standing,
        said=said,
        since=since,
        run=None if found.run_id is None else f"{found.dag_id}@{found.run_id}",
        questions=[_question(task, found.dag_id, str(found.run_id)) for task in asked],
        trainings=[],
        is_paused=found.is_paused,
        next_run=None if found.is_paused else found.next_run,
        airflow=place,
    )


def night_of(found: Shown, due_at: datetime, evaluation: Judged | None) -> Night:
    """
    Say what came of a run.

    :param due_at: the time that it is of
    :param evaluation: None where there is none, or none that may be read
    """
    told = standing_of(found)
    return Night(
        run=f"{found.dag_id}@{found.run_id}",
        standing=told.standing,
        said=told.said if found.is_noted else happened_in(told.said),
        due_at=due_at,
        begun_at=found.begun_at,
        since=told.since,
        judged=evaluation,
        airflow=told.airflow,
    )


def trains(found: Shown) -> bool:
    """Return whether a training of the run is under way, or waits to go on."""
    return any(task.operator in (TRAINS, TRIES) and task.state in (*AT_WORK, *WAITING) for task in found.tasks)


def without_questions(found: Shown) -> Shown:
    """Return it as one sees it who may not read what people are asked."""
    return replace(found, tasks=[task._replace(subject=None, approvers=()) for task in found.tasks])


def urgency(pipeline: PipelineTonight) -> tuple[int, float, str]:
    """Return what pipelines are sorted by: what needs a person first, and of that the newest."""
    since = 0.0 if pipeline.since is None else -pipeline.since.timestamp()
    return STANDINGS.index(pipeline.standing), since, pipeline.name


def _question(task: Work, dag_id: str, run_id: str) -> Question:
    return Question(
        subject=task.subject or "Somebody is asked",
        approvers=list(task.approvers),
        address=form_page(dag_id, run_id, task.task_id, task.map_index),
    )


def _now(found: Shown, asked: Sequence[Work]) -> tuple[Standing, str, datetime | None]:
    if found.broken:
        return "broken", found.broken, None
    if found.run_id is None:
        return "idle", "It is paused, and has not run yet" if found.is_paused else "It has not run yet", None
    if found.state == "failed":
        why = f"mlops why {found.dag_id} '{found.run_id}'"
        said = f"{found.note}\n(noted by somebody; {why})" if found.is_noted else found.note
        return "failed", said or f"It failed: {why}", found.ended_at
    if found.state == "success":
        promotions = [task.state for task in found.tasks if task.operator == PROMOTES]
        return happened.standing(found.state, promotions), found.note or "It has ended", found.ended_at
    if asked:
        return "asked", "\n".join(task.subject or "Somebody is asked" for task in asked), asked[0].asked_at
    if found.is_paused and not any(task.state in AT_WORK for task in found.tasks):
        return "held", "It is paused, and its run cannot go on: unpause it", found.begun_at
    if found.state == "queued":
        return "running", "It waits to begin: another run may be under way", found.begun_at
    return "running", _work(found.tasks) or "between two tasks", found.begun_at


def _work(tasks: Sequence[Work]) -> str:
    doing = Counter(_doing(task) for task in tasks if task.state in (*AT_WORK, *WAITING))
    return ", ".join(said if number == 1 else f"{said} ({number})" for said, number in doing.items())


def _doing(task: Work) -> str:
    tries = f" at try {task.try_number}" if task.try_number > 1 else ""
    return f"{task.task_id} {'runs' if task.state in AT_WORK else task.state.replace('_', ' ')}{tries}"
