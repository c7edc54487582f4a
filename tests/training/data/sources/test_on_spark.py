"""The same sources on Spark: executors read the pieces with the same code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from turns import on_turn

from mlops.contract.step import BadDataError
from mlops.data.engine.engines import collect

from .conftest import Read

pytest.importorskip("pyspark", reason="PySpark is not in this environment")

ORDERS = "id,at,written,amount\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    first = "1,2024-01-01T00:00:00Z,2024-01-01T01:00:00Z,10\n2,2024-01-01T00:00:00Z,2024-01-03T01:00:00Z,many\n"
    second = "1,2024-01-01T00:00:00Z,2024-01-02T01:00:00Z,11.5\n3,2024-01-02T00:00:00+02:00,2024-01-02T00:00:00Z,\n"
    (tmp_path / "a.csv").write_text(ORDERS + first)
    (tmp_path / "b.csv").write_text(ORDERS + second)
    (tmp_path / "a.jsonl").write_text('{"at": "2024-01-01T00:00:00Z", "deep": {"x": [1]}}\n')
    (tmp_path / "b.jsonl").write_text('{"at": "2024-01-02T00:00:00Z", "deep": {"y": "z"}, "n": 1}\n')
    pl.DataFrame({"n": [1, 2]}).write_parquet(tmp_path / "a.parquet")
    return tmp_path


@on_turn(1, 2)
@pytest.mark.server
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            {"path": "*.csv", "event_time": "at", "created_time": "written", "key": ["id"]}, id="corrected records"
        ),
        pytest.param({"path": "*.jsonl", "event_time": "at"}, id="json"),
        pytest.param({"path": "*.parquet"}, id="parquet"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_both_engines_read_the_same_table(read: Read, settings: dict[str, Any]) -> None:
    """A pipeline that outgrows its machine would otherwise train on other data."""
    found = {engine: read(**settings, engine=engine) for engine in ("polars", "spark")}
    polars, spark = (collect(table.rows) for table in found.values())
    by = polars.columns[0]
    assert spark.select(polars.columns).sort(by).to_dicts() == polars.sort(by).to_dicts()
    assert found["polars"].provenance == found["spark"].provenance
    assert polars.height == found["spark"].provenance["num_rows"]


def test_rows_from_postgres_come_from_one_state(read: Read, postgres: str, connect: Callable[..., None]) -> None:
    """The exporting transaction must live as long as the executors read."""
    connect("db", "postgres", postgres)
    source = read("sql", query="SELECT n FROM generate_series(1, 100) AS n", range_column="n", engine="spark")
    assert sorted(collect(source.rows)["n"]) == list(range(1, 101))
    source.finish()


@pytest.mark.server
def test_a_mistake_found_by_an_executor_reads_as_ever(read: Read, tmp_path: Path) -> None:
    """Not as a page of Java."""
    (tmp_path / "t.csv").write_text("at\nyesterday\n")
    with pytest.raises(BadDataError, match="^source 's': event_time 'at' holds 'yesterday', which is not an instant"):
        read(path="t.csv", event_time="at", engine="spark")
