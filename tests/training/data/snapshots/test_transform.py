from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl
import pytest

from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.engines import collect, on_spark
from mlops.data.engine.spark import spark_session
from mlops.data.snapshots.transform import explained, rows_in_window, transform_sources
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

    table = collect(transform_sources(sources, PATH, home)).sort("visitor")

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
        transform_sources(sources, PATH, home).collect_schema()


def test_an_event_time_of_a_local_zone_is_the_same_instant() -> None:
    at = [datetime(2024, 1, day, 23, tzinfo=UTC) for day in (1, 2, 3)]
    table = nw.from_native(pl.LazyFrame({"at": at}).with_columns(pl.col("at").dt.convert_time_zone("Asia/Tokyo")))
    window = Window.before(datetime(2024, 1, 3, tzinfo=UTC), 1, "UTC")

    rows = collect(rows_in_window(table, "at", window, sources={}, transform=None))

    assert rows["at"].to_list() == at[1:2]
    assert rows.schema["at"] == pl.Datetime("us", "UTC")
