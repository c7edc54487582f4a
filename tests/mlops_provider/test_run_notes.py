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

from mlops_provider.run_notes import MOST_CHARACTERS, Ended, note_of, put_note

MADE = datetime(2026, 1, 11, tzinfo=UTC)
"""When the runs were made."""


@pytest.mark.parametrize(
    ("state", "tasks", "cause", "note"),
    [
        pytest.param("success", [], "success", "", id="nothing of ours"),
        pytest.param("success", [Ended(task_id="ingest", state="success")], "", "", id="a snapshot is no news"),
        pytest.param(
            "success",
            [Ended(task_id="evaluate", state="success"), Ended(task_id="promote", state="success", news="Version 3.")],
            "",
            "Version 3.",
            id="promoted",
        ),
        pytest.param(
            "success",
            [
                Ended(task_id="register", state="skipped", news="not registered: no better"),
                Ended(task_id="promote", state="skipped"),
            ],
            "",
            "Nothing goes into production: not registered: no better",
            id="no better",
        ),
        pytest.param(
            "failed",
            [
                Ended(task_id="validate", state="failed", failure="40 rows"),
                Ended(task_id="train", state="upstream_failed"),
            ],
            "task_failure",
            "validate failed: 40 rows",
            id="failed",
        ),
        pytest.param(
            "failed",
            [Ended(task_id="train", state="failed")],
            "task_failure",
            "train failed: its log says why",
            id="lost",
        ),
        pytest.param(
            "failed",
            [
                Ended(task_id="train", state="failed", map_index=1, failure="NaN"),
                Ended(task_id="promote", state="success", news="Version 3."),
                Ended(task_id="clean", state="failed"),
            ],
            "task_failure",
            "train[1] failed: NaN\nclean failed: its log says why",
            id="of several, and not what another branch has brought about",
        ),
        pytest.param(
            "success",
            [
                Ended(task_id="check", state="failed", failure="may fail"),
                Ended(task_id="promote", state="success", news="Version 3."),
            ],
            "success",
            "Version 3.",
            id="a failure that the DAG bears",
        ),
        pytest.param(
            "failed",
            [
                Ended(task_id="trial", state="failed", failure="NaN"),
                Ended(task_id="train", state="failed"),
                Ended(task_id="register", state="skipped", news="not registered: no better"),
            ],
            "timed_out",
            "It took longer than its DAG allows (dagrun_timeout).\ntrial failed: NaN",
            id="too long",
        ),
        pytest.param(
            "failed",
            [Ended(task_id="approve", state="failed")],
            "Dag Run's state was manually set to `failed`.",
            "It failed: Dag Run's state was manually set to `failed`.",
            id="ended by hand, and its tasks with it",
        ),
        pytest.param("failed", [], "new_word", "It failed: new_word", id="for a cause of a later Airflow"),
    ],
)
def test_it_says_what_came_of_the_run(state: str, tasks: list[Ended], cause: str, note: str) -> None:
    assert note_of(state, tasks, cause) == note


def test_a_long_one_fits_into_the_database() -> None:
    """Broken: PostgreSQL would refuse it, and with it the transaction in which the scheduler ends runs."""
    note = note_of("failed", [Ended(task_id="validate", state="failed", failure="ö" * 5000)])
    assert len(note) == MOST_CHARACTERS
    assert note.endswith(" ...")


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
