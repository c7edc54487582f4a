"""
Nothing from the future reaches a snapshot: shown by moving the times of what is joined, through the ingest step.

Each weather report carries a number of its own, so that a row of the snapshot tells which report it was given.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mlops.contract.refs import DatasetRef
from mlops.contract.step import RunIdentity, StepInput
from mlops.data.snapshots.snapshot import Snapshot
from mlops.process import ProcessSettings
from mlops.steps.execution import execute
from mlops.store import Store

REPOSITORY = Path(__file__).parents[3]
FIRST_DAY = date(2013, 1, 1)
NUM_DAYS = 10
WEATHER = ["temp", "wind_speed", "precip", "pressure", "visib"]
HOUR = timedelta(hours=1)


def instant(day: date, hour: float) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(hours=hour)


def flights() -> pl.DataFrame:
    chance = random.Random(3)
    return pl.DataFrame(
        [
            {
                "year": day.year, "month": day.month, "day": day.day, "hour": hour, "minute": chance.choice([0, 30]),
                "time_hour": f"{instant(day, hour + 5):%Y-%m-%dT%H:%M:%SZ}", "carrier": "AA", "flight": number,
                "origin": "JFK", "dest": chance.choice(["LAX", "MIA"]), "distance": 1000,
                "arr_delay": chance.randint(-20, 90),
            }
            for day in days() for number, hour in enumerate(range(6, 19))
        ]
    )  # fmt: skip


def weather() -> pl.DataFrame:
    hours = [instant(day, hour) for day in days() for hour in range(24)]
    reports = {name: [float(number) for number in range(len(hours))] for name in WEATHER}
    return pl.DataFrame({"origin": ["JFK"] * len(hours), "time_hour": hours, **reports})


def days() -> list[date]:
    return [FIRST_DAY + timedelta(days=number) for number in range(NUM_DAYS)]


Ingest = Callable[[timedelta], pl.DataFrame]


@pytest.fixture
def ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ingest:
    """Ingests the recipe of the flights' delays with every weather report stamped later by so much."""
    home = tmp_path / "home"
    shutil.copytree(REPOSITORY / "include/flight_delays", home / "include/flight_delays")
    monkeypatch.syspath_prepend(str(home))
    flights().write_csv(home / "flights.csv")
    store = Store(f"file://{tmp_path}/store")
    deployment = ProcessSettings(home=home, store=store.uri, tracking_uri="", result_path=home / "result", rank=0)
    source = {
        "kind": "files", "event_time": "time_hour", "created_time": None, "key": [], "history_days": None, "types": {},
        "null_values": [],
    }  # fmt: skip
    config: dict[str, Any] = {
        "sources": {name: {**source, "path": f"{name}.csv"} for name in ("flights", "weather")},
        "transform": "include.flight_delays.dataset:flights", "event_time": "scheduled_departure", "window": 7,
        "split": {"validation": 1, "test": 1}, "engine": "polars",
    }  # fmt: skip

    def run(later: timedelta) -> pl.DataFrame:
        stamped = weather().with_columns((pl.col("time_hour") + later).dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
        stamped.write_csv(home / "weather.csv")
        identity = RunIdentity(
            pipeline="flight_delays", run_key=f"{later.total_seconds():.0f}", timezone="America/New_York",
            interval_start="2013-01-09T05:00:00+00:00", interval_end="2013-01-10T05:00:00+00:00", dag_id="d",
            task_id="ingest", run_id="r", try_number=1,
        )  # fmt: skip
        ref = execute(StepInput(step="ingest", run=identity, config=config), deployment)
        assert isinstance(ref, DatasetRef)
        return Snapshot.open(store, ref).read().sort("scheduled_departure", "flight")

    return run


def reported(rows: pl.DataFrame) -> pl.Series:
    """When the report that each row was given was really made."""
    start = instant(FIRST_DAY, 0)
    return rows.select(start + pl.duration(hours=pl.col("temp"))).to_series()


def from_the_future(rows: pl.DataFrame) -> int:
    """Rows with a report made at or after their scheduled departure."""
    return int((reported(rows) >= rows["scheduled_departure"]).sum())


def test_every_row_has_the_newest_report_before_it_and_none_after(ingest: Ingest) -> None:
    """Otherwise a model would be trained on weather that nobody had seen yet."""
    rows = ingest(timedelta())

    age = rows["scheduled_departure"] - reported(rows)
    # On the hour, the report of that instant does not count: it is the one before.
    assert set(age) == {HOUR, HOUR / 2}
    assert from_the_future(rows) == 0


def test_reports_that_come_later_are_seen_later(ingest: Ingest) -> None:
    """The join goes by the times it is told: an hour later, each row has the report before, and nothing else moves."""
    rows, late = ingest(timedelta()), ingest(HOUR)

    assert (late["temp"] == rows["temp"] - 1).all()
    assert late.drop(WEATHER).equals(rows.drop(WEATHER))


def test_reports_stamped_too_early_are_found_out(ingest: Ingest) -> None:
    """The check above must fail where the data leaks: stamped two hours early, reports arrive before they were made."""
    leaking = ingest(-2 * HOUR)

    assert from_the_future(leaking) == leaking.height
