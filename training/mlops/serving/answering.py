"""
Answer rows with a model. As a program it works on :mod:`mlops.serving.apart`, and leaves :data:`ANSWERS`: the columns
of the answer in Arrow's IPC format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import polars as pl

from mlops.predictor.predictor import Predictor
from mlops.random_states import drawn_alike
from mlops.serving.apart import reply_to_requests

_TYPES: Final[Mapping[str, pl.DataType]] = {
    "boolean": pl.Boolean(), "integer": pl.Int32(), "long": pl.Int64(), "float": pl.Float32(), "double": pl.Float64(),
    "string": pl.String(), "binary": pl.Binary(), "datetime": pl.Datetime("us"),
}  # fmt: skip
"""Polars' types by MLflow's names."""
ANSWERS: Final = "answers.arrow"


def answer(model: Predictor, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of a served answer, row for row; null for a row that the feature set leaves out."""
    types = {name: _TYPES[type_] for name, type_ in model.objective.functions.columns.items()}
    with drawn_alike():  # a period that is answered again gets the same answers
        answers = model.answer(rows)
    return pl.DataFrame([_column(name, values, types[name]) for name, values in answers.items()])


def _column(name: str, values: npt.NDArray[Any], dtype: pl.DataType) -> pl.Series:
    if values.dtype == object:
        return pl.Series(name, values.tolist(), dtype)
    # NaN stands for no answer in arrays, which have no null.
    found = pl.Series(name, values)
    return (found.fill_nan(None) if found.dtype.is_float() else found).cast(dtype)


def _work(model: Predictor, rows: pl.DataFrame, result: Path) -> dict[str, Any]:
    answer(model, rows).write_ipc(result / ANSWERS, compat_level=pl.CompatLevel.oldest())
    return {}


if __name__ == "__main__":
    reply_to_requests(_work)
