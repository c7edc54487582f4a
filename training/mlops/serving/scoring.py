"""
Score rows with a model, in a process that has the library and the packages which the model was registered with.

This file goes along in each model's package, and is run years later by another release: what it is given and what it
leaves are a format of files. Change neither without a new :data:`FORMAT`.

``python -m mlops.serving.scoring DATA ROWS RESULT``: ``DATA`` is the folder of the model, ``ROWS`` a file of raw rows
in Arrow's IPC format. In the folder ``RESULT`` it writes :data:`ARRAYS` and then :data:`DOCUMENT`, which says what the
model is or, under ``error``, why there are no scores.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from mlops.contract.step import StepError
from mlops.predictor.documents import DocumentsPredictor
from mlops.predictor.predictor import Predictor, open_predictor
from mlops.predictor.rows import RowsPredictor
from mlops.process import die_with_parent

FORMAT: Final = 1
ARRAYS: Final = "scored.npz"
"""``rows``, ``labels``, ``predicted`` and ``offsets``: see :class:`mlops.predictor.scored.Scored`."""
DOCUMENT: Final = "scored.json"


def describe(model: Predictor) -> dict[str, Any]:
    """
    Return what must be known of a model to compare it with another: its objective, what its labels stand for and, of
    documents, its tokens.
    """
    tokens = model.tokens.state if isinstance(model, DocumentsPredictor) else None
    return {
        "objective": model.objective.name,
        "kind": model.objective.kind,
        "settings": model.objective.settings.model_dump(mode="json"),
        "classes": model.fitted.feature_set.class_names if isinstance(model, RowsPredictor) else [],
        "tokens": tokens and {part: tokens[part] for part in ("format", "tokenizer", "fitted")},
    }


def main(data: Path, rows: Path, result: Path) -> None:
    die_with_parent()
    try:
        model = open_predictor(data)
        scored = model.score(pl.read_ipc(rows))
    except StepError as error:
        document: dict[str, Any] = {"error": str(error)}
    else:
        found = scored.predictions
        np.savez(
            result / ARRAYS,
            rows=scored.rows,
            labels=found.labels,
            predicted=found.predicted,
            offsets=found.offsets,
        )
        document = describe(model)
    (result / DOCUMENT).write_text(json.dumps({"format": FORMAT, **document}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
