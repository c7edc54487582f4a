from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mlops_provider.refs import DatasetRef
from mlops_provider.step import BadDataError
from training.data.snapshots import Manifest, Snapshot, write_snapshot
from training.store import DamagedObjectError, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path / 'store'}")


def events(num_days: int, per_day: int = 20) -> pl.DataFrame:
    start = datetime(2024, 1, 1, 6, tzinfo=UTC)
    return pl.DataFrame(
        {
            "at": [start + timedelta(days=d, minutes=7 * i) for d in range(num_days) for i in range(per_day)],
            "value": [float(d * per_day + i) if i % 5 else None for d in range(num_days) for i in range(per_day)],
            "kind": [("a", "b", None)[i % 3] for _ in range(num_days) for i in range(per_day)],
        }
    )


def write(store: Store, table: pl.DataFrame, **changes: Any) -> Manifest:
    settings = {
        "name": "events",
        "interval_start": "2024-01-01T00:00:00+00:00",
        "interval_end": "2024-01-31T00:00:00+00:00",
        "timezone": "UTC",
        "event_time": "at",
        "sources": {},
    }
    return write_snapshot(store, table, **{**settings, **changes})


def blobs(store: Store) -> set[str]:
    return set(store.list("blobs"))


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(lambda t: t.sample(fraction=1.0, shuffle=True, seed=1), id="row order"),
        pytest.param(lambda t: pl.concat([t[:33], t[33:]], rechunk=False), id="chunks"),
        pytest.param(lambda t: t.with_columns(pl.col("kind").cast(pl.Categorical)), id="categorical codes"),
    ],
)
def test_equal_rows_give_equal_bytes(store: Store, variant: Any) -> None:
    """Otherwise nightly snapshots would share nothing, and a rebuild would get another version."""
    table = events(5)
    first, stored = write(store, table), blobs(store)

    second = write(store, variant(table))

    assert second.version == first.version
    assert blobs(store) == stored


def test_the_next_night_stores_one_new_day(store: Store) -> None:
    """Otherwise a window of 30 days would cost 30 days of storage every night."""
    table = events(6)
    write(store, table.filter(pl.col("at").dt.day() <= 5))
    before = blobs(store)

    write(store, table.filter(pl.col("at").dt.day() >= 2))

    assert len(blobs(store) - before) == 1


def test_sources_are_no_part_of_the_version(store: Store) -> None:
    """A file that grew by rows of the future must not make an old night a new version."""
    first = write(store, events(2), sources={"events": {"sha256": "1"}})
    second = write(store, events(2), sources={"events": {"sha256": "2"}})

    assert first.version == second.version
    assert second.sources["events"]["sha256"] == "2"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"interval_end": "2024-02-01T00:00:00+00:00"}, id="interval"),
        pytest.param({"name": "other"}, id="name"),
        pytest.param({"timezone": "Asia/Tokyo"}, id="timezone"),
    ],
)
def test_another_interval_or_name_is_another_version(store: Store, change: dict[str, str]) -> None:
    """Otherwise two nights could not be told apart."""
    assert write(store, events(2)).version != write(store, events(2), **change).version


def test_days_are_calendar_days_of_the_zone(store: Store) -> None:
    """Otherwise a New York evening would count to the next day."""
    table = pl.DataFrame({"at": [datetime(2013, 1, 2, 4, 30, tzinfo=UTC), datetime(2013, 1, 2, 5, 0, tzinfo=UTC)]})

    manifest = write(store, table, timezone="America/New_York")

    assert [(partition.day, partition.num_rows) for partition in manifest.partitions] == [
        ("2013-01-01", 1),
        ("2013-01-02", 1),
    ]


def open_snapshot(store: Store, manifest: Manifest) -> Snapshot:
    ref = DatasetRef(
        place="p",
        artifacts={"manifest": store.put_artifact("p", "manifest.json", manifest.to_json())},
        name=manifest.name,
        version=manifest.version,
        schema_hash=manifest.schema_hash,
        num_rows=manifest.num_rows,
        num_bytes=manifest.num_bytes,
        interval_start=manifest.interval_start,
        interval_end=manifest.interval_end,
    )
    return Snapshot.open(store, ref)


def test_reading_gives_back_the_rows_of_the_days_asked_for(store: Store) -> None:
    table = events(4)

    snapshot = open_snapshot(store, write(store, table, max_blob_bytes=1300))

    assert len(snapshot.manifest.partitions[0].blobs) > 1, "the day is split over blobs"
    assert snapshot.manifest == Manifest.from_json(snapshot.manifest.to_json())
    assert snapshot.days == ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"]
    assert snapshot.read().sort("at").equals(table.sort("at"))
    assert snapshot.read(["2024-01-03"])["at"].dt.day().unique().to_list() == [3]
    assert snapshot.read([]).schema == table.schema


def test_an_unknown_day_is_refused(store: Store) -> None:
    """Otherwise a split could silently lose a day."""
    snapshot = open_snapshot(store, write(store, events(2)))

    with pytest.raises(BadDataError, match="no rows for 2024-01-09"):
        snapshot.read(["2024-01-09"])


def test_a_damaged_blob_is_named(store: Store, tmp_path: Path) -> None:
    """Otherwise a model could be trained on flipped bits."""
    snapshot = open_snapshot(store, write(store, events(2)))
    key = snapshot.manifest.partitions[1].blobs[0].key
    path = tmp_path / "store" / key
    path.write_bytes(path.read_bytes()[:-1] + b"?")

    assert snapshot.read(["2024-01-01"]).height == 20
    with pytest.raises(DamagedObjectError, match=key):
        snapshot.read()
