"""
Bins in which two columns of numbers can be compared.

Their edges come from the reference: its quantiles, and an own bin for every value that many rows share. Equal widths
would put a heavy tail's values into one bin, and deciles alone would hide a mass at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import polars as pl

NUM_QUANTILES: Final = 10
MAX_POINTS: Final = 20
"""Most distinct values for which each value gets its own bin: weekdays, grades, hours of a timetable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """A column of numbers, sorted once: counts and quantiles are read off."""

    ordered: pl.Series
    """The numbers as float64, ascending, without nulls and NaN."""
    num_missing: int
    num_nan: int

    @classmethod
    def of(cls, column: pl.Series) -> Numbers:
        values = column.drop_nulls().cast(pl.Float64).sort()  # NaN is sorted last
        num_nan = int(values.is_nan().sum()) if column.dtype.is_float() else 0
        return cls(ordered=values.head(values.len() - num_nan), num_missing=column.null_count(), num_nan=num_nan)

    def up_to(self, edges: Sequence[float]) -> list[int]:
        """Return the number of values that are at most each of the edges."""
        return self.ordered.search_sorted(pl.Series(edges, dtype=pl.Float64), side="right").to_list()

    def below(self, edges: Sequence[float]) -> list[int]:
        """Return the number of values that are less than each of the edges."""
        return self.ordered.search_sorted(pl.Series(edges, dtype=pl.Float64), side="left").to_list()


def quantiles(ordered: pl.Series, num_buckets: int = NUM_QUANTILES) -> list[float]:
    """
    Return values that cut a sorted column into parts of equal counts, from its smallest to its largest.

    :return: ``num_buckets + 1`` of them, none for an empty column
    """
    if ordered.is_empty():
        return []
    last = ordered.len() - 1
    return [float(ordered[round(step * last / num_buckets)]) for step in range(num_buckets + 1)]


def reference_edges(numbers: Numbers) -> list[float]:
    """
    Return the edges of bins ``(edge, next edge]`` over the values, strictly ascending.

    A value of its own, ``v``, stands in the bin between the float before it and itself.
    """
    ordered = numbers.ordered
    if ordered.is_empty():
        return []
    points = _points(numbers)
    rest = ordered.filter(~ordered.is_in(points)) if points else ordered
    edges = {_before(float(ordered[0])), float(ordered[-1]), *quantiles(rest), *points, *map(_before, points)}
    return sorted(edges)


def is_point(low: float, high: float) -> bool:
    """Return True if a bin holds a single value, its upper edge."""
    return low == _before(high)


def counts(numbers: Numbers, edges: Sequence[float]) -> list[int]:
    """Count the values up to the first edge, in each bin between edges, and above the last one."""
    positions = [0, *numbers.up_to(edges), numbers.ordered.len()]
    return [above - below for below, above in pairwise(positions)]


def _points(numbers: Numbers) -> list[float]:
    ordered = numbers.ordered
    if ordered.n_unique() <= MAX_POINTS:
        return [float(value) for value in ordered.unique(maintain_order=True)]
    # A value that a tenth of the rows share is at one of the deciles.
    candidates = sorted(set(quantiles(ordered)))
    held = zip(candidates, numbers.below(candidates), numbers.up_to(candidates), strict=True)
    return [value for value, first, behind in held if behind - first >= ordered.len() / NUM_QUANTILES]


def _before(value: float) -> float:
    return math.nextafter(value, -math.inf)
