"""Metrics of estimates of a number, and of its quantiles, of which the median stands for the estimate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlops.contract.objective_settings import RegressionSettings
from mlops.contract.step import BadConfigError
from mlops.metrics.predictions import Floats, Predictions
from mlops.metrics.weighted import Array, Weighted, of_sums, ratio, ratio_of_sums


def weighted_mae(predictions: Predictions, parameter: None) -> Weighted:
    """Return the mean absolute error."""
    return _mean(np.abs(_errors(predictions)), predictions)


def weighted_rmse(predictions: Predictions, parameter: None) -> Weighted:
    """Return the root of the mean squared error."""
    squares = _errors(predictions) ** 2
    terms = np.stack([squares, np.ones(len(squares))], axis=1)
    return of_sums(terms, lambda sums: np.sqrt(ratio(sums)), predictions.offsets)


def weighted_r2(predictions: Predictions, parameter: None) -> Weighted:
    """Return the coefficient of determination: 1 less the squared errors over those of the mean label."""
    # Around the mean of all, so that nothing is lost to the difference of large sums.
    labels = predictions.labels.astype(np.float64)
    labels = labels - labels.mean()
    terms = np.stack([_errors(predictions) ** 2, labels**2, labels, np.ones(len(labels))], axis=1)
    undefined = f"all {len(labels)} labels are {predictions.labels[0]:g}; R2 needs labels that differ"
    return of_sums(terms, _determination, predictions.offsets, undefined=undefined)


def weighted_poisson_deviance(predictions: Predictions, parameter: None) -> Weighted:
    """Return the mean Poisson deviance, ``2 (y log(y / p) - y + p)``; labels at least 0, predictions above 0."""
    labels, predicted = predictions.labels.astype(np.float64), point(predictions).astype(np.float64)
    defined = (labels >= 0) & (predicted > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.where(labels > 0, labels * np.log(labels / predicted), 0.0)
    deviances = np.where(defined, 2 * (logs - labels + predicted), np.nan)
    undefined = f"{int((~defined).sum())} of {len(labels)} rows have a label below 0, or a prediction not above 0"
    return _mean(deviances, predictions, undefined=undefined)


def weighted_pinball(predictions: Predictions, parameter: None) -> Weighted:
    """Return the mean pinball loss (Koenker & Bassett 1978) of all quantiles."""
    levels = np.array(_levels(predictions))
    errors = predictions.labels.astype(np.float64)[:, None] - _by_level(predictions)
    return _mean(np.maximum(levels * errors, (levels - 1) * errors).mean(axis=1), predictions)


def weighted_quantile_error(predictions: Predictions, parameter: None) -> Weighted:
    """
    Return the calibration error of quantiles: the mean distance of each level to the share of labels that are not above
    that quantile.
    """
    levels = np.array(_levels(predictions))
    below = predictions.labels[:, None] <= _by_level(predictions)
    terms = np.concatenate([below - levels, np.ones((len(below), 1))], axis=1)
    return of_sums(terms, _mean_distance, predictions.offsets)


def point(predictions: Predictions) -> Floats:
    """Return one estimate for each row, ``[N]``: the median where quantiles are predicted."""
    if predictions.predicted.ndim == 1:
        return predictions.predicted
    return predictions.predicted[:, _levels(predictions).index(0.5)]


def _levels(predictions: Predictions) -> list[float]:
    """:raises BadConfigError: where no quantiles are predicted"""
    settings = predictions.settings
    if not isinstance(settings, RegressionSettings) or not settings.quantiles:
        raise BadConfigError(
            "quantiles are predicted with train.objective_settings: {loss: quantile, quantiles: [...]}"
        )
    return settings.quantiles


def _by_level(predictions: Predictions) -> npt.NDArray[np.float64]:
    return predictions.predicted.astype(np.float64).reshape(predictions.num_rows, -1)


def _errors(predictions: Predictions) -> Array:
    errors: Array = point(predictions).astype(np.float64) - predictions.labels
    return errors


def _mean(values: Array, predictions: Predictions, *, undefined: str = "") -> Weighted:
    return ratio_of_sums(values, np.ones(len(values)), predictions.offsets, undefined=undefined)


def _determination(sums: Array) -> Array:
    squared_errors, squares, labels, rows = sums.T
    total = squares - ratio(np.stack([labels**2, rows], axis=1))
    # What rounding leaves of labels that are all the same is nothing.
    return 1 - ratio(np.stack([squared_errors, np.where(total > 1e-12 * squares, total, 0.0)], axis=1))


def _mean_distance(sums: Array) -> Array:
    return ratio(np.stack([np.abs(sums[:, :-1]).mean(axis=1), sums[:, -1]], axis=1))
