from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from measured import metric_of, predictions_of

from mlops.contract.metrics import MetricSpec
from mlops.contract.step import BadConfigError
from mlops.evaluation.bias import group_differences
from mlops.evaluation.slice_metrics import slices
from mlops.metrics.metric import load_metric
from mlops.metrics.predictions import Predictions
from mlops.metrics.weighted import Weighted

LABELS = np.repeat([1.0, 0.0], 20)


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        pytest.param(pl.Series([[1], [1, 2]] * 20), "List(Int64)", id="list"),
        pytest.param(pl.Series([[1, 2], [3, 4]] * 20, dtype=pl.Array(pl.Int64, 2)), "Array(Int64", id="array"),
        pytest.param(pl.Series([{"x": 1}, {"x": 2}] * 20), "Struct({'x': Int64})", id="struct"),
        pytest.param(pl.Series([b"\xff", b"a"] * 20), "Binary", id="binary"),
    ],
)
def test_a_column_without_groups_is_named_with_its_type(column: pl.Series, dtype: str) -> None:
    """Broken: the user would read of a cast in somebody's library."""
    rows = pl.DataFrame({"tags": column})
    with pytest.raises(BadConfigError) as error:
        slices(metric_of("auc"), rows, ["tags"], predictions_of(LABELS, LABELS), None)
    assert f"evaluate.slices: column 'tags' is of type {dtype}" in str(error.value)
    with pytest.raises(BadConfigError, match="evaluate.fairness: column 'tags' is of type"):
        group_differences(rows, ["tags"], labels=LABELS, candidate=LABELS, champion=None)


def test_a_slice_that_cannot_be_measured_comes_last() -> None:
    """Broken: it would be missing, as if there were no such rows."""
    rows = pl.DataFrame({"half": ["A"] * 20 + ["B"] * 20, "every": ["C", "D"] * 20})
    found = slices(metric_of("auc"), rows, ["half", "every"], predictions_of(LABELS, LABELS), None)
    assert [(each.value, each.estimate is None) for each in found] == [
        ("C", False),
        ("D", False),
        ("A", True),
        ("B", True),
    ]


def of_both_classes(predictions: Predictions, parameter: None) -> Weighted:
    """Return a metric as scikit-learn's log loss: it raises where there is one class only."""

    def value(weights: np.ndarray) -> float:
        kept = np.repeat(predictions.labels, weights.astype(int))
        if len(np.unique(kept)) < 2:
            raise ValueError("y_true contains only one label (1.0)")
        return float(kept.mean())

    return Weighted(
        values=lambda weights: np.array([value(each) for each in weights]), num_samples=predictions.num_samples
    )


def test_a_metric_of_ones_own_that_fails_on_a_slice_fails_nothing() -> None:
    """Broken: a slice of one class would end the evaluation, though the metric is fine on the whole."""
    own = MetricSpec(measures=["relevance"], higher_is_better=True, title="own", weighted=of_both_classes)
    metric = load_metric("include.toy.metrics:OWN", lambda path: own)
    rows = pl.DataFrame({"half": ["A"] * 20 + ["B"] * 20, "every": ["C", "D"] * 20})
    candidate = predictions_of(LABELS, LABELS)
    assert metric.measure(candidate) == 0.5
    found = slices(metric, rows, ["half", "every"], candidate, None)
    assert [(each.value, each.estimate is None) for each in found] == [
        ("C", False),
        ("D", False),
        ("A", True),
        ("B", True),
    ]
