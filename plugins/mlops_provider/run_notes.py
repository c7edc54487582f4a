"""
What came of a run, as the note of its DAG run, where Airflow's pages and REST show it.

A night that was no better is as green there as one that promoted a model, and why a night failed is four pages deep.
A listener of Airflow's scheduler writes the note when a run has ended, of what the run's tasks have said. A note that a
person wrote stays.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.listeners import hookimpl

from mlops.contract.step import STEPS
from mlops_provider.operator_keys import FAILURE_KEY, NEWS_KEY

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

OPERATORS: Final = frozenset(
    {f"{name.title()}Operator" for name in (*STEPS, "approve", "canary", "rollback", "experiment")}
)
MOST_CHARACTERS: Final = 1000
"""Of a note, as Airflow's database keeps them."""
_LOST: Final = "its process was lost: killed, out of memory, or with its machine"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A task of ours, as it ended."""

    task_id: str
    state: str
    map_index: int = -1
    news: str = ""
    """What it has brought about, or why it had nothing to do."""
    failure: str = ""

    @property
    def name(self) -> str:
        return self.task_id if self.map_index == -1 else f"{self.task_id}[{self.map_index}]"


def note_of(tasks: Sequence[Ended]) -> str:
    """
    Say what came of a run; empty where its tasks have nothing to tell.

    :param tasks: in the order in which they ended
    """
    failed = [f"{task.name} failed: {task.failure or _LOST}" for task in tasks if task.state == "failed"]
    done = [task.news for task in tasks if task.state == "success" and task.news]
    skipped = [f"Nothing goes into production: {task.news}" for task in tasks if task.state == "skipped" and task.news]
    said = "\n".join(failed or done[-1:] or skipped[:1])
    return said if len(said) <= MOST_CHARACTERS else f"{said[: MOST_CHARACTERS - 4]} ..."


class RunNotes:
    """The listener."""

    @hookimpl
    def on_dag_run_success(self, dag_run: DagRun, msg: str) -> None:
        write_note(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: DagRun, msg: str) -> None:
        write_note(dag_run)


def write_note(run: DagRun) -> None:
    """Write the note of a run that has ended, unless a person has written one."""
    from sqlalchemy.orm import object_session

    session = object_session(run)
    if session is None or (run.dag_run_note is not None and run.dag_run_note.user_id is not None):
        return
    # The scheduler's own transaction, not another one: on SQLite that would wait for this, for ever.
    with session.no_autoflush:
        note = note_of(_tasks(run, session))
        if note or run.note:  # one of before, where it was cleared and has nothing to tell now
            run.note = note


def _tasks(run: DagRun, session: Any) -> list[Ended]:
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    instances = [each for each in run.get_task_instances(session=session) if each.operator in OPERATORS]
    if not instances:
        return []
    rows = session.scalars(
        select(XComModel).where(
            XComModel.dag_id == run.dag_id,
            XComModel.run_id == run.run_id,
            XComModel.key.in_((NEWS_KEY, FAILURE_KEY)),
        )
    )
    said = {(row.task_id, row.map_index, row.key): XComModel.deserialize_value(row) for row in rows}
    instances.sort(key=lambda each: (each.end_date is None, each.end_date))
    return [
        Ended(
            task_id=each.task_id,
            map_index=each.map_index,
            state=str(each.state),
            news=_text(said.get((each.task_id, each.map_index, NEWS_KEY))),
            failure=_text(said.get((each.task_id, each.map_index, FAILURE_KEY))),
        )
        for each in instances
    ]


def _text(said: Any) -> str:
    """Of what somebody may have edited."""
    message = said.get("message") if isinstance(said, Mapping) else said
    return message if isinstance(message, str) else ""
