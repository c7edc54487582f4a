from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pytest

from mlops.contract.step import BadDataError
from mlops.serving.request import rows_of

AT = datetime(2013, 1, 9, 5, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        (pl.Int64, [1, None], [1, None]),
        (pl.Int8, [3], [3]),
        (pl.Float64, [1], [1.0]),
        (pl.Boolean, [True, None], [True, None]),
        (pl.String, ["a", None], ["a", None]),
        (pl.Categorical(), ["a"], ["a"]),
        (pl.Date, ["2013-01-09", None], [date(2013, 1, 9), None]),
        (pl.Date, [pd.Timestamp("2013-01-09")], [date(2013, 1, 9)]),
        (pl.Date, [date(2013, 1, 9)], [date(2013, 1, 9)]),
        (pl.Datetime("us", "UTC"), ["2013-01-09T00:30:00-05:00", None], [AT, None]),
        (pl.Datetime("us", "UTC"), [pd.Timestamp(AT)], [AT]),
        (pl.Datetime("us"), ["2013-01-09T05:30:00"], [AT.replace(tzinfo=None)]),
        (pl.Int64, [None, None], [None, None]),
        (pl.Datetime("us", "UTC"), [None], [None]),
        (pl.String, [], []),
        (pl.Array(pl.Float32, 2), [[0.5, 1.0], None], [[0.5, 1.0], None]),
        (pl.Decimal(10, 2), [1.5, 2], [Decimal("1.50"), Decimal("2.00")]),
        (pl.Decimal(10, 2), [Decimal("1.5")], [Decimal("1.50")]),
        (pl.Binary, [b"\x89PNG", None], [b"\x89PNG", None]),
        (pl.Binary, ["iVBORw==", None], [b"\x89PNG", None]),
        (pl.Binary, ["iVBO\nRw==\n"], [b"\x89PNG"]),
        (pl.Binary, [None], [None]),
        (pl.Date, ["9999-12-31"], [date(9999, 12, 31)]),
    ],
    ids=str,
)
def test_what_pandas_and_json_make_of_a_column_is_read(dtype: pl.DataType, given: list[Any], expected: Any) -> None:
    """Broken: a value that the model was trained on could not be asked for."""
    rows = rows_of(pd.DataFrame({"x": given}), pl.Schema({"x": dtype}))
    assert rows.with_columns(pl.col("x").cast(dtype))["x"].to_list() == expected


@pytest.mark.parametrize(
    ("dtype", "given", "said"),
    [
        (pl.Int64, ["1"], "'x' is '1', of type String; the column is Int64"),
        (pl.Boolean, [1], "of type Int64; the column is Boolean"),
        (pl.Array(pl.Float32, 2), ["0.5"], "of type String; the column is Array"),
        (pl.Decimal(10, 2), ["1.5"], "of type String; the column is Decimal"),
        (pl.String, [1], "of type Int64; the column is String"),
        (pl.String, ["a", 1], "not a column of String"),
        (pl.String, ["\ud800"], "not a column of String: .*surrogates not allowed"),
        (pl.Float64, [True], "of type Boolean"),
        (pl.Date, ["2013-01-09T05:00:00"], "not ISO 8601"),
        (pl.Date, [pd.Timestamp("2013-01-09T05:00:00")], "more than a date"),
        (pl.Datetime("us", "UTC"), ["2013-01-09T05:00:00"], "without an offset"),
        (pl.Datetime("us", "UTC"), [pd.Timestamp("2013-01-09")], "the column is Datetime"),
        (pl.Datetime("us"), ["2013-01-09T05:00:00Z"], "with an offset"),
        (pl.Datetime("us"), [1357707600], "of type Int64"),
        (pl.Datetime("us"), ["now"], "'now', not ISO 8601"),
        (pl.Date, [15000], "of type Int64"),
        (pl.Date, ["03/04/2013"], "'x' is '03/04/2013', not ISO 8601"),
        (pl.Binary, ["a.png"], "'x' is 'a.png', not base64"),
        (pl.Binary, ["iVBORw"], "not base64"),
        (pl.Binary, ["ä" * 99], "not base64"),
        (pl.Binary, [7], "of type Int64; the column is Binary"),
    ],
    ids=str,
)
def test_nothing_is_guessed(dtype: pl.DataType, given: list[Any], said: str) -> None:
    """Broken: a caller's mistake would be scored as another value, without a word."""
    with pytest.raises(BadDataError, match=f"the request's .*{said}"):
        rows_of(pd.DataFrame({"x": given}), pl.Schema({"x": dtype}))


def test_a_long_number_beside_an_unknown_one_is_no_other_number() -> None:
    """Broken: a customer would be scored as another one, where pandas has made a fraction of their id."""
    schema = pl.Schema({"x": pl.Int64})
    for given in ([2**53 + 1, None], [-(2**60), None]):
        with pytest.raises(BadDataError, match=r"the request's 'x' has -?\d{16,} beside a value that is not known"):
            rows_of(pd.DataFrame({"x": given}), schema)
    assert rows_of(pd.DataFrame({"x": [2**53 + 1]}), schema)["x"].to_list() == [2**53 + 1]
    assert rows_of(pd.DataFrame({"x": [2**53 - 1, None]}), schema)["x"].to_list() == [2**53 - 1, None]


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(BadDataError, match="the request has no y; give null"):
        rows_of(pd.DataFrame({"x": [1]}), pl.Schema({"x": pl.Int64, "y": pl.Int64}))
