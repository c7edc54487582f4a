"""
Metrics as functions of the samples' weights.

A bootstrap weighs the samples by how often it drew them: in this form a metric sorts and sums once, and each of a
thousand resamples is a product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlops.metrics.predictions import Floats, IntArray, Predictions

Array = npt.NDArray[np.float64]
Finish = Callable[[Array], Array]
"""Sums over the samples ``[R, M]`` to values ``[R]``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighted:
    """A metric of one model on one set of samples."""

    values: Callable[[Array], Array]
    """Weights of the samples ``[R, S]``, whole numbers, to the metric's values ``[R]``; NaN where it is not defined."""
    num_samples: int
    """Number of samples that count: a query without any relevant document does not."""
    undefined: str = ""
    """Why the metric is not defined on these rows, where it is not."""
    slow: bool = False
    """True: it takes long, and is resampled less often."""


def mean_over_samples(values: Array, *, undefined: str = "") -> Weighted:
    """
    Return the mean of the samples that can be measured.

    :param values: ``[S]``, NaN for a sample that cannot
    """
    measured = np.isfinite(values)
    terms = np.stack([np.where(measured, values, 0.0), measured], axis=1)
    return Weighted(values=lambda weights: ratio(weights @ terms), num_samples=int(measured.sum()), undefined=undefined)


def of_sums(terms: Array, finish: Finish, offsets: IntArray, *, undefined: str = "") -> Weighted:
    """
    Return a metric that needs no more of the rows than sums.

    :param terms: ``[N, M]``, to be summed over the rows
    :param finish: makes the metric of the sums
    """
    by_sample = np.add.reduceat(terms, offsets[:-1], axis=0) if len(offsets) > 1 else terms
    return Weighted(
        values=lambda weights: finish(weights @ by_sample), num_samples=len(offsets) - 1, undefined=undefined
    )


def ratio_of_sums(numerator: Array, denominator: Array, offsets: IntArray, *, undefined: str = "") -> Weighted:
    """
    Return the sum of the one over the sum of the other.

    :param numerator: ``[N]``, by rows
    :param denominator: ``[N]``, at least 0
    """
    terms = np.stack([np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)], axis=1)
    return of_sums(terms, ratio, offsets, undefined=undefined)


def as_ones(chosen: npt.NDArray[np.bool_]) -> Array:
    """Return 1 for what is chosen and 0 for what is not."""
    return chosen.astype(np.float64)


def over_drawn_rows(function: Callable[[Floats, Floats, IntArray], float], predictions: Predictions) -> Weighted:
    """
    Return a metric that is computed anew from the rows of each resample, whatever it is. It takes long.

    :param function: of labels ``[N]`` or ``[N, L]``, predictions ``[N]`` or ``[N, K]``, and offsets ``[S + 1]``
    """

    def values(weights: Array) -> Array:
        found = []
        for each in weights:
            drawn = predictions.take(np.repeat(np.arange(len(each)), each.astype(np.int64)))
            found.append(function(drawn.labels, drawn.predicted, drawn.offsets))
        return np.array(found, np.float64)

    return Weighted(values=values, num_samples=predictions.num_samples, slow=True)


def ratio(sums: Array) -> Array:
    """Return ``[R]`` of sums ``[R, 2]``: the first over the second, NaN where that is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Any = np.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1], np.nan)
    return np.asarray(found, np.float64)


def mean_ratio(parts: Array, wholes: Array) -> float:
    """Return the mean of the ratios ``[K]`` whose whole is above 0; NaN where there is none."""
    there = wholes > 0
    return float((parts[there] / wholes[there]).mean()) if there.any() else float("nan")
