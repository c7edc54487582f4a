"""The uncertainty of a metric: the held-out samples are drawn again and again, the same draws for both models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from mlops.metrics.metric import Metric
from mlops.metrics.predictions import Predictions

RESAMPLES: Final = 1000
FEWER_RESAMPLES: Final = 200
"""Resamples where 1,000 would take too long: of a slow metric, which is computed anew for each, and of slices."""
CONFIDENCE: Final = 0.95
_CHUNK: Final = 50
"""Resamples held at once; of a million samples they are 400 MB."""

Array = npt.NDArray[np.float64]


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
    title: str
    """Name of the metric for people."""
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
    metric: Metric, candidate: Predictions, champion: Predictions | None = None, *, resamples: int = RESAMPLES
) -> Estimate:
    """
    Estimate a metric. Resampled are samples: queries where rows are grouped, else rows.

    :param champion: of the same rows
    :raises BadDataError: where the metric cannot be measured on these rows
    """
    models = [candidate] if champion is None else [candidate, champion]
    ready = [metric.weighted(each) for each in models]
    values = [metric.measured(weighted, each) for weighted, each in zip(ready, models, strict=True)]
    if any(each.slow for each in ready):
        resamples = min(resamples, FEWER_RESAMPLES)
    functions = [partial(metric.values, each) for each in ready]
    draws = resampled(functions, candidate.num_samples, resamples)
    return paired(metric, ready[0].num_samples, values, draws)


def paired(metric: Metric, num_samples: int, values: Sequence[float], draws: Sequence[Array]) -> Estimate:
    """
    Estimate a metric from its values on all samples and on the resamples.

    :param values: the candidate's value and, if there is a champion, the champion's
    :param draws: values that :func:`resampled` returned, on the same draws for both
    """
    intervals = [_interval(value, found) for value, found in zip(values, draws, strict=True)]
    alone = Estimate(
        metric=metric.name,
        title=metric.title,
        direction=metric.direction,
        num_samples=num_samples,
        candidate=intervals[0],
    )
    if len(values) == 1:
        return alone
    difference = draws[0] - draws[1]
    return replace(
        alone,
        champion=intervals[1],
        difference=_interval(values[0] - values[1], difference),
        gains=metric.direction * difference,
    )


def resampled(ready: Sequence[Callable[[Array], Array]], num_samples: int, resamples: int = RESAMPLES) -> list[Array]:
    """
    Return the values of each metric, ``[R]``, on the same draws of the samples.

    :param ready: functions of the samples' weights ``[R, S]``
    """
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
