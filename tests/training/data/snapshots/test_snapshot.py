from __future__ import annotations

import itertools
import math
import tempfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl
import pytest

from mlops.contract.manifest import Manifest
from mlops.contract.refs import DatasetRef, canonical_json
from mlops.contract.sections.ingest import KeySplit, TimeSplit
from mlops.contract.step import BadDataError
from mlops.data.snapshots.snapshot import Snapshot, write_snapshot
from mlops.data.sources.window import Window
from mlops.store import Store
from mlops.store_errors import DamagedObjectError

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
# Of few days: a pipeline holds out one for each.
BY_TIME = TimeSplit.model_construct(validation=1, test=0)
BY_KEY = KeySplit(key="user", validation=0.2, test=0.3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path / 'store'}")


def events(num_days: int, per_day: int = 20) -> pl.DataFrame:
    """Two rows an instant, so that ties must be broken by the other columns."""
    numbers = [(d, i) for d in range(num_days) for i in range(per_day)]
    return pl.DataFrame(
        {
            "at": [FIRST + timedelta(days=d, hours=6, minutes=7 * (i // 2)) for d, i in numbers],
            "value": [float(d * per_day + i) if i % 5 else None for d, i in numbers],
            "kind": [("a", "b", None)[i % 3] for _, i in numbers],
            "user": [f"u{(i + 3 * d) % 20}" for d, i in numbers],
        }
    )


def write(store: Store, table: pl.DataFrame, *, end: str = "", timezone: str = "UTC", **changes: Any) -> Manifest:
    newest = table["at"].dt.convert_time_zone(timezone).dt.date().max()
    assert isinstance(newest, date)
    window = Window.before(datetime.fromisoformat(end or f"{newest + timedelta(days=1)}T00:00:00+00:00"), 30, timezone)
    settings = {"name": "events", "event_time": "at", "sources": {}, "split": BY_TIME, "creator": {}}
    with tempfile.TemporaryDirectory() as scratch:
        settings = {**settings, "window": window, "engine": "polars", "scratch": Path(scratch), **changes}
        return write_snapshot(store, nw.from_native(table.lazy()), **settings)


def blobs(store: Store) -> set[str]:
    return set(store.list("blobs"))


def open_snapshot(store: Store, manifest: Manifest) -> Snapshot:
    ref = manifest.ref("p", store.put_artifact("p", "manifest.json", manifest.to_json()))
    return Snapshot.open(store, ref)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(lambda t: t.sample(fraction=1.0, shuffle=True, seed=1), id="row order"),
        pytest.param(lambda t: t.reverse(), id="reversed"),
        pytest.param(lambda t: pl.concat([t[:33], t[33:]], rechunk=False), id="chunks"),
        pytest.param(lambda t: pl.concat([t, t]).filter(pl.int_range(pl.len()) < t.height), id="filtered"),
        pytest.param(lambda t: t.sort("value", descending=True).sort("at", maintain_order=True), id="ties reversed"),
        pytest.param(lambda t: t.with_columns(pl.col("kind").cast(pl.Categorical)), id="categorical codes"),
        pytest.param(lambda t: t.with_columns(pl.col("kind").cast(pl.Enum(["b", "a"]))), id="enum codes"),
    ],
)
def test_equal_rows_give_equal_bytes(store: Store, variant: Any) -> None:
    """Otherwise nightly snapshots would share nothing, and a rebuild would get another version."""
    table = events(5)
    first, stored = write(store, table), blobs(store)

    second = write(store, variant(table))

    assert second.version == first.version
    assert blobs(store) == stored


def test_a_value_has_one_form(store: Store) -> None:
    """-0.0 equals 0.0, and one NaN another: the order of rows that differ in nothing else would follow the arrival."""
    zeros = [0.0, -0.0, math.nan, -math.nan]
    versions = set()
    for values in itertools.permutations(zeros):
        table = pl.DataFrame({"at": [FIRST] * 4 + [FIRST + timedelta(days=1)], "x": [*values, 1.0]}).with_columns(
            pl.col("x").cast(pl.Float32).alias("single"),
            pl.concat_list("x", "x").alias("list"),
            pl.struct("x", text=pl.lit("t")).alias("struct"),
            pl.concat_list("x", "x").list.to_array(2).alias("array"),
        )
        versions.add(write(store, table).version)

    assert len(versions) == 1


def test_every_type_comes_back(store: Store) -> None:
    table = pl.DataFrame(
        {
            "at": [FIRST + timedelta(days=n // 2) for n in range(4)],
            "decimal": [Decimal("1.10"), None, Decimal("-3.00"), Decimal("7.25")],
            "bytes": [b"b", None, b"", b"a"],
            "list": [["b", None], [], None, ["a"]],
            "struct": [{"a": 1.5, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 0.5, "b": None}],
            "duration": [timedelta(n) for n in range(4)],
            "null": [None] * 4,
        }
    ).with_columns(pl.Series("array", [[1.0, 2.0], None, [0.5, 0.5], [3.0, 1.0]], dtype=pl.Array(pl.Float32, 2)))

    snapshot = open_snapshot(store, write(store, table))

    expected = pl.concat([day.sort(by=day.columns, nulls_last=True) for day in (table[:2], table[2:])])
    assert snapshot.read().equals(expected)
    assert snapshot.manifest.schema == {name: str(dtype) for name, dtype in table.schema.items()}


def test_what_no_file_can_hold_is_refused(store: Store) -> None:
    table = events(2).with_columns(pl.Series("thing", [object()] * 40, dtype=pl.Object))

    with pytest.raises(BadDataError, match="column 'thing' holds Python objects"):
        write(store, table)


def test_the_next_night_stores_one_new_day(store: Store) -> None:
    """Otherwise a window of 30 days would cost 30 days of storage every night."""
    table = events(6)
    write(store, table.filter(pl.col("at").dt.day() <= 5))
    before = blobs(store)

    write(store, table.filter(pl.col("at").dt.day() >= 2))

    assert len(blobs(store) - before) == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"sources": {"events": {"sha256": "2"}}}, id="sources"),
        pytest.param({"creator": {"run_id": "manual", "try_number": 2}}, id="creator"),
        pytest.param({"engine": "spark"}, id="engine"),
    ],
)
def test_where_rows_come_from_is_no_part_of_the_version(store: Store, change: dict[str, Any]) -> None:
    """A file that grew by rows of the future must not make an old night a new version; nor must a retry."""
    first, second = write(store, events(2)), write(store, events(2), **change)

    assert first.version == second.version
    assert all(getattr(second, name) == value for name, value in change.items())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"end": "2024-01-02T12:00:00+00:00"}, id="interval"),
        pytest.param({"name": "other"}, id="name"),
        pytest.param({"timezone": "Africa/Abidjan"}, id="timezone"),
        pytest.param({"split": TimeSplit.model_construct(validation=0, test=1)}, id="split"),
    ],
)
def test_another_interval_name_or_split_is_another_version(store: Store, change: dict[str, Any]) -> None:
    """Otherwise two nights could not be told apart."""
    assert write(store, events(2)).version != write(store, events(2), **change).version


def test_days_are_calendar_days_of_the_zone(store: Store) -> None:
    """Otherwise a New York evening would count to the next day."""
    table = pl.DataFrame({"at": [datetime(2013, 1, 2, 4, 30, tzinfo=UTC), datetime(2013, 1, 2, 5, 0, tzinfo=UTC)]})

    manifest = write(store, table, timezone="America/New_York", end="2013-01-03T05:00:00+00:00")

    assert [(partition.period, partition.num_rows) for partition in manifest.partitions] == [
        ("2013-01-01", 1),
        ("2013-01-02", 1),
    ]


def test_a_long_day_is_cut_evenly(store: Store) -> None:
    """Otherwise the last blob of a day would keep one reader waiting for the others."""
    table = events(2, per_day=300)

    manifest = write(store, table, max_blob_bytes=1900)

    for partition in manifest.partitions:
        assert len(partition.blobs) > 2
        assert max(blob.num_bytes for blob in partition.blobs) <= 1900
        lengths = [blob.num_rows for blob in partition.blobs]
        assert max(lengths) - min(lengths) <= 1
        assert (sum(lengths), sum(b.num_bytes for b in partition.blobs)) == (partition.num_rows, partition.num_bytes)
    assert open_snapshot(store, manifest).read().height == 600


def test_reading_gives_back_the_rows_of_the_days_asked_for(store: Store, tmp_path: Path) -> None:
    table = events(4)

    snapshot = open_snapshot(store, write(store, table, max_blob_bytes=1500))

    assert len(snapshot.manifest.partitions[0].blobs) > 1, "the day is split over blobs"
    assert snapshot.manifest == Manifest.from_json(snapshot.manifest.to_json())
    assert snapshot.periods == ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"]
    assert snapshot.read().equals(table.sort("at", *table.columns, nulls_last=True))
    assert snapshot.read(["2024-01-03"])["at"].dt.day().unique().to_list() == [3]
    assert snapshot.read([]).schema == table.schema
    for days in (None, ["2024-01-04", "2024-01-02"], []):
        assert snapshot.scan(days, cache=tmp_path).collect().equals(snapshot.read(days))


def test_a_split_by_time_is_days(store: Store, tmp_path: Path) -> None:
    snapshot = open_snapshot(store, write(store, events(5), split=TimeSplit(validation=1, test=2)))

    assert snapshot.split_periods("test") == ["2024-01-04", "2024-01-05"]
    assert snapshot.read_split("test").equals(snapshot.read(["2024-01-04", "2024-01-05"]))
    assert snapshot.read_split("train", ["2024-01-02"]).equals(snapshot.read(["2024-01-02"]))
    assert snapshot.scan_split("validation", cache=tmp_path).collect().equals(snapshot.read(["2024-01-03"]))
    assert [snapshot.manifest.splits[name].num_rows for name in ("train", "validation", "test")] == [40, 20, 40]
    with pytest.raises(BadDataError, match="the split 'train' .* has no rows for 2024-01-05"):
        snapshot.read_split("train", ["2024-01-05"])
    with pytest.raises(BadDataError, match="no split 'tset'; its splits: train, validation, test"):
        snapshot.read_split("tset")


def test_a_split_by_key_deals_out_each_key_once_and_copies_nothing(store: Store, tmp_path: Path) -> None:
    """Otherwise the model would be judged on users that it was fitted on."""
    table = events(4)
    by_time = write(store, table)
    before = blobs(store)

    snapshot = open_snapshot(store, write(store, table, split=BY_KEY, max_blob_bytes=1500))
    rows = {name: snapshot.read_split(name) for name in ("train", "validation", "test")}

    users = {name: set(part["user"]) for name, part in rows.items()}
    assert not users["train"] & users["test"]
    assert not users["train"] & users["validation"]
    assert set.union(*users.values()) == set(table["user"])
    assert pl.concat(rows.values()).sort(table.columns).equals(table.sort(table.columns))
    assert {name: part.num_rows for name, part in snapshot.manifest.splits.items()} == {
        name: part.height for name, part in rows.items()
    }
    for name, part in rows.items():
        assert snapshot.scan_split(name, cache=tmp_path).collect().equals(part)
        assert snapshot.read_split(name, ["2024-01-02"]).equals(part.filter(pl.col("at").dt.day() == 2))
    # The rows are the blobs of any other snapshot of them; only the indexes are new.
    again = write(store, table, split=BY_KEY)
    assert [p.blobs for p in again.partitions] == [p.blobs for p in by_time.partitions]
    assert {p.index.key for p in again.partitions if p.index} <= blobs(store) - before


def test_an_unknown_day_is_refused(store: Store) -> None:
    """Otherwise a split could silently lose a day."""
    snapshot = open_snapshot(store, write(store, events(2)))

    with pytest.raises(BadDataError, match="no rows for 2024-01-09; it holds 2 days, 2024-01-01 to 2024-01-02"):
        snapshot.read(["2024-01-09"])


@pytest.mark.parametrize("which", ["blob", "index"])
def test_a_damaged_blob_is_named(store: Store, tmp_path: Path, which: str) -> None:
    """Otherwise a model could be trained on flipped bits."""
    snapshot = open_snapshot(store, write(store, events(3), split=BY_KEY))
    partition = snapshot.manifest.partitions[1]
    key = partition.blobs[0].key if which == "blob" else partition.index.key if partition.index else ""
    path = tmp_path / "store" / key
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)

    assert snapshot.read_split("train", ["2024-01-01"]).height
    with pytest.raises(DamagedObjectError, match=key):
        snapshot.read_split("train")
    with pytest.raises(DamagedObjectError, match=key):
        snapshot.scan_split("train", cache=tmp_path)


def test_an_empty_snapshot_says_so(store: Store) -> None:
    document = {**write(store, events(2)).to_document(), "partitions": []}
    empty = Snapshot(store, Manifest.from_json(canonical_json(document)))

    assert empty.periods == []
    with pytest.raises(BadDataError, match="holds no rows at all"):
        empty.read()


def test_a_manifest_of_another_release_is_refused(store: Store) -> None:
    document = {**write(store, events(2)).to_document(), "format": 4}
    key = store.put_artifact("p", "manifest.json", canonical_json(document))
    ref = DatasetRef(
        place="p", artifacts={"manifest": key}, name="n", version="v", schema_hash="s", num_rows=1, num_bytes=1,
        interval_start="", interval_end="",
    )  # fmt: skip

    with pytest.raises(
        DamagedObjectError, match="format 4, and this release reads 3: upgrade it, or ingest the snapshot again"
    ):
        Snapshot.open(store, ref)
