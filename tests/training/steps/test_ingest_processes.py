"""Ingest as the process that Airflow starts: two at once, killed at any moment, short of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from store_watch import problems

from mlops.contract.refs import DatasetRef
from mlops.contract.step import RunIdentity, StepInput, python_path, read_result
from mlops.data.snapshots.snapshot import Snapshot
from mlops.store import Store

CHECKOUT = Path(__file__).parents[3]
NUM_DAYS = 30
FIRST = datetime(2024, 1, 1, tzinfo=UTC)


def ingest_input(try_number: int = 1) -> StepInput:
    run = RunIdentity(
        pipeline="toy", run_key="k", interval_start="2024-01-30T00:00:00+00:00",
        interval_end="2024-01-31T00:00:00+00:00", timezone="UTC", dag_id="toy", task_id="ingest", run_id="r",
        try_number=try_number,
    )  # fmt: skip
    source = {
        "kind": "files", "path": "events.parquet", "event_time": "at", "created_time": None, "key": [],
        "history_days": None, "types": {}, "null_values": [],
    }  # fmt: skip
    config = {
        "sources": {"events": source}, "transform": None, "event_time": "at", "window": NUM_DAYS,
        "split": {"key": "user", "validation": 0.1, "test": 0.1}, "engine": "polars",
    }  # fmt: skip
    return StepInput(step="ingest", run=run, config=config)


def start(home: Path, name: str, document: StepInput, **variables: str) -> tuple[subprocess.Popen[bytes], Path]:
    (home / f"{name}.json").write_text(document.dump())
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(CHECKOUT),
        "MLOPS_HOME": str(home),
        "MLOPS_STORE": f"file://{home / 'store'}",
        "MLOPS_RESULT_PATH": str(home / f"{name}.result.json"),
        **variables,
    }
    command = [sys.executable, "-m", "mlops.steps", str(home / f"{name}.json")]
    with (home / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=home)
    return process, home / f"{name}.result.json"


def finish(process: subprocess.Popen[bytes], result: Path) -> DatasetRef:
    process.wait(120)
    ref = read_result(result)
    assert isinstance(ref, DatasetRef), (ref, result.with_name(result.name.replace("result.json", "log")).read_text())
    return ref


def write_events(home: Path, rows_a_day: int) -> pl.DataFrame:
    home.mkdir(exist_ok=True)
    number = pl.int_range(NUM_DAYS * rows_a_day, eager=True)
    table = pl.DataFrame(
        {
            "at": FIRST + (number * timedelta(days=1) / rows_a_day).cast(pl.Duration("us")),
            "user": number * 7919 % 1000,
            "value": number.cast(pl.Float64).sin(),
        }
    )
    table.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(home / "events.parquet", row_group_size=1000)
    return table


@pytest.mark.gang
def test_two_at_once_make_one_snapshot(tmp_path: Path) -> None:
    """A zombie task beside its retry: both must go on with the same data."""
    write_events(tmp_path, 500)
    running = [start(tmp_path, f"try{number}", ingest_input(number)) for number in (1, 2)]

    first, second = (finish(*each) for each in running)

    assert first == second
    refs = [key for key in Store(f"file://{tmp_path / 'store'}").list("pipelines") if key.endswith("ref.json")]
    assert refs == [f"{first.place}/ref.json"]
    assert list(problems(tmp_path / "store")) == []


@pytest.mark.gang
def test_killed_at_any_point_leaves_nothing_visible(tmp_path: Path) -> None:
    """Otherwise half a night could be taken for a night."""
    home, calm = tmp_path / "struck", tmp_path / "calm"
    for folder in (home, calm):
        table = write_events(folder, 2000)
    expected = finish(*start(calm, "calm", ingest_input()))
    store = home / "store"
    moments: list[Callable[[], bool]] = [
        store.is_dir,
        lambda: len(list(store.glob("blobs/*/*/*"))) >= 1,
        lambda: len(list(store.glob("blobs/*/*/*"))) >= NUM_DAYS,
        lambda: any(store.glob("pipelines/toy/ingest/k/manifest.*.json")),
    ]
    for number, reached in enumerate(moments, start=1):
        process, result = start(home, f"try{number}", ingest_input(number))
        deadline = time.monotonic() + 60
        while not reached() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.kill()
        process.wait()
        # The last blow may come too late; then all must be there.
        assert list(problems(store)) == []
        assert any(store.glob("pipelines/*/*/*/ref.json")) == (read_result(result) is not None) or number == len(
            moments
        )

    ref = finish(*start(home, "last", ingest_input(9)))

    assert ref.version == expected.version
    snapshot = Snapshot.open(Store(f"file://{store}"), ref)
    assert snapshot.read().height == table.height
    assert [key for key in Store(f"file://{store}").list("pipelines") if key.endswith("ref.json")] == [
        f"{ref.place}/ref.json"
    ]


@pytest.mark.gang
def test_a_window_larger_than_memory(tmp_path: Path) -> None:
    """Otherwise the size of a pipeline's data would be bounded by its machine."""
    limit = 1_000_000_000
    number = pl.int_range(NUM_DAYS * 150_000, dtype=pl.Int64)
    wide = pl.LazyFrame({"row": [0]}).select(
        (FIRST + (number * 576_000).cast(pl.Duration("us"))).alias("at"),
        (number * 7919 % 1000).alias("user"),
        *((number % (column + 2)).cast(pl.Float64).alias(f"x{column}") for column in range(60)),
    )
    wide.sink_parquet(tmp_path / "events.parquet", row_group_size=50_000)

    process, result = start(tmp_path, "wide", ingest_input(), MLOPS_MEMORY_BYTES=str(limit), POLARS_MAX_THREADS="2")
    peak = 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = max([peak, *(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))])
        time.sleep(0.02)

    ref = read_result(result)
    assert isinstance(ref, DatasetRef), (ref, (tmp_path / "wide.log").read_text())
    num_bytes = ref.num_rows * 62 * 8
    print(f"{num_bytes / 1e6:.0f} MB of rows with a peak of {peak / 1e6:.0f} MB")
    assert num_bytes > 2 * limit
    assert 0 < peak < limit
