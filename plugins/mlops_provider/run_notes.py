"""
The verdict of a run, as the note of its DAG run, where Airflow's pages and REST show it.

A night that was no better is as green there as one that promoted a model, and why a night failed is four pages deep.
A listener of Airflow's scheduler writes the note when a run of a pipeline has ended, of what its tasks have said. A
note that a person wrote stays.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow.listeners import hookimpl

from mlops_provider.operator_keys import PIPELINE_TAG

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

_AT_ONCE: Final = timedelta(seconds=1)
"""After a run was made: a note of this moment is of whoever has triggered it."""


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

    from mlops_provider.verdicts.document import note_of, verdict_of
    from mlops_provider.verdicts.reading import Night

    session = object_session(run)
    if session is None:
        return
    # The scheduler's own transaction, not another one: on SQLite that would wait for this, for ever.
    with session.no_autoflush:
        ours = select(DagTag.name).where(DagTag.dag_id == run.dag_id, DagTag.name == PIPELINE_TAG)
        if session.scalar(ours) is not None:
            interval = run.data_interval_start, run.data_interval_end
            night = Night(
                run.dag_id, run.run_id, run.logical_date, run.run_after, *interval, run.conf, run.bundle_version
            )
            note = note_of(verdict_of(session, night, state, cause))
            put_note(session, run.id, run.created_at or run.run_after, note)


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
