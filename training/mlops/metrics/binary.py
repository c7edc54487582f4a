"""Metrics of classifications in two classes. Predictions are logits; a label above 0 is positive."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlops.metrics.predictions import Floats, IntArray, Predictions
from mlops.metrics.weighted import Weighted, as_ones, ratio_of_sums


def weighted_auc(predictions: Predictions, parameter: None) -> Weighted:
    """See :class:`WeightedAuc`."""
    labels = predictions.labels
    by_rows, sample = WeightedAuc(labels, predictions.predicted), predictions.sample_of_rows()
    return Weighted(
        values=lambda weights: np.array([by_rows(each[sample]) for each in weights]),
        num_samples=predictions.num_samples,
        undefined=f"all {len(labels)} labels are {labels[0]:g}; AUC needs positives and negatives",
    )


def weighted_f1(predictions: Predictions, parameter: None) -> Weighted:
    """Return the F1 score of the rows that are more probable than not."""
    positive, predicted = (as_ones(each > 0) for each in (predictions.labels, predictions.predicted))
    return ratio_of_sums(
        2 * positive * predicted,
        positive + predicted,
        predictions.offsets,
        undefined=f"no label and no prediction of the {len(positive)} rows is positive",
    )


class WeightedAuc:
    """
    Area under the ROC curve (the probability that a positive outranks a negative, ties count half) for many weightings.

    Sorting once makes each weighting O(N), which is what a bootstrap needs.
    """

    def __init__(self, labels: Floats, scores: Floats) -> None:
        self._order = np.argsort(scores, kind="stable")
        self._positive = labels[self._order] > 0
        ordered = scores[self._order]
        self._ties = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, int)

    def __call__(self, weights: Floats | IntArray) -> float:
        """:return: NaN where one class is missing"""
        weights = weights[self._order]
        positive = np.add.reduceat(weights * self._positive, self._ties)
        negative = np.add.reduceat(weights * ~self._positive, self._ties)
        pairs = positive.sum() * negative.sum()
        won = (positive * (np.cumsum(negative) - negative / 2)).sum()
        return float(won / pairs) if pairs else float("nan")


def auc(labels: Floats, scores: Floats) -> float:
    """:return: NaN where one class is missing"""
    return WeightedAuc(labels, scores)(np.ones(len(labels))) if len(labels) else float("nan")


def log_losses(labels: Floats, logits: Floats) -> npt.NDArray[np.float64]:
    """Binary cross entropy of each row, in nats."""
    logits = logits.astype(np.float64)
    losses: npt.NDArray[np.float64] = np.logaddexp(0, logits) - labels * logits
    return losses


def probabilities(logits: Floats) -> npt.NDArray[np.float64]:
    # Not 1 / (1 + exp(-x)), which overflows for large negative ones.
    found: npt.NDArray[np.float64] = np.exp(-np.logaddexp(0, -logits.astype(np.float64)))
    return found
