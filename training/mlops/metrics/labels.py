"""
Metrics of rows with several labels ``[N, L]``, each 0 or 1, of which predictions ``[N, L]`` are the logits.
:mod:`mlops.metrics.classes` has those that a single label has too, and takes from here what of them is another thing.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from mlops.metrics.binary import WeightedAuc
from mlops.metrics.predictions import Predictions
from mlops.metrics.weighted import Array, Weighted, as_ones, mean_ratio, of_sums, ratio_of_sums

_NOTHING_POSITIVE: Final = "no label and no prediction of the {} rows is positive"
_MANY: Final = 1_000_000
"""Labels of rows of which each weighting takes some hundredths of a second."""


def weighted_hamming_loss(predictions: Predictions, parameter: None) -> Weighted:
    """Return the share of all labels of all rows that are wrong, where what is more probable than not is predicted."""
    wrong = as_ones((predictions.labels > 0) != (predictions.predicted > 0)).mean(axis=1)
    return ratio_of_sums(wrong, np.ones(len(wrong)), predictions.offsets)


def weighted_micro_f1(predictions: Predictions, parameter: None) -> Weighted:
    """Return the F1 score of all labels of all rows taken together."""
    actual, predicted = (as_ones(each > 0) for each in (predictions.labels, predictions.predicted))
    return ratio_of_sums(
        2 * (actual * predicted).sum(axis=1),
        (actual + predicted).sum(axis=1),
        predictions.offsets,
        undefined=_NOTHING_POSITIVE.format(predictions.num_rows),
    )


def weighted_macro_f1_of_labels(predictions: Predictions) -> Weighted:
    """Return the mean of the F1 scores of the labels, over those that some row has or is predicted to have."""
    actual, predicted = (as_ones(each > 0) for each in (predictions.labels, predictions.predicted))
    num_labels = actual.shape[1]
    return of_sums(
        np.concatenate([2 * actual * predicted, actual + predicted], axis=1),
        lambda sums: np.array([mean_ratio(each[:num_labels], each[num_labels:]) for each in sums]),
        predictions.offsets,
        undefined=_NOTHING_POSITIVE.format(predictions.num_rows),
    )


def weighted_subset_accuracy(predictions: Predictions) -> Weighted:
    """Return the share of rows of which all labels are right."""
    right = as_ones(((predictions.labels > 0) == (predictions.predicted > 0)).all(axis=1))
    return ratio_of_sums(right, np.ones(len(right)), predictions.offsets)


def weighted_macro_auc(predictions: Predictions, parameter: None) -> Weighted:
    """Return the mean of the labels' areas under the ROC curve, over those of which rows have both values."""
    labels, scores = predictions.labels, predictions.predicted
    by_label = [WeightedAuc(labels[:, number], scores[:, number]) for number in range(labels.shape[1])]
    sample = predictions.sample_of_rows()

    def value(weights: Array) -> float:
        found = np.array([each(weights) for each in by_label])
        known = np.isfinite(found)
        return float(found[known].mean()) if known.any() else float("nan")

    return Weighted(
        values=lambda weights: np.array([value(each[sample]) for each in weights]),
        num_samples=predictions.num_samples,
        undefined=f"no label of the {predictions.num_rows} rows is 0 in some and 1 in others",
        slow=labels.size > _MANY,
    )
