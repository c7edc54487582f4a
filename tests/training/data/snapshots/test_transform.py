from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl
import pytest

from mlops.contract.sections.ingest import SourceSplit
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.engines import collect, on_spark
from mlops.data.engine.spark import spark_session
from mlops.data.snapshots import internal_columns
from mlops.data.snapshots.transform import Transform, explained, rows_in_window, stacked, transform_sources
from mlops.data.sources import SourceTable
from mlops.data.sources.window import Window

PATH = "include/shop/dataset.sql"


def visits() -> pl.LazyFrame:
    return pl.LazyFrame({"visitor": ["a", "b", "a"], "seconds": [1.5, 2.0, 4.0]})


def users() -> pl.LazyFrame:
    return pl.LazyFrame({"visitor": ["a", "b"], "country": ["DE", None]})


@pytest.fixture(params=["polars", "spark"])
def sources(request: pytest.FixtureRequest) -> dict[str, SourceTable]:
    def source(piece: Any) -> SourceTable:
        rows = nw.from_native(piece()) if request.param == "polars" else on_spark([piece], spark_session())
        columns = tuple(piece().collect_schema())
        return SourceTable(rows=rows, columns=columns, provenance={"num_rows": 1}, finish=lambda: None)

    return {"visits": source(visits), "users": source(users)}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "include/shop").mkdir(parents=True)
    return tmp_path


@pytest.mark.server
def test_sql_means_the_same_on_both_engines(sources: dict[str, SourceTable], home: Path) -> None:
    (home / PATH).write_text(
        "/* by country */ WITH total AS (SELECT visitor, SUM(seconds) AS seconds FROM visits GROUP BY visitor)\n"
        "SELECT total.visitor, country, seconds FROM total JOIN users ON total.visitor = users.visitor"
    )

    table = collect(transform_sources(sources, Transform.load(PATH, home))).sort("visitor")

    assert table.rows() == [("a", "DE", 5.5), ("b", None, 2.0)]


@pytest.mark.server
@pytest.mark.parametrize(
    ("query", "message"),
    [
        pytest.param("SELECT visitor, country FROM visits", "country", id="column"),
        pytest.param("SELECT visitor FROM visit", "visit", id="table"),
        pytest.param("SELECT visitor FROM WHERE", "dataset.sql", id="syntax"),
    ],
)
def test_sql_that_does_not_fit_is_no_matter_of_trying_again(
    sources: dict[str, SourceTable], home: Path, query: str, message: str
) -> None:
    (home / PATH).write_text(query)

    with pytest.raises((BadConfigError, BadDataError), match=message), explained(PATH, sources):
        transform_sources(sources, Transform.load(PATH, home)).collect_schema()


@pytest.mark.parametrize("name", ["__period", "__split", "__row"])
def test_a_column_with_a_name_that_steps_need_is_refused(name: str) -> None:
    """Broken: it is dropped where rows are out of order and kept where they are in it, so that equal rows differ."""
    at = [datetime(2024, 1, day, 12, tzinfo=UTC) for day in (1, 2)]
    table = nw.from_native(pl.LazyFrame({"at": at, name: [1, 2]}))
    window = Window.before(datetime(2024, 1, 3, tzinfo=UTC), 2, "UTC")
    with pytest.raises(BadDataError, match=f"the table has a column '{name}', .*; rename it in ingest.transform"):
        rows_in_window(table, "at", window, sources={}, transform=None)


def test_all_names_that_steps_give_to_columns_of_their_own_are_refused() -> None:
    """Broken: a new one would be overwritten in some user's table, long after its ingest."""
    package = Path(internal_columns.__file__).parents[2]
    named = {name for file in package.rglob("*.py") for name in re.findall(r'"(__[a-z_]*[a-z])"', file.read_text())}
    assert named == internal_columns.INTERNAL_COLUMNS


def of_each_split(
    train: list[Any], test: list[Any], types: tuple[Any, Any]
) -> tuple[dict[str, SourceTable], SourceSplit]:
    frames = {"a": pl.LazyFrame({"id": train}, {"id": types[0]}), "b": pl.LazyFrame({"id": test}, {"id": types[1]})}
    tables = {
        name: SourceTable(rows=nw.from_native(frame), columns=("id",), provenance={}, finish=lambda: None)
        for name, frame in frames.items()
    }
    return tables, SourceSplit.model_validate({"sources": {"train": "a", "test": "b"}, "validation": 0.1})


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((pl.Int64, pl.Int32), pl.Int64),
        ((pl.UInt8, pl.Int16), pl.Int64),
        ((pl.UInt8, pl.UInt32), pl.UInt64),
        ((pl.Int64, pl.Float32), pl.Float64),
    ],
)
def test_numbers_of_several_splits_keep_their_values(types: tuple[Any, Any], expected: Any) -> None:
    """Broken: ids of two sources with integers of different lengths become floats, and two of them one."""
    tables, split = of_each_split([1, None], [2], types)
    rows = collect(stacked(tables, split))
    assert rows.schema["id"] == expected
    assert rows["id"].to_list() == [1, None, 2]


def test_long_ids_of_several_splits_stay_apart() -> None:
    """Broken: one split's ids are read as floats, and those of the others lose their last digits to fit."""
    ids = [1234567890123456789, 1234567890123456790]
    tables, split = of_each_split(ids, [1], (pl.Int64, pl.Int32))
    assert collect(stacked(tables, split))["id"].to_list() == [*ids, 1]
    with pytest.raises(BadDataError, match=r"column 'id' of source 'a' is Int64 with whole numbers from 2\^53 on"):
        stacked(*of_each_split(ids, [1.5], (pl.Int64, pl.Float64)))


def test_an_event_time_of_a_local_zone_is_the_same_instant() -> None:
    at = [datetime(2024, 1, day, 23, tzinfo=UTC) for day in (1, 2, 3)]
    table = nw.from_native(pl.LazyFrame({"at": at}).with_columns(pl.col("at").dt.convert_time_zone("Asia/Tokyo")))
    window = Window.before(datetime(2024, 1, 3, tzinfo=UTC), 1, "UTC")

    rows = collect(rows_in_window(table, "at", window, sources={}, transform=None))

    assert rows["at"].to_list() == at[1:2]
    assert rows.schema["at"] == pl.Datetime("us", "UTC")
