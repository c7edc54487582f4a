from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import obstore
import pytest

from mlops.contract.manifest import Blob, Manifest, Partition, SplitPart
from mlops.contract.refs import Artifact
from mlops.contract.step import deprecation_key, place
from mlops_provider.api.datasets import Shelf, difference, version, versions
from mlops_provider.api.problems import Problem
from mlops_provider.committed import open_store

COLUMNS = {"at": "Datetime(time_unit='us', time_zone='UTC')", "page": "String", "seconds": "Float64"}


def commit(
    shelf: Shelf, day: int, rows: Mapping[int, int], columns: Mapping[str, str] = COLUMNS, settings: str = "0" * 12
) -> str:
    """
    Commit a snapshot of January 2024, as the ingest does.

    :param rows: by day
    :return: its version
    """

    def partition(each: int, count: int) -> Partition:
        digest = hashlib.sha256(f"{each} {count}".encode()).hexdigest()
        blob = Blob(key=f"blobs/{digest}", sha256=digest, num_bytes=count * 10, num_rows=count)
        return Partition(period=f"2024-01-{each:02d}", num_rows=count, num_bytes=count * 10, blobs=(blob,))

    manifest = Manifest(
        name=shelf.name, interval_start="2024-01-01T00:00:00+00:00", interval_end=f"2024-01-{day:02d}T00:00:00+00:00",
        timezone="UTC", grain="day", window=tuple(f"2024-01-{each:02d}" for each in rows), event_time="at",
        schema=columns, schema_hash=hashlib.sha256(json.dumps(columns).encode()).hexdigest(),
        partitions=tuple(partition(each, count) for each, count in rows.items()), split={}, split_hash="0" * 64,
        splits={"train": SplitPart(periods=("2024-01-01",), num_rows=sum(rows.values()))}, calendar={}, expected=(),
        sources={"visits": {"kind": "file", "rows": sum(rows.values())}}, creator={"run_id": "night"}, engine="polars",
    )  # fmt: skip
    there = place(shelf.name, f"202401{day:02d}T000000Z-{settings}", "ingest")
    data = manifest.to_json()
    key = f"{there}/manifest.json"
    ref = manifest.ref(there, Artifact(key=key, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data)))
    obstore.put(shelf.store, key, data)
    obstore.put(shelf.store, f"{there}/ref.json", json.dumps(ref.to_wire()).encode())
    return ref.version


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(name="visits", store=open_store(f"file://{tmp_path}"))


def refused(asked: Any) -> tuple[int, str]:
    with pytest.raises(Problem) as problem:
        asyncio.run(asked)
    return problem.value.status, str(problem.value)


def test_a_dataset_is_read_by_pages_the_newest_first(shelf: Shelf) -> None:
    """Broken: a snapshot that a night commits between two pages would push another one out of both."""
    made = [commit(shelf, day, {day: 4}) for day in range(1, 8)]
    first = asyncio.run(versions(shelf, limit=3, cursor=""))
    assert [each.version for each in first.snapshots] == made[:3:-1]
    assert first.next is not None
    made.append(commit(shelf, 8, {8: 4}))
    seen, cursor = list(first.snapshots), first.next
    while cursor is not None:
        page = asyncio.run(versions(shelf, limit=3, cursor=cursor))
        seen, cursor = [*seen, *page.snapshots], page.next
    assert [each.version for each in seen] == made[-2::-1]
    assert asyncio.run(versions(shelf, limit=100, cursor="")).next is None
    assert refused(versions(shelf, limit=3, cursor="other")) == (
        422, "cursor 'other' is none of this dataset: begin without one",
    )  # fmt: skip


def test_a_snapshot_says_what_is_in_it_and_where_it_came_from(shelf: Shelf) -> None:
    wanted = commit(shelf, 9, {7: 3, 8: 4})
    for given in (wanted, wanted[:6]):
        found = asyncio.run(version(shelf, given))
        assert (found.version, found.num_rows, list(found.columns)) == (wanted, 7, list(COLUMNS))
        assert [(each.name, each.num_rows, each.num_bytes) for each in found.periods] == [
            ("2024-01-07", 3, 30), ("2024-01-08", 4, 40),
        ]  # fmt: skip
        assert found.splits["train"].num_rows == 7
        assert found.creator == {"run_id": "night"}
    for given in ("", "abc", "newest", wanted[:5], "../../x", wanted + "0"):
        status, said = refused(version(shelf, given))
        assert (status, said) == (422, f"version {given!r}: give at least 6 of its hexadecimal digits")
    assert refused(version(shelf, "0" * 64))[0] == 404


def test_two_snapshots_differ_in_columns_and_periods(shelf: Shelf) -> None:
    before = commit(shelf, 9, {6: 3, 7: 3, 8: 4})
    columns = {"at": COLUMNS["at"], "page": "Int64", "visitor": "Int64"}
    after = commit(shelf, 10, {7: 3, 8: 5, 9: 1}, columns)
    found = asyncio.run(difference(shelf, before[:8], after))
    assert (found.before, found.after) == (before, after)
    assert (found.columns_added, found.columns_removed) == ({"visitor": "Int64"}, {"seconds": "Float64"})
    assert found.columns_retyped == {"page": ("String", "Int64")}
    assert [(each.name, each.rows_before, each.rows_after) for each in found.periods] == [
        ("2024-01-06", 3, None), ("2024-01-08", 4, 5), ("2024-01-09", None, 1),
    ]  # fmt: skip
    same = asyncio.run(difference(shelf, before, before))
    assert (same.periods, same.columns_added) == ([], {})


def test_one_version_at_several_places_is_one(shelf: Shelf) -> None:
    made = {commit(shelf, 9, {8: 4}, settings=settings) for settings in ("0" * 12, "1" * 12)}
    assert len(made) == 1
    assert asyncio.run(version(shelf, made.pop())).num_rows == 4


def test_a_deprecated_snapshot_says_why(shelf: Shelf) -> None:
    wanted = commit(shelf, 9, {8: 4})
    mark = {"reason": "rows twice", "by": "ana", "at": "2024-01-11T00:00:00+00:00"}
    obstore.put(shelf.store, deprecation_key("visits", wanted), json.dumps(mark).encode())
    (found,) = asyncio.run(versions(shelf, limit=3, cursor="")).snapshots
    assert found.deprecated is not None
    assert (found.deprecated.reason, found.deprecated.by) == ("rows twice", "ana")


DATASET = {
    "kind": "dataset", "artifacts": {}, "place": "p", "name": "n", "version": "1", "schema_hash": "0", "num_rows": 1,
    "num_bytes": 1, "interval_start": "2024-01-01", "interval_end": "2024-01-02",
}  # fmt: skip
ODD_REFS = [
    *(b"", b"{}", b"null", b'{"kind": "report"}', b"\xff"),
    *(
        json.dumps(DATASET | change).encode()
        for change in ({}, {"artifacts": []}, {"version": None}, {"num_rows": "x"}, {"interval_end": None}, {"x": 1})
    ),
]


@pytest.mark.parametrize("data", ODD_REFS)
def test_a_damaged_one_is_named_and_hides_no_other(shelf: Shelf, data: bytes) -> None:
    """Broken: one bad object would hide all snapshots of a pipeline."""
    good, bad = commit(shelf, 8, {8: 4}), place("visits", f"20240109T000000Z-{'0' * 12}", "ingest")
    commit(shelf, 9, {8: 5})
    obstore.put(shelf.store, f"{bad}/ref.json", data)
    page = asyncio.run(versions(shelf, limit=3, cursor=""))
    assert ([each.version for each in page.snapshots], page.damaged) == ([good], [bad])
    assert asyncio.run(version(shelf, good)).num_rows == 4
    status, said = refused(version(shelf, "f" * 64))
    assert status == 404
    assert said.endswith(f"; {bad} cannot be read: mlops store verify says more")


@pytest.mark.parametrize("data", [b"{}", None, b'{"format": 99}'])
def test_a_damaged_manifest_is_named(shelf: Shelf, data: bytes | None) -> None:
    wanted = commit(shelf, 9, {8: 4})
    key = place("visits", "20240109T000000Z-" + "0" * 12, "ingest") + "/manifest.json"
    obstore.delete(shelf.store, key) if data is None else obstore.put(shelf.store, key, data)
    status, said = refused(version(shelf, wanted))
    assert (status, said) == (500, f"{key} is damaged or gone: mlops store verify says what it affects")


@pytest.mark.parametrize("folder", ["odd", "20240109-x", "20240109T000000-0", "20240230T000000Z-0", ".tmp"])
def test_what_is_no_snapshot_is_passed_over(shelf: Shelf, folder: str) -> None:
    wanted = commit(shelf, 9, {8: 4})
    obstore.put(shelf.store, f"pipelines/visits/ingest/{folder}/ref.json", b"{}")
    page = asyncio.run(versions(shelf, limit=3, cursor=""))
    assert [each.version for each in page.snapshots] == [wanted]


def test_a_whole_version_is_found_among_many(shelf: Shelf) -> None:
    made = [commit(shelf, 9, {8: number}, settings=f"{number:012x}") for number in range(1, 151)]
    assert asyncio.run(version(shelf, made[0])).num_rows == 1
    assert asyncio.run(version(shelf, made[-1])).num_rows == 150
    assert asyncio.run(difference(shelf, made[0], made[-1][:12])).periods[0].rows_after == 150


def test_a_dataset_without_snapshots_has_none(shelf: Shelf) -> None:
    page = asyncio.run(versions(shelf, limit=3, cursor=""))
    assert (page.snapshots, page.damaged, page.next) == ([], [], None)
