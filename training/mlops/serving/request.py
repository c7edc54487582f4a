"""Convert the rows of a request, as pandas holds them, to the raw columns' types."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Final

import polars as pl
import pyarrow as pa
from polars.exceptions import PolarsError

from mlops.contract.step import BadDataError
from mlops.data.engine.dtypes import zone_of

if TYPE_CHECKING:
    import pandas as pd

_LONGEST: Final = 1 << 53
"""From here on a float does not hold every whole number."""
_SHOWN: Final = 40
"""Most characters of a value in base64 that a message shows."""


def rows_of(request: pd.DataFrame, columns: pl.Schema) -> pl.DataFrame:
    """
    Convert a request to rows. Nothing is guessed: pandas has a float where an integer is missing, JSON has ISO 8601 for
    a date or a time and base64 for bytes, and that is all that is taken for another type. Whole numbers and ranges are
    checked where the features are made.

    :param request: other columns than these are ignored
    :raises BadDataError: naming the column that is not there or has values of another type
    """
    if lacking := [name for name in columns if name not in request.columns]:
        raise BadDataError(f"the request has no {', '.join(lacking)}; give null where a value is not known")
    if not len(request):
        return pl.DataFrame(schema=columns)
    return pl.DataFrame([_column(request[name], name, dtype) for name, dtype in columns.items()])


def _column(values: pd.Series, name: str, dtype: pl.DataType) -> pl.Series:
    try:
        given = pl.Series(name, pa.Array.from_pandas(values))
        if given.dtype == pl.String and dtype in (pl.Date, pl.Datetime):
            given = _parsed(given, dtype)
        elif given.dtype == pl.String and dtype == pl.Binary:
            given = _decoded(given)
    except (pa.ArrowException, PolarsError, TypeError, OverflowError, UnicodeEncodeError) as error:
        raise BadDataError(f"the request's {name!r} is not a column of {dtype}: {_first_line(error)}") from error
    if given.dtype == pl.Null or given.null_count() == len(given):
        return pl.Series(name, [None] * len(given), dtype)
    if not _fits(given.dtype, dtype):
        example = given.drop_nulls()[0]
        raise BadDataError(f"the request's {name!r} is {example!r}, of type {given.dtype}; the column is {dtype}")
    if dtype.is_integer() and given.dtype.is_float() and (long := given.filter(given.abs() >= _LONGEST)).len():
        raise BadDataError(
            f"the request's {name!r} has {long[0]:.0f} beside a value that is not known: pandas has made fractions of "
            "them, whose last digits are lost from 2^53 on. Ask for rows without a value in a request of their own"
        )
    if (
        dtype == pl.Date
        and given.dtype == pl.Datetime
        and (timed := given.filter(given != given.dt.truncate("1d"))).len()
    ):
        raise BadDataError(f"the request's {name!r} is {timed[0]}, more than a date; the column is {dtype}")
    return given


def _parsed(texts: pl.Series, dtype: pl.DataType) -> pl.Series:
    parse: Callable[[str], object] = date.fromisoformat if dtype == pl.Date else datetime.fromisoformat
    parsed = []
    for text in texts:
        try:
            parsed.append(None if text is None else parse(text))
        except ValueError as error:
            raise BadDataError(f"the request's {texts.name!r} is {text!r}, not ISO 8601: {error}") from error
    offsets = {value.tzinfo is not None for value in parsed if isinstance(value, datetime)}
    if offsets - {zone_of(dtype) is not None}:
        said = "without" if zone_of(dtype) else "with"
        raise BadDataError(f"the request's {texts.name!r} has times {said} an offset from UTC; the column is {dtype}")
    return pl.Series(texts.name, parsed, dtype)


def _decoded(texts: pl.Series) -> pl.Series:
    decoded = []
    for text in texts:
        try:
            # Without line breaks, which MLflow writes into the example of a model.
            decoded.append(None if text is None else base64.b64decode("".join(text.split()), validate=True))
        except ValueError as error:
            shown = f"{text[:_SHOWN]}..." if len(text) > _SHOWN else text
            raise BadDataError(f"the request's {texts.name!r} is {shown!r}, not base64: {error}") from error
    return pl.Series(texts.name, decoded, pl.Binary)


def _fits(given: pl.DataType, dtype: pl.DataType) -> bool:
    if dtype.is_numeric():  # decimals, too
        return given.is_numeric()
    if dtype == pl.Array:  # JSON and pandas know lists alone; their sizes are checked where the features are made
        return given in (pl.List, pl.Array)
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return given in (pl.String, pl.Categorical, pl.Enum)
    if dtype == pl.Date:
        return given == pl.Date or (given == pl.Datetime and zone_of(given) is None)
    if dtype == pl.Datetime:
        return given == pl.Datetime and (zone_of(given) is None) == (zone_of(dtype) is None)
    return given.base_type() == dtype.base_type()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
