"""The metrics of estimates of a number, beside scikit-learn's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from measured import metric_of, objective_of
from sklearn import metrics as sklearn_metrics

from mlops.contract.step import BadDataError
from mlops.metrics.predictions import Predictions
from mlops.metrics.regression import point

LEVELS = [0.1, 0.5, 0.9]


def of(labels: Any, predicted: Any, **settings: Any) -> Predictions:
    labels, predicted = np.asarray(labels, np.float32), np.asarray(predicted, np.float32)
    return objective_of("regression", **settings).predictions(labels, predicted, np.arange(len(labels) + 1))


def drawn(seed: int) -> tuple[Predictions, np.ndarray]:
    """Labels around some offset, of some scale, with predictions of them; and how often each row is drawn."""
    rng = np.random.default_rng(seed)
    num_rows, scale = int(rng.integers(2, 300)), 10 ** rng.uniform(-6, 6)
    labels = (scale * (rng.normal(size=num_rows) + rng.choice([0, 3, -1000]))).astype(np.float32)
    weights = rng.integers(0, 4, num_rows)
    weights[:2] = 1  # of one row there is no R2
    return of(labels, labels + scale * rng.normal(size=num_rows)), weights


def root_mean_squared_error(*arguments: Any, **more: Any) -> float:
    return float(sklearn_metrics.root_mean_squared_error(*arguments, **more))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("mae", sklearn_metrics.mean_absolute_error),
        ("rmse", root_mean_squared_error),
        ("r2", sklearn_metrics.r2_score),
    ],
)
def test_it_equals_scikit_learn_with_weights(name: str, peer: Callable[..., float], seed: int) -> None:
    predictions, weights = drawn(seed)
    metric = metric_of(name)
    labels, predicted = predictions.labels.astype(np.float64), predictions.predicted.astype(np.float64)
    assert metric.measure(predictions) == pytest.approx(peer(labels, predicted), rel=1e-9)
    found = metric.values(metric.weighted(predictions), weights[None].astype(np.float64))[0]
    assert found == pytest.approx(peer(labels, predicted, sample_weight=weights), rel=1e-8)


@pytest.mark.parametrize("seed", range(25))
def test_the_poisson_deviance_equals_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = np.exp(rng.normal(scale=3, size=200)).astype(np.float32)
    labels = rng.poisson(rates).astype(np.float32)
    expected = sklearn_metrics.mean_poisson_deviance(labels.astype(np.float64), rates.astype(np.float64))
    found = metric_of("poisson_deviance").measure(of(labels, rates, loss="poisson"))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(25))
def test_the_pinball_loss_equals_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    predictions = of(rng.normal(size=70), rng.normal(size=(70, 3)), loss="quantile", quantiles=LEVELS)
    labels, predicted = predictions.labels.astype(np.float64), predictions.predicted.astype(np.float64)
    losses = [
        sklearn_metrics.mean_pinball_loss(labels, predicted[:, place], alpha=level)
        for place, level in enumerate(LEVELS)
    ]
    assert metric_of("pinball").measure(predictions) == pytest.approx(np.mean(losses), rel=1e-9)
    assert metric_of("mae").measure(predictions) == pytest.approx(np.abs(predicted[:, 1] - labels).mean(), rel=1e-9)


def test_quantiles_that_hold_have_no_error() -> None:
    labels = np.arange(1000) / 1000
    exact = np.tile(np.float32([0.0995, 0.4995, 0.8995]), (1000, 1))
    metric = metric_of("quantile_error")
    assert metric.measure(of(labels, exact, loss="quantile", quantiles=LEVELS)) == pytest.approx(0, abs=1e-9)
    above = metric.measure(of(labels, exact + 0.1, loss="quantile", quantiles=LEVELS))
    assert above == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("offset", [0, 1e3, 1e6, -1e7])
def test_r2_loses_nothing_to_an_offset(offset: float) -> None:
    """Broken: of times, or of years in seconds, R2 would be noise."""
    labels = offset + 8.0 * np.random.default_rng(0).integers(-9, 9, 500)
    predicted = labels + 8.0 * np.random.default_rng(1).integers(-2, 2, 500)
    expected = metric_of("r2").measure(of(labels - offset, predicted - offset))
    assert metric_of("r2").measure(of(labels, predicted)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
def test_r2_of_labels_that_are_all_the_same_is_undefined(value: float) -> None:
    """Broken: what rounding leaves of a variance would be divided by."""
    with pytest.raises(BadDataError, match=re.escape("all 7 labels are")):
        metric_of("r2").measure(of(np.full(7, value), value + np.arange(7)))


@pytest.mark.parametrize(("labels", "predicted"), [([1, 2], [1.0, 0.0]), ([1, 2], [1.0, -1.0]), ([-1, 2], [1.0, 1.0])])
def test_the_poisson_deviance_refuses_what_has_no_rate(labels: list[float], predicted: list[float]) -> None:
    with pytest.raises(BadDataError, match="1 of 2 rows have a label below 0, or a prediction not above 0"):
        metric_of("poisson_deviance").measure(of(labels, predicted))


def test_the_median_stands_for_the_estimate() -> None:
    predicted = np.float32([[1, 2, 3], [4, 5, 6]])
    assert point(of([0, 0], predicted, loss="quantile", quantiles=LEVELS)).tolist() == [2, 5]
