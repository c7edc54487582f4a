"""
Metrics of classifications: in several classes, of which predictions ``[N, K]`` are the logits and a label is the
number; in two, of which ``[N]`` are the logits of the positive one; and by several labels ``[N, L]``, of which each has
its logit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from mlops.metrics.binary import log_losses, probabilities
from mlops.metrics.labels import weighted_macro_f1_of_labels, weighted_subset_accuracy
from mlops.metrics.predictions import Floats, IntArray, Predictions
from mlops.metrics.weighted import Array, Weighted, as_ones, mean_ratio, of_sums, ratio, ratio_of_sums

CALIBRATION_BINS: Final = 15


def weighted_log_loss(predictions: Predictions, parameter: None) -> Weighted:
    """Return the mean cross entropy of the rows, in nats; of several labels it is the mean of theirs."""
    if predictions.predicted.ndim == 1 or predictions.labels.ndim == 2:
        losses = log_losses(predictions.labels, predictions.predicted).reshape(predictions.num_rows, -1).mean(axis=1)
    else:
        rows = np.arange(predictions.num_rows)
        losses = -_log_probabilities(predictions.predicted)[rows, predictions.labels.astype(np.int64)]
    return ratio_of_sums(losses, np.ones(len(losses)), predictions.offsets)


def weighted_calibration_error(predictions: Predictions, parameter: None) -> Weighted:
    """
    Return the expected calibration error over bins of equal counts (Nixon et al. 2019): the mean distance of predicted
    probability and observed frequency; of several classes, of the most probable one's (Guo et al. 2017), of several
    labels of all of them. It is above 0 by chance alone, the more the fewer rows there are.
    """
    if predictions.predicted.ndim == 1 or predictions.labels.ndim == 2:
        scores: Floats = predictions.predicted.reshape(-1)
        probability, happened = probabilities(scores), predictions.labels.reshape(-1) > 0
    else:
        probability = scores = class_probabilities(predictions.predicted).max(axis=1)
        happened = predictions.predicted.argmax(axis=1) == predictions.labels
    edges = np.quantile(scores, np.linspace(0, 1, CALIBRATION_BINS + 1)[1:-1])
    terms = np.zeros((predictions.num_rows, CALIBRATION_BINS + 1))
    each_row = len(scores) // predictions.num_rows
    rows = np.repeat(np.arange(predictions.num_rows), each_row)
    np.add.at(terms, (rows, np.searchsorted(edges, scores, side="right")), happened - probability)
    terms[:, -1] = each_row
    return of_sums(terms, _summed_error, predictions.offsets)


def weighted_accuracy(predictions: Predictions, parameter: None) -> Weighted:
    """Return the share of rows whose most probable class is theirs; of several labels, of which all are right."""
    if predictions.labels.ndim == 2:
        return weighted_subset_accuracy(predictions)
    labels, chosen, _ = _classified(predictions)
    return ratio_of_sums(as_ones(labels == chosen), np.ones(len(labels)), predictions.offsets)


def weighted_top_k_accuracy(predictions: Predictions, parameter: float) -> Weighted:
    """
    Return the share of rows whose class is among the ``K`` most probable ones; of equal ones the first counts, as
    where one is predicted.
    """
    scores, labels = predictions.predicted, predictions.labels.astype(np.int64)[:, None]
    own = np.take_along_axis(scores, labels, axis=1)
    before = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < labels))
    return ratio_of_sums(as_ones(before.sum(axis=1) < parameter), np.ones(len(own)), predictions.offsets)


def weighted_balanced_accuracy(predictions: Predictions, parameter: None) -> Weighted:
    """Return the mean over the classes that occur of the share of their rows which are found."""
    labels, chosen, num_classes = _classified(predictions)
    found = labels == chosen

    def value(weights: Array) -> float:
        rows, right = (_by_class(labels, each, num_classes) for each in (weights, weights * found))
        return mean_ratio(right, rows)

    return _by_rows(value, predictions)


def weighted_macro_f1(predictions: Predictions, parameter: None) -> Weighted:
    """Return the mean of the F1 scores of classes or labels, over those that occur or are predicted."""
    if predictions.labels.ndim == 2:
        return weighted_macro_f1_of_labels(predictions)
    labels, chosen, num_classes = _classified(predictions)
    found = labels == chosen

    def value(weights: Array) -> float:
        rows, right = (_by_class(labels, each, num_classes) for each in (weights, weights * found))
        return mean_ratio(2 * right, rows + _by_class(chosen, weights, num_classes))

    return _by_rows(value, predictions)


def class_probabilities(logits: Floats) -> npt.NDArray[np.float64]:
    """Return ``[N, K]``, which add up to 1 in each row."""
    found: npt.NDArray[np.float64] = np.exp(_log_probabilities(logits))
    return found


def _log_probabilities(logits: Floats) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def _classified(predictions: Predictions) -> tuple[IntArray, IntArray, int]:
    """Return the class of each row, the one predicted, and how many there are."""
    predicted = predictions.predicted
    if predicted.ndim == 1:
        return (predictions.labels > 0).astype(np.int64), (predicted > 0).astype(np.int64), 2
    return predictions.labels.astype(np.int64), predicted.argmax(axis=1), predicted.shape[1]


def _by_rows(value: Callable[[Array], float], predictions: Predictions) -> Weighted:
    sample = predictions.sample_of_rows()
    return Weighted(
        values=lambda weights: np.array([value(each[sample]) for each in weights]),
        num_samples=predictions.num_samples,
    )


def _by_class(classes: IntArray, weights: Array, num_classes: int) -> Array:
    """Return the weights of each class's rows added up, ``[K]``."""
    return np.bincount(classes, weights, num_classes).astype(np.float64)


def _summed_error(sums: Array) -> Array:
    return ratio(np.stack([np.abs(sums[:, :-1]).sum(axis=1), sums[:, -1]], axis=1))
