from __future__ import annotations

import polars as pl
import pytest

from mlops.data.engine.dtypes import dtype_of


@pytest.mark.parametrize(
    "dtype",
    [
        pl.Int64(),
        pl.String(),
        pl.Null(),
        pl.Categorical(),
        pl.Datetime("us", "America/New_York"),
        pl.Datetime("ms"),
        pl.Duration("us"),
        pl.Decimal(10, 2),
        pl.Enum(["a", "b, c"]),
        pl.List(pl.Array(pl.Int8, 3)),
        pl.Struct({"a": pl.Int8, "b": pl.List(pl.String)}),
    ],
    ids=str,
)
def test_a_type_comes_back_from_its_text(dtype: pl.DataType) -> None:
    """Otherwise a served value would be of another type than the fitted one."""
    assert dtype_of(str(dtype)) == dtype


@pytest.mark.parametrize("text", ["Strin", "read_csv('x')", "1", "String.x"])
def test_other_text_is_refused(text: str) -> None:
    """It is read out of a stored file, and must not be run."""
    with pytest.raises(ValueError, match="type"):
        dtype_of(text)
