"""The note of a run that has ended. ``tests/end_to_end/test_pipeline.py`` has a scheduler write it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.models.dagrun import DagRunNote
from airflow.sdk.timezone import utcnow
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from mlops_provider.run_notes import put_note

MADE = datetime(2026, 1, 11, tzinfo=UTC)
"""When the runs were made."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Session]:
    engine = create_engine(f"sqlite:///{tmp_path}/airflow.db")
    DagRunNote.__table__.create(engine)  # type: ignore[attr-defined]
    with Session(engine) as session:
        yield session
    engine.dispose()


def _notes(session: Session) -> list[tuple[int, str | None, str | None]]:
    columns = select(DagRunNote.dag_run_id, DagRunNote.user_id, DagRunNote.content)
    return [(run, user, content) for run, user, content in session.execute(columns)]


def _by_another(session: Session, run_id: int, user: str | None = "7", at: datetime | None = None) -> None:
    row = {"dag_run_id": run_id, "content": "mine", "user_id": user, "created_at": at or utcnow()}
    session.connection().execute(DagRunNote.__table__.insert().values(row))  # type: ignore[attr-defined]


def test_ours_is_written_anew_and_a_persons_stays(database: Session) -> None:
    put_note(database, 1, MADE, "")
    assert _notes(database) == [], "where there is nothing to tell, no note"
    put_note(database, 1, MADE, "train failed: NaN")
    put_note(database, 1, MADE, "Version 3.")
    put_note(database, 2, MADE, "train failed: NaN")
    put_note(database, 2, MADE, "")
    _by_another(database, 3)
    put_note(database, 3, MADE, "Version 4.")
    _by_another(database, 4, None, MADE)
    put_note(database, 4, MADE, "Version 5.")
    assert _notes(database) == [(1, None, "Version 3."), (2, None, ""), (3, "7", "mine"), (4, None, "mine")]


def test_one_that_somebody_writes_at_the_same_moment_stays(database: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the scheduler's transaction would fail, and with it the end of every run that is in it."""
    execute = database.execute

    def slow(statement: object, *args: object, **kwargs: object) -> object:
        found = execute(statement, *args, **kwargs)  # type: ignore[call-overload]
        if getattr(statement, "is_update", False):
            _by_another(database, 1)
        return found

    monkeypatch.setattr(database, "execute", slow)
    put_note(database, 1, MADE, "Version 3.")
    monkeypatch.undo()
    assert _notes(database) == [(1, "7", "mine")]
