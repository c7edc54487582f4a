"""
What came of a run, as the note of its DAG run, where Airflow's pages and REST show it.

A night that was no better is as green there as one that promoted a model, and why a night failed is four pages deep.
A listener of Airflow's scheduler writes the note when a run of a pipeline has ended, of what its tasks have said. A
note that a person wrote stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.listeners import hookimpl

from mlops_provider.operator_keys import FAILURE_KEY, NEWS, NEWS_KEY, PIPELINE_TAG

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

MOST_CHARACTERS: Final = 1000
"""Of a note, as Airflow's database keeps them."""
_CAUSES: Final[Mapping[str, str]] = {
    "timed_out": "It took longer than its DAG allows (dagrun_timeout).",
    "all_tasks_deadlocked": "No task of it could run any more, for the state that others are in.",
}
"""Why a run failed, other than by its tasks, by the word that Airflow has for it."""
_TASK_FAILED: Final = "task_failure"
_AT_ONCE: Final = timedelta(seconds=1)
"""After a run was made: a note of this moment is of whoever has triggered it."""
_SKEW: Final = timedelta(minutes=1)
"""By which a worker's clock may be ahead of the server's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A task, as it ended."""

    task_id: str
    state: str
    map_index: int = -1
    news: str = ""
    """What it has brought about, or why it had nothing to do."""
    failure: str = ""

    @property
    def name(self) -> str:
        return self.task_id if self.map_index == -1 else f"{self.task_id}[{self.map_index}]"


def note_of(state: str, tasks: Sequence[Ended], cause: str = "") -> str:
    """
    Say what came of a run; empty where there is nothing to tell.

    :param state: of the run
    :param tasks: in the order in which they ended
    :param cause: Airflow's word for why the run ended
    """
    if state == "failed":
        failed = [task for task in tasks if task.state == "failed"]
        is_of_task = cause in (_TASK_FAILED, "") and failed
        first = [] if is_of_task else [_CAUSES.get(cause, f"It failed: {cause}" if cause else "It failed.")]
        # Whatever else ends a run has the tasks fail that are under way: these have nothing to say.
        told = [
            f"{task.name} failed: {task.failure or 'its log says why'}" for task in failed if is_of_task or task.failure
        ]
        said = "\n".join([*first, *told])
    else:
        done = [task.news for task in tasks if task.state == "success" and task.news]
        skipped = [task.news for task in tasks if task.state == "skipped" and task.news]
        said = done[-1] if done else f"Nothing goes into production: {skipped[0]}" if skipped else ""
    return said if len(said) <= MOST_CHARACTERS else f"{said[: MOST_CHARACTERS - 4]} ..."


class RunNotes:
    """The listener."""

    @hookimpl
    def on_dag_run_success(self, dag_run: DagRun, msg: str) -> None:
        write_note(dag_run, "success", msg)

    @hookimpl
    def on_dag_run_failed(self, dag_run: DagRun, msg: str) -> None:
        write_note(dag_run, "failed", msg)


def write_note(run: DagRun, state: str, cause: str) -> None:
    """
    Write the note of a pipeline's run that has ended, unless a person has written one.

    :param state: that it has ended in
    :param cause: Airflow's word for why
    """
    from airflow.models.dag import DagTag
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(run)
    if session is None:
        return
    # The scheduler's own transaction, not another one: on SQLite that would wait for this, for ever.
    with session.no_autoflush:
        ours = select(DagTag.name).where(DagTag.dag_id == run.dag_id, DagTag.name == PIPELINE_TAG)
        if session.scalar(ours) is not None:
            put_note(session, run.id, run.created_at or run.run_after, note_of(state, _tasks(run, session), cause))


def is_ours(user_id: str | None, noted_at: datetime, made_at: datetime) -> bool:
    """
    Whether a note is one that was written here, and no person's or program's.

    :param user_id: whom it names; one that a program gives a run with its beginning names nobody
    :param made_at: when the run was made
    """
    return user_id is None and noted_at > made_at + _AT_ONCE


def put_note(session: Session, run_id: int, made_at: datetime, note: str) -> None:
    """
    Replace our note of a run, or write the first one; another one stays, also one that is written at this moment.

    Not by the objects of the session: these are written later, where a note of somebody would be lost, or fail the
    scheduler's transaction and all that is in it.

    :param run_id: of the database
    :param made_at: when the run was made; a program may have given it a note with that, which names nobody
    """
    from airflow.models.dagrun import DagRunNote
    from airflow.sdk.timezone import utcnow
    from sqlalchemy import update
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    now = utcnow()
    ours = update(DagRunNote).where(
        DagRunNote.dag_run_id == run_id, DagRunNote.user_id.is_(None), DagRunNote.created_at > made_at + _AT_ONCE
    )
    found = session.execute(ours.values(content=note, updated_at=now).execution_options(synchronize_session=False))
    if found.rowcount or not note:  # type: ignore[attr-defined]
        return
    values = {"dag_run_id": run_id, "content": note, "created_at": now, "updated_at": now}
    match session.get_bind().dialect.name:
        case "mysql":
            session.execute(mysql.insert(DagRunNote).values(values).prefix_with("IGNORE"))
        case "postgresql":
            session.execute(postgresql.insert(DagRunNote).values(values).on_conflict_do_nothing())
        case _:
            session.execute(sqlite.insert(DagRunNote).values(values).on_conflict_do_nothing())


def _tasks(run: DagRun, session: Session) -> list[Ended]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    instances = session.execute(
        select(
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.state,
            TaskInstance.start_date,
            TaskInstance.end_date,
        ).where(
            TaskInstance.dag_id == run.dag_id,
            TaskInstance.run_id == run.run_id,
            TaskInstance.state.in_(("success", "failed", "skipped")),
        )
    ).all()
    rows = session.scalars(
        select(XComModel).where(
            XComModel.dag_id == run.dag_id,
            XComModel.run_id == run.run_id,
            XComModel.key.in_((NEWS_KEY, FAILURE_KEY)),
        )
    )
    said = {(row.task_id, row.map_index, row.key): (row.timestamp, XComModel.deserialize_value(row)) for row in rows}

    def of(each: Any, key: str, field: str) -> str:
        return _text(said.get((each.task_id, each.map_index, key)), field, each.start_date)

    return [
        Ended(
            task_id=each.task_id,
            map_index=each.map_index,
            state=str(each.state),
            news=of(each, NEWS_KEY, NEWS),
            failure=of(each, FAILURE_KEY, "message"),
        )
        for each in sorted(instances, key=lambda each: (each.end_date is None, each.end_date))
    ]


def _text(said: tuple[datetime, Any] | None, field: str, since: datetime | None) -> str:
    """
    Return what a task has said; empty where it said nothing, or before it was cleared, or somebody has edited it, or an
    XCom backend keeps it elsewhere.
    """
    if said is None or since is None or said[0] < since - _SKEW or not isinstance(said[1], Mapping):
        return ""
    message = said[1].get(field)
    return message if isinstance(message, str) else ""
