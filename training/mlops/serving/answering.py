"""
Answer rows with a model, in a process that has the library and the packages which the model was registered with.

This file goes along in each model's package, and is run years later by another release: what it is given and what it
leaves are a format of files. Change neither without a new :data:`FORMAT`.

``python -m mlops.serving.answering DATA ROWS RESULT``: ``DATA`` is the folder of the model, ``ROWS`` a file of raw rows
in Arrow's IPC format. In the folder ``RESULT`` it writes :data:`ANSWERS`, the columns of the answer in the same format,
and then :data:`DOCUMENT`, which says under ``error`` why there are no answers, if there are none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import polars as pl

from mlops.contract.step import StepError
from mlops.predictor.predictor import Predictor, open_predictor
from mlops.process import die_with_parent

FORMAT: Final = 1
_TYPES: Final[Mapping[str, pl.DataType]] = {
    "boolean": pl.Boolean(), "integer": pl.Int32(), "long": pl.Int64(), "float": pl.Float32(), "double": pl.Float64(),
    "string": pl.String(), "binary": pl.Binary(), "datetime": pl.Datetime("us"),
}  # fmt: skip
"""Polars' types by MLflow's names."""
ANSWERS: Final = "answers.arrow"
DOCUMENT: Final = "answered.json"


def answer(model: Predictor, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of a served answer, row for row; null for a row that the feature set leaves out."""
    types = {name: _TYPES[type_] for name, type_ in model.objective.functions.columns.items()}
    return pl.DataFrame([_column(name, values, types[name]) for name, values in model.answer(rows).items()])


def _column(name: str, values: npt.NDArray[Any], dtype: pl.DataType) -> pl.Series:
    if values.dtype == object:
        return pl.Series(name, values.tolist(), dtype)
    # NaN stands for no answer in arrays, which have no null.
    found = pl.Series(name, values)
    return (found.fill_nan(None) if found.dtype.is_float() else found).cast(dtype)


def main(data: Path, rows: Path, result: Path) -> None:
    die_with_parent()
    document: dict[str, Any] = {"format": FORMAT}
    try:
        found = answer(open_predictor(data), pl.read_ipc(rows))
        found.write_ipc(result / ANSWERS, compat_level=pl.CompatLevel.oldest())
    except StepError as error:
        document["error"] = str(error)
    (result / DOCUMENT).write_text(json.dumps(document))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
