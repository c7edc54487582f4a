"""``mlops datasets``, as its process: what people read, what scripts read, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from committed_snapshots import RUN_ID, commit_snapshot, store_snapshot, visits
from warm import run_warm

from mlops.contract.refs import DatasetRef
from mlops.contract.step import python_path
from mlops.store import Store

CHECKOUT = Path(__file__).parents[3]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def nights(store: Store) -> tuple[DatasetRef, DatasetRef]:
    """The second night lost a row of the 2nd, corrected one of the 3rd, and brought a day and a column."""
    rows = visits(2, 3, 4).filter(pl.col("visitor") != 202).with_columns(lang=pl.lit("en"))
    corrected = pl.when(pl.col("visitor") == 301).then(99.5).otherwise("seconds").alias("seconds")
    return (
        commit_snapshot(store, visits(1, 2, 3), last_day=3),
        commit_snapshot(store, rows.with_columns(corrected), last_day=4),
    )


@pytest.fixture
def mlops(store: Store) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlops.commands", "datasets", *arguments]
        return run_warm(command, env=environment(store), timeout=60)

    return run


def environment(store: Store) -> dict[str, str]:
    paths = python_path(CHECKOUT)
    return {**os.environ, "PYTHONPATH": paths, "MLOPS_HOME": str(CHECKOUT), "MLOPS_STORE": store.uri}


def file_of(store: Store, key: str) -> Path:
    return Path(store.uri.removeprefix("file://"), key)


def document(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_list_tells_what_when_and_by_whom(
    mlops: Run, nights: tuple[DatasetRef, DatasetRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = mlops("list", "visits")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    lines = [line.split() for line in done.stdout.splitlines()]
    newest, oldest = (next(line for line in lines if line[:1] == [day]) for day in ("2024-01-04", "2024-01-03"))
    assert lines.index(newest) < lines.index(oldest)
    assert (newest[1], oldest[1]) == (nights[1].version[:12], nights[0].version[:12])
    assert (newest[2:4], oldest[2:4]) == (["3", "11"], ["3", "12"]), "days and rows"
    # The last column folds.
    assert "".join(line[-1] for line in lines[lines.index(oldest) :]) == RUN_ID

    listed = document(mlops("list", "--json"))
    assert [item["version"] for item in listed] == [ref.version for ref in nights]
    assert listed[0]["manifest"]["creator"]["run_id"] == RUN_ID


def test_show_tells_what_is_in_it_and_where_it_came_from(mlops: Run, nights: tuple[DatasetRef, DatasetRef]) -> None:
    done = mlops("show", "visits@2024-01-03")
    assert done.returncode == 0
    facts = (nights[0].version, "America/New_York", "visitor", "Int64", "2024-01-02", "visits.csv", "train", "polars")
    assert [fact for fact in facts if fact not in done.stdout] == []
    assert document(mlops("show", f"visits@{nights[1].version[:6]}", "--json"))["version"] == nights[1].version


def test_diff_counts_rows_per_day_and_shows_what_changed(mlops: Run, nights: tuple[DatasetRef, DatasetRef]) -> None:
    done = mlops("diff", "visits@2024-01-03", "visits")
    assert done.returncode == 1, "they differ"
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["lang", "added", "String"] in lines
    for row in (
        ["2024-01-01", "0", "4", "0"],
        ["2024-01-02", "0", "1", "0"],
        ["2024-01-03", "0", "0", "1", "seconds", "(1)"],
        ["2024-01-04", "4", "0", "0"],
    ):
        assert row in lines
    assert "seconds: 3.5 -> 99.5" in done.stdout

    days = {
        each["period"]: each for each in document(mlops("diff", "visits@2024-01-03", "visits", "--json"))["periods"]
    }
    assert days["2024-01-03"]["columns"] == {"seconds": 1}
    keyed = document(mlops("diff", "visits@2024-01-03", "visits", "--json", "--key", "visitor,page"))["periods"][2]
    assert keyed["examples"] == [
        {"key": {"visitor": 301, "page": "/home"}, "before": {"seconds": 3.5}, "after": {"seconds": 99.5}}
    ]


def test_equal_snapshots_do_not_differ(mlops: Run, nights: tuple[DatasetRef, DatasetRef]) -> None:
    done = mlops("diff", "visits", "visits")
    assert (done.returncode, "no difference" in done.stdout) == (0, True)


def test_deprecate_says_who_and_why_and_how_to_take_it_back(
    mlops: Run, store: Store, nights: tuple[DatasetRef, DatasetRef]
) -> None:
    name = f"visits@{nights[0].version[:8]}"
    done = mlops("deprecate", name, "--reason", "prices in cents [sic]")
    assert done.returncode == 0
    assert "prices in cents [sic]" in done.stdout
    marked = document(mlops("show", name, "--json"))["deprecated"]
    assert marked["reason"] == "prices in cents [sic]"
    assert "@" in marked["by"]
    assert "DEPRECATED" in mlops("list").stdout

    again = mlops("deprecate", name, "--reason", "another")
    assert (again.returncode, "stay" in again.stderr) == (2, True)
    assert mlops("deprecate", "visits", "--reason", "which one?").returncode == 2
    assert "--reason is empty" in mlops("deprecate", name, "--reason", " ").stderr

    mark = next(word for word in done.stdout.split() if word.startswith("pipelines/"))
    file_of(store, mark).unlink()
    assert document(mlops("show", name, "--json"))["deprecated"] is None


def test_verify_names_every_damaged_object_and_who_needs_it(
    mlops: Run, store: Store, nights: tuple[DatasetRef, DatasetRef]
) -> None:
    whole = mlops("verify")
    assert (whole.returncode, "2 snapshots are whole" in whole.stdout) == (0, True)
    flipped, missing = document(mlops("show", "visits@2024-01-03", "--json"))["manifest"]["partitions"][:2]
    damaged, deleted = (file_of(store, part["blobs"][0]["key"]) for part in (flipped, missing))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    deleted.unlink()

    done = mlops("verify", "visits")

    assert done.returncode == 1
    assert damaged.name in done.stdout
    assert f"{deleted.name} is missing" in done.stdout
    found = document(mlops("verify", "--json"))
    assert {Path(item["key"]).name for item in found["damaged"]} == {damaged.name, deleted.name}
    assert all(item["snapshots"] == [f"visits@{nights[0].version[:12]}"] for item in found["damaged"])


def test_verify_and_list_go_on_past_a_damaged_manifest(
    mlops: Run, store: Store, nights: tuple[DatasetRef, DatasetRef]
) -> None:
    manifest = nights[0].artifacts["manifest"].key
    file_of(store, manifest).write_text("{}")
    for name in ("verify", "list"):
        done = mlops(name)
        assert done.returncode == 1
        assert manifest in done.stdout + done.stderr
    assert nights[1].version[:12] in mlops("list").stdout


def test_gc_removes_what_is_old_and_named_by_nobody(
    mlops: Run, store: Store, nights: tuple[DatasetRef, DatasetRef]
) -> None:
    named = set(store.list("blobs"))
    store_snapshot(store, visits(7), last_day=7)
    (orphan,) = set(store.list("blobs")) - named
    assert "removed 0 blobs" in mlops("gc").stdout
    os.utime(file_of(store, orphan), (time.time() - 200 * 3600,) * 2)
    planned = mlops("gc", "--dry-run").stdout
    assert orphan in planned
    assert "would remove 1 blobs" in planned
    assert set(store.list("blobs")) == {*named, orphan}

    done = mlops("gc")

    assert (done.returncode, "removed 1 blobs" in done.stdout) == (0, True)
    assert set(store.list("blobs")) == named
    assert mlops("verify").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "visit"], "mlops datasets: there is no dataset 'visit' in file://"),
        (["gc", "--grace-hours", "0"], "must be > 0, got 0"),
        (["gc", "--grace-hours", "x"], "argument --grace-hours: must be a number of hours, got 'x'"),
        (["gc", "--grace-hours", "inf"], "must be at most 876000, a hundred years, got inf"),
        (["gc", "--grace-hours", "1e9"], "must be at most 876000, a hundred years, got 1e9"),
        (["lst"], "invalid choice: 'lst'"),
        (["diff", "visits@2024-01-03", "visits", "--key", "visitors"], "share no column 'visitors' of one type"),
    ],
    ids=["dataset", "grace", "no hours", "endless hours", "too many hours", "command", "key"],
)
def test_a_mistake_is_one_message_on_stderr(
    mlops: Run, nights: tuple[DatasetRef, DatasetRef], arguments: list[str], told: str
) -> None:
    """Broken: a slip of the pen is answered by a traceback, or by the name of a function of ours."""
    done = mlops(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reason_in_brackets_is_only_text(mlops: Run, nights: tuple[DatasetRef, DatasetRef]) -> None:
    reason = "see [/ticket] [bold]7"
    assert mlops("deprecate", f"visits@{nights[0].version}", "--reason", reason).returncode == 0
    done = mlops("list")
    assert done.returncode == 0, done.stderr
    assert reason in " ".join(done.stdout.split())
