"""
Answer rows with a model, in a process that has the library and the packages which the model was registered with.

This file goes along in each model's package, and is run years later by another release: what it is given and what it
leaves are a format of files. Change neither without a new :data:`FORMAT`.

``python -m mlops.serving.answering DATA ROWS RESULT``: ``DATA`` is the folder of the model, ``ROWS`` one of files of
raw rows in Arrow's IPC format. In the folder ``RESULT`` it writes a file of the same name for each, with the columns of
the answer, and then :data:`DOCUMENT`, which says under ``error`` why there are no answers, if there are none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import polars as pl

from mlops.contract.step import StepError
from mlops.predictor.predictor import Predictor, open_predictor
from mlops.process import die_with_parent

FORMAT: Final = 1
DOCUMENT: Final = "answered.json"


def answer(model: Predictor, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of a served answer, row for row; null for a row that the feature set leaves out."""
    found = {name: pl.Series(name, values) for name, values in model.answer(rows).items()}
    # NaN stands for no answer in arrays, which have no null.
    return pl.DataFrame(found).with_columns(pl.selectors.float().fill_nan(None))


def main(data: Path, rows: Path, result: Path) -> None:
    die_with_parent()
    document: dict[str, Any] = {"format": FORMAT}
    try:
        model = open_predictor(data)
        for file in sorted(rows.iterdir()):
            answer(model, pl.read_ipc(file)).write_ipc(result / file.name, compat_level=pl.CompatLevel.oldest())
    except StepError as error:
        document["error"] = str(error)
    (result / DOCUMENT).write_text(json.dumps(document))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
