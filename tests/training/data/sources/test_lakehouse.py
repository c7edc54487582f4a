"""Delta and Iceberg tables at a version."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog

from mlops.contract.step import BadConfigError, BadDataError

from .conftest import Read, rows

NOW = datetime.now(UTC).replace(year=datetime.now(UTC).year + 1)


def batch(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def between() -> datetime:
    """An instant between two commits, whose times are in milliseconds."""
    time.sleep(0.005)
    now = datetime.now(UTC)
    time.sleep(0.005)
    return now


def test_delta_at_the_version_of_the_night(read: Read, tmp_path: Path) -> None:
    """A run of an old night must not see what was committed since, nor what compaction or a delete made of it."""
    path = tmp_path / "t"
    before = between()
    write_deltalake(path, batch(1, 2))
    first = between()
    write_deltalake(path, batch(3), mode="append")
    second = between()
    DeltaTable(path).delete("n = 1")
    DeltaTable(path).optimize.compact()

    source = read("delta", path="t", as_of=first)
    assert sorted(rows(source)["n"]) == [1, 2]
    assert source.provenance["position"]["version"] == 0
    assert sorted(rows(read("delta", path="t", as_of=second))["n"]) == [1, 2, 3]
    assert sorted(rows(read("delta", path="t", as_of=NOW))["n"]) == [2, 3]
    assert sorted(rows(read("delta", path="t", version=1, as_of=before))["n"]) == [1, 2, 3]
    with pytest.raises(
        BadDataError, match=r"no version that was committed before .*; the oldest commit that it keeps is of 20"
    ):
        read("delta", path="t", as_of=before)


def test_rows_of_a_delta_table_are_held_to_their_event_time_too(read: Read, tmp_path: Path) -> None:
    at = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    write_deltalake(tmp_path / "t", pa.table({"at": at, "n": [1, 2, 3]}), partition_by=["n"])
    assert sorted(rows(read("delta", path="t", version=0, event_time="at"))["n"]) == [1, 2]


@pytest.mark.parametrize(
    ("path", "version", "message"),
    [
        pytest.param("none", None, "there is no Delta table at", id="no table"),
        pytest.param("t", 7, "at version 7", id="no version"),
    ],
)
def test_a_delta_table_that_is_not_there(
    read: Read, tmp_path: Path, path: str, version: int | None, message: str
) -> None:
    write_deltalake(tmp_path / "t", batch(1))
    with pytest.raises(BadDataError, match=message):
        read("delta", path=path, version=version)


def test_delta_in_a_bucket(read: Read, s3: str, tmp_path: Path) -> None:
    uri = f"{s3}/{tmp_path.name}/t"
    write_deltalake(uri, batch(1, 2))
    assert sorted(rows(read("delta", path=uri, as_of=NOW))["n"]) == [1, 2]


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "warehouse").mkdir()
    return {
        "name": "test",
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }


@pytest.fixture
def catalog(properties: dict[str, str]) -> Catalog:
    catalog = load_catalog(**properties)
    catalog.create_namespace("shop")
    return catalog


def test_iceberg_at_the_snapshot_of_the_night(read: Read, catalog: Catalog, properties: dict[str, str]) -> None:
    table = catalog.create_table("shop.orders", schema=batch().schema)
    before = between()
    table.append(batch(1, 2))
    first = between()
    table.append(batch(3))
    table.delete("n = 1")

    source = read("iceberg", table="shop.orders", catalog=properties, as_of=first)
    assert sorted(rows(source)["n"]) == [1, 2]
    position = json.loads(json.dumps(source.provenance["position"]))
    assert sorted(rows(read("iceberg", table="shop.orders", catalog=properties, as_of=NOW))["n"]) == [2, 3]
    again = read("iceberg", table="shop.orders", catalog=properties, as_of=before, snapshot_id=position["snapshot_id"])
    assert sorted(rows(again)["n"]) == [1, 2]
    with pytest.raises(BadDataError, match="shop.orders has no snapshot from before"):
        read("iceberg", table="shop.orders", catalog=properties, as_of=before)


def test_the_catalog_may_be_in_the_connection(
    read: Read, catalog: Catalog, properties: dict[str, str], connect: Any
) -> None:
    catalog.create_table("shop.orders", schema=batch().schema).append(batch(1))
    connect("lake", "iceberg", extra=properties)
    assert rows(read("iceberg", table="shop.orders", connection="lake", as_of=NOW)).to_dict(as_series=False) == {
        "n": [1]
    }


@pytest.mark.usefixtures("catalog")
def test_an_iceberg_table_that_is_not_there(read: Read, properties: dict[str, str]) -> None:
    with pytest.raises(BadDataError, match="the catalog has no table shop.none"):
        read("iceberg", table="shop.none", catalog=properties)
    with pytest.raises(BadConfigError, match=r"where is the catalog of shop.none\? Set catalog"):
        read("iceberg", table="shop.none")


def test_polars_sees_what_the_table_format_says(read: Read, tmp_path: Path) -> None:
    """A deletion vector or a renamed column would be missed by whoever scans the Parquet files alone."""
    path = tmp_path / "t"
    write_deltalake(path, batch(*range(100)))
    write_deltalake(path, pa.table({"n": [5], "new": ["x"]}), mode="append", schema_mode="merge")
    found = rows(read("delta", path="t", as_of=NOW))
    assert found.filter(pl.col("new").is_not_null())["n"].to_list() == [5]
    assert found.height == 101
