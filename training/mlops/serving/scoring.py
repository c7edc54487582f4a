"""
Score rows with a model. As a program it works on :mod:`mlops.serving.apart`, says what the model is, and leaves
:data:`ARRAYS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from mlops.predictor.documents import DocumentsPredictor
from mlops.predictor.predictor import Predictor
from mlops.predictor.rows import RowsPredictor
from mlops.serving.apart import reply_to_requests

ARRAYS: Final = "scored.npz"
"""``rows``, ``labels``, ``predicted`` and ``offsets``: see :class:`mlops.predictor.scored.Scored`."""


def describe(model: Predictor) -> dict[str, Any]:
    """
    Return what must be known of a model to compare it with another: its objective, what its labels stand for and, of
    documents, its tokens.
    """
    features = model.fitted.feature_set if isinstance(model, RowsPredictor) else None
    tokens = model.tokens.state if isinstance(model, DocumentsPredictor) else None
    return {
        "objective": model.objective.name,
        "kind": model.objective.kind,
        "settings": model.objective.settings.model_dump(mode="json"),
        "classes": features.class_names if features is not None else [],
        "labels": features.label_names if features is not None else [],
        "tokens": tokens and {part: tokens[part] for part in ("format", "tokenizer", "fitted")},
    }


def _work(model: Predictor, rows: pl.DataFrame, result: Path) -> dict[str, Any]:
    scored = model.score(rows)
    found = scored.predictions
    np.savez(
        result / ARRAYS, rows=scored.rows, labels=found.labels, predicted=found.predicted, offsets=found.offsets
    )  # fmt: skip
    return describe(model)


if __name__ == "__main__":
    reply_to_requests(_work)
