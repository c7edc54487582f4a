"""The note of a run that has ended. ``tests/end_to_end/test_pipeline.py`` has a scheduler write it."""

from __future__ import annotations

import pytest

from mlops_provider.run_notes import MOST_CHARACTERS, Ended, note_of


@pytest.mark.parametrize(
    ("tasks", "note"),
    [
        pytest.param([], "", id="nothing of ours"),
        pytest.param([Ended(task_id="ingest", state="success")], "", id="a snapshot is no news"),
        pytest.param(
            [Ended(task_id="evaluate", state="success"), Ended(task_id="promote", state="success", news="Version 3.")],
            "Version 3.",
            id="promoted",
        ),
        pytest.param(
            [
                Ended(task_id="register", state="skipped", news="not registered: no better"),
                Ended(task_id="promote", state="skipped"),
            ],
            "Nothing goes into production: not registered: no better",
            id="no better",
        ),
        pytest.param(
            [
                Ended(task_id="validate", state="failed", failure="40 rows"),
                Ended(task_id="train", state="upstream_failed"),
            ],
            "validate failed: 40 rows",
            id="failed",
        ),
        pytest.param(
            [Ended(task_id="train", state="failed")],
            "train failed: its process was lost: killed, out of memory, or with its machine",
            id="lost",
        ),
        pytest.param(
            [
                Ended(task_id="train", state="failed", map_index=1, failure="NaN"),
                Ended(task_id="train", state="failed", map_index=2, failure="NaN at 2"),
                Ended(task_id="promote", state="success", news="Version 3."),
            ],
            "train[1] failed: NaN\ntrain[2] failed: NaN at 2",
            id="of several",
        ),
    ],
)
def test_it_says_what_came_of_the_run(tasks: list[Ended], note: str) -> None:
    assert note_of(tasks) == note


def test_a_long_one_fits_into_the_database() -> None:
    """Broken: PostgreSQL would refuse it, and with it the transaction in which the scheduler ends runs."""
    note = note_of([Ended(task_id="validate", state="failed", failure="ö" * 5000)])
    assert len(note) == MOST_CHARACTERS
    assert note.endswith(" ...")
