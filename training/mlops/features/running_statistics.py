"""
Statistics of the training split that transforms are fitted on, taken batch by batch and added up.

Both are exact: neither depends on the order of rows, on how they were batched, or on the engine that did it. So a
rebuild, and Spark, come to the same state to the last digit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import polars as pl

_FloatArray = npt.NDArray[np.float64]
_SPLITTER = 2.0**27 + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Count, range, sum and sum of squares of a number; NaN is missing."""

    num_missing: int
    num_values: int
    smallest: float
    largest: float
    total: Fraction
    squares: Fraction

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> Moments:
        known = values[~np.isnan(values)]
        smallest, largest = (float(known.min()), float(known.max())) if len(known) else (math.inf, -math.inf)
        # Beyond this, squares overflow; a transform that needs them refuses such values, as it does infinite ones.
        bounded = max(abs(smallest), abs(largest)) < 1e150
        return cls(
            num_missing=len(values) - len(known),
            num_values=len(known),
            smallest=smallest,
            largest=largest,
            total=_sum(known, np.zeros_like(known)) if bounded else Fraction(0),
            squares=_sum(*_squares(known)) if bounded else Fraction(0),
        )

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            num_missing=self.num_missing + other.num_missing,
            num_values=self.num_values + other.num_values,
            smallest=min(self.smallest, other.smallest),
            largest=max(self.largest, other.largest),
            total=self.total + other.total,
            squares=self.squares + other.squares,
        )

    @property
    def bounded(self) -> bool:
        """True if mean and standard deviation exist as floats."""
        return max(abs(self.smallest), abs(self.largest)) < 1e150

    @property
    def mean(self) -> float:
        return float(self.total / self.num_values)

    @property
    def std(self) -> float:
        """Standard deviation of the values as a population; exactly 0 if all are equal."""
        if self.smallest == self.largest:
            return 0.0
        n = self.num_values
        return math.sqrt(max(0.0, float((n * self.squares - self.total**2) / n**2)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Number of occurrences of each value; null is missing."""

    num_missing: int
    table: pl.DataFrame
    """Columns ``value`` and ``count``; memory grows with the number of distinct values."""

    @classmethod
    def of(cls, values: pl.Series) -> Counts:
        table = (
            values.alias("value").drop_nulls().to_frame().group_by("value").agg(pl.len().cast(pl.Int64).alias("count"))
        )
        return cls(num_missing=values.null_count(), table=table)

    def __add__(self, other: Counts) -> Counts:
        table = (
            pl.concat([self.table, other.table], how="vertical_relaxed").group_by("value").agg(pl.col("count").sum())
        )
        return Counts(num_missing=self.num_missing + other.num_missing, table=table)

    @property
    def num_values(self) -> int:
        return int(self.table["count"].sum())

    def quantiles(self, parts: int) -> list[float]:
        """
        Return the ``parts - 1`` values that cut the sorted values into equal parts: those of rank ``i * (n - 1) //
        parts``.

        :return: values that occur, ascending; of numbers only
        """
        ordered = self.table.sort("value")
        ends = ordered["count"].cum_sum().to_numpy()
        ranks = [i * (self.num_values - 1) // parts for i in range(1, parts)]
        return [float(ordered["value"][int(place)]) for place in np.searchsorted(ends, ranks, side="right")]


Statistic = Moments | Counts | None


def _sum(high: _FloatArray, low: _FloatArray) -> Fraction:
    """
    Return the sum of ``high + low`` in about 106 bits: pairwise, with the error of every addition kept (Knuth's
    two-sum).

    That is far more than the 12 digits that are kept of a state, so that the order of addition leaves no trace in them.
    """
    while (half := len(high) // 2) > 0:
        a, b, odd = high[:half], high[half : 2 * half], slice(2 * half, None)
        total = a + b
        part = total - a
        error = (a - (total - part)) + (b - part) + (low[:half] + low[half : 2 * half])
        high, low = np.concatenate([total, high[odd]]), np.concatenate([error, low[odd]])
    return Fraction(float(high[0])) + Fraction(float(low[0])) if len(high) else Fraction(0)


def _squares(values: _FloatArray) -> tuple[_FloatArray, _FloatArray]:
    """Return the squares, and what rounding took from each (Dekker's product)."""
    scaled = _SPLITTER * values
    head = scaled - (scaled - values)
    tail = values - head
    square = values * values
    return square, ((head * head - square) + 2 * head * tail) + tail * tail
