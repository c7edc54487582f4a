"""The figures of the report, for hold-outs of every shape."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
from measured import objective_of

from mlops.metrics.predictions import Predictions

CASES: dict[str, dict[str, Any]] = {
    "ranking": {},
    "binary": {},
    "regression": {},
    "quantiles": {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]},
    "poisson": {"loss": "poisson"},
    "multiclass": {"classes": 4},
    "many classes": {"classes": 300},
    "multilabel": {"labels": ["sport", "politics", "weather"]},
    "many labels": {"labels": [f"label {number}" for number in range(300)]},
}
METRICS = {
    "ranking": "ndcg@10", "binary": "auc", "quantiles": "pinball", "multiclass": "accuracy", "many classes": "macro_f1",
    "multilabel": "macro_auc", "many labels": "micro_f1",
}  # fmt: skip
NAMES = {"many classes": "multiclass", "many labels": "multilabel"}


def name_of(case: str) -> str:
    return NAMES.get(case, case if case in ("ranking", "binary", "multiclass", "multilabel") else "regression")


def of(case: str, labels: Any, predicted: Any) -> Predictions:
    name = name_of(case)
    labels, predicted = np.asarray(labels, np.float32), np.asarray(predicted, np.float32)
    if case == "quantiles":
        predicted = np.stack([predicted - 1, predicted, predicted + 1], axis=1)
    if name == "multiclass":
        num_classes = CASES[case]["classes"]
        labels = (labels + np.arange(len(labels))) % num_classes
        predicted = np.outer(predicted, np.linspace(-1, 1, num_classes, dtype=np.float32))
    if name == "multilabel":
        num_labels = len(CASES[case]["labels"])
        labels = np.stack([labels if number % 2 else 1 - labels for number in range(num_labels)], axis=1)
        predicted = np.outer(predicted, np.linspace(-1, 1, num_labels, dtype=np.float32))
    offsets = np.arange(0, len(labels) + 1, 2 if case == "ranking" and len(labels) % 2 == 0 else 1)
    return objective_of(name, **CASES[case]).predictions(labels, predicted, offsets)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 100])
@pytest.mark.parametrize("values", ["different", "the same", "far apart"])
@pytest.mark.parametrize("with_champion", [False, True])
def test_figures_are_drawn_of_any_hold_out(case: str, num_rows: int, values: str, with_champion: bool) -> None:
    """Broken: an evaluation of hours would end with an error of its last picture, or with an empty one."""
    rng = np.random.default_rng(num_rows)
    labels = rng.integers(0, 2, num_rows).astype(np.float32)
    predicted = rng.normal(size=num_rows)
    if values == "the same":
        labels, predicted = np.ones(num_rows, np.float32), np.ones(num_rows)
    if values == "far apart":
        predicted = predicted * 1e17
    models = {"candidate": of(case, labels, predicted)}
    if with_champion:
        models["champion"] = of(case, labels, predicted[::-1])
    draw = objective_of(name_of(case), **CASES[case]).figures()
    assert draw is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for title, figure in draw(models, METRICS.get(case, "rmse")):
            assert title
            figure.savefig(io.BytesIO(), format="svg")
