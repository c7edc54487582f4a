"""The uncertainty of a metric: the held-out samples are drawn again and again, the same draws for both models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from mlops.data.shards.feature_table import offsets_of
from mlops.trainer.metrics import Floats, IntArray, Weighted, direction, fits, measure, weighted

RESAMPLES: Final = 1000
FEWER_RESAMPLES: Final = 200
"""
Resamples where 1,000 would take too long: for a recipe's own function, which is called for each, and for many slices.
"""
CONFIDENCE: Final = 0.95
_CHUNK: Final = 50
"""Resamples held at once; of a million samples they are 400 MB."""

Array = npt.NDArray[np.float64]
MetricFunction = Callable[[Floats, Floats, IntArray], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A value and its 95% bootstrap interval (percentile method)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A metric of both models on the same samples."""

    metric: str
    direction: int
    num_samples: int
    """Number of samples that count: a query without any relevant document does not."""
    candidate: Interval
    champion: Interval | None = None
    difference: Interval | None = None
    """Candidate less champion, in the metric's own direction; None without a champion."""
    gains: Array = field(default_factory=lambda: np.empty(0), repr=False)
    """``[R]``: the difference of each resample, above 0 where the candidate is better."""

    @property
    def gain(self) -> float:
        """Difference by which the candidate is better, whether higher or lower values of the metric are better."""
        assert self.difference is not None, "there is a champion"
        return self.direction * self.difference.value

    def lowest_gain(self, confidence: float) -> float:
        """Return the one-sided lower bound of the gain."""
        return float(np.nanquantile(self.gains, 1 - confidence))

    @property
    def standard_error(self) -> float:
        """Standard error of the gain."""
        return float(np.nanstd(self.gains))

    def intervals(self) -> dict[str, Interval]:
        parts = {"candidate": self.candidate, "champion": self.champion, "difference": self.difference}
        return {name: interval for name, interval in parts.items() if interval is not None}


def estimate(
    metric: str,
    labels: Floats,
    offsets: IntArray,
    candidate: Floats,
    champion: Floats | None = None,
    *,
    resamples: int = RESAMPLES,
) -> Estimate:
    """
    Estimate a known metric. Resampled are samples: queries where rows are grouped, else rows.

    :raises BadDataError: where the metric cannot be measured on these rows
    """
    models = [candidate] if champion is None else [candidate, champion]
    values = [measure(metric, labels, scores, offsets) for scores in models]
    ready = [weighted(metric, labels, scores, offsets) for scores in models]
    draws = resampled(ready, len(offsets) - 1, resamples)
    return paired(metric, direction(metric), _num_measured(metric, labels, offsets), values, draws)


def estimate_own(
    function: MetricFunction, labels: Floats, offsets: IntArray, candidate: Floats, champion: Floats | None
) -> list[Estimate]:
    """
    Estimate each metric of a recipe's own function; a higher value counts as better.

    :param function: returns the same names each time, and finite numbers of the whole
    """
    models = [candidate] if champion is None else [candidate, champion]
    values = [function(labels, scores, offsets) for scores in models]
    drawn_values: dict[str, list[list[float]]] = {name: [[] for _ in models] for name in values[0]}
    lengths = np.diff(offsets)
    for counts in _counts(len(offsets) - 1, FEWER_RESAMPLES):
        for drawn in counts:
            samples = np.repeat(np.arange(len(lengths)), drawn.astype(np.int64))
            found = offsets_of(lengths[samples])
            rows = np.arange(found[-1]) + np.repeat(offsets[:-1][samples] - found[:-1], lengths[samples])
            for number, scores in enumerate(models):
                for name, value in function(labels[rows], scores[rows], found).items():
                    drawn_values[name][number].append(value)
    return [
        paired(name, 1, len(lengths), [each[name] for each in values], [np.array(each) for each in drawn_values[name]])
        for name in values[0]
    ]


def _num_measured(metric: str, labels: Floats, offsets: IntArray) -> int:
    if not fits(metric, "ranking"):
        return len(offsets) - 1
    return int((np.maximum.reduceat(labels, offsets[:-1]) > 0).sum())


def paired(metric: str, sign: int, num_samples: int, values: Sequence[float], draws: Sequence[Array]) -> Estimate:
    """
    Estimate a metric from its values on all samples and on the resamples.

    :param values: the candidate's value and, if there is a champion, the champion's
    :param draws: values that :func:`resampled` returned, on the same draws for both
    """
    intervals = [_interval(value, found) for value, found in zip(values, draws, strict=True)]
    if len(values) == 1:
        return Estimate(metric=metric, direction=sign, num_samples=num_samples, candidate=intervals[0])
    difference = draws[0] - draws[1]
    return Estimate(
        metric=metric,
        direction=sign,
        num_samples=num_samples,
        candidate=intervals[0],
        champion=intervals[1],
        difference=_interval(values[0] - values[1], difference),
        gains=sign * difference,
    )


def resampled(ready: Sequence[Weighted], num_samples: int, resamples: int = RESAMPLES) -> list[Array]:
    """Return the values of each metric, ``[R]``, on the same draws of the samples."""
    parts = [[each(counts) for each in ready] for counts in _counts(num_samples, resamples)]
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


def _counts(num_samples: int, resamples: int) -> Iterator[Array]:
    """
    Iterate over the number of times that each sample was drawn, ``[R, S]`` in chunks; the same for every metric, model
    and retry.
    """
    chance = np.random.default_rng(0)
    for first in range(0, resamples, _CHUNK):
        drawn = chance.integers(num_samples, size=(min(_CHUNK, resamples - first), num_samples))
        yield np.stack([np.bincount(each, minlength=num_samples) for each in drawn]).astype(np.float64)


def _interval(value: float, draws: Array) -> Interval:
    # A resample of a tiny hold-out may hold one class only, and then has no AUC.
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.nanpercentile(draws, [tail, 100 - tail])
    assert math.isfinite(low), "some resample can be measured, as the whole can"
    return Interval(value=value, low=float(low), high=float(high))
