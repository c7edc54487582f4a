"""Transforms of numbers. A missing number is a null or a NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.features.protocol import Defined, Encoder, FloatArray, Missing, State
from mlops.features.running_statistics import Counts, Moments, Statistic

Values = npt.NDArray[np.float64]
"""Numbers as ``[N]``, NaN where missing."""


@dataclass(frozen=True, slots=True)
class Numeric(Defined):
    """
    A number, and the treatment of a missing one.

    :param missing: ``error`` refuses missing values, ``indicator`` makes their features 0 and adds a feature
        ``<column>_missing``, a number is put in their place before anything else
    """

    column: str
    missing: Missing = "error"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    def check(self, schema: Mapping[str, pl.DataType]) -> None:
        dtype = schema[self.column]
        if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
            raise self.bad_config(
                f"the column is {dtype}, not a number; use Vocabulary or Hash, or derive a number from it"
            )

    def measure(self, rows: pl.DataFrame) -> Statistic:
        return Moments.of(self._values(rows))

    def _values(self, rows: pl.DataFrame) -> Values:
        values = self._numbers(rows.get_column(self.column))
        if not isinstance(self.missing, str):
            values = np.where(np.isnan(values), float(self.missing), values)
        return values

    def _numbers(self, column: pl.Series) -> Values:
        return column.cast(pl.Float64).to_numpy()

    def _check_fit(self, statistic: Statistic) -> None:
        assert statistic is not None, "numbers are measured"
        if self.missing == "error" and statistic.num_missing:
            raise self.missing_values(statistic.num_missing, statistic.num_missing + statistic.num_values)
        if not statistic.num_values:
            raise self.bad_data("the training split has no values to fit on")

    def _encoder(self, names: tuple[str, ...], write: Callable[[Values, FloatArray], None]) -> Encoder:
        """
        Make the encoder that writes a column's features.

        :param write: writes the features ``[K, N]`` of values; those of a missing value are ignored
        """
        indicator = (f"{self.column}_missing",) if self.missing == "indicator" else ()

        def write_all(rows: pl.DataFrame, out: FloatArray) -> None:
            values = self._values(rows)
            write(values, out[: len(names)])
            missing = np.isnan(values)
            if indicator:
                out[len(names)] = missing
            if missing.any():
                if not indicator:
                    raise self.missing_values(int(missing.sum()), len(values))
                out[: len(names), missing] = 0.0

        return Encoder((*names, *indicator), write_all)


@dataclass(frozen=True, slots=True)
class Passthrough(Numeric):
    """The number as it is; for shares and flags, which have a fit scale already."""

    def fit(self, statistic: Statistic) -> State:
        self._check_fit(statistic)
        return {}

    def encoder(self, state: State) -> Encoder:
        def write(values: Values, out: FloatArray) -> None:
            out[0] = values

        return self._encoder((self.column,), write)


@dataclass(frozen=True, slots=True)
class Log(Numeric):
    """``sign(x) * log(1 + |x|)``: tames long tails, on both sides of 0. The feature is ``<column>_log``."""

    def fit(self, statistic: Statistic) -> State:
        self._check_fit(statistic)
        return {}

    def encoder(self, state: State) -> Encoder:
        def write(values: Values, out: FloatArray) -> None:
            # By Polars, one value at a time: NumPy's vector code may round a value differently by its position.
            out[0] = np.copysign(pl.Series(np.abs(values)).log1p().to_numpy(), values)

        return self._encoder((f"{self.column}_log",), write)


class _Scaled(Numeric):
    """A shift and a scale; both are plain arithmetic, hence the same bits anywhere."""

    __slots__ = ()

    def _scaled(self, shift: float, scale: float) -> Encoder:
        def write(values: Values, out: FloatArray) -> None:
            out[0] = (values - shift) / scale

        return self._encoder((self.column,), write)


@dataclass(frozen=True, slots=True)
class Standardise(_Scaled):
    """Mean 0 and standard deviation 1 on the training split; missing values with an indicator become 0, the mean."""

    def fit(self, statistic: Statistic) -> State:
        self._check_fit(statistic)
        assert isinstance(statistic, Moments)
        if not statistic.bounded:
            raise self.bad_data("the training split holds values that are infinite, or too large to square")
        if statistic.smallest == statistic.largest:
            # A constant has no scale; it becomes 0, of which the digits that are rounded off would be left. Zeros of
            # both signs are one state.
            return {"mean": statistic.smallest + 0.0, "std": 1.0}
        return {"mean": rounded(statistic.mean), "std": rounded(statistic.std) or 1.0}

    def encoder(self, state: State) -> Encoder:
        return self._scaled(state["mean"], state["std"])


@dataclass(frozen=True, slots=True)
class RobustScale(_Scaled):
    """Median 0 and quartiles 1 apart on the training split: a few wild values do not move it."""

    def measure(self, rows: pl.DataFrame) -> Statistic:
        return _counts(self._values(rows))

    def fit(self, statistic: Statistic) -> State:
        self._check_fit(statistic)
        assert isinstance(statistic, Counts)
        lower, median, upper = statistic.quantiles(4)
        if not (math.isfinite(lower) and math.isfinite(upper)):
            raise self.bad_data("a quarter of the training split is infinite")
        # Where half the values are equal the quartiles give no scale.
        return {"median": median, "range": rounded(upper - lower) or 1.0}

    def encoder(self, state: State) -> Encoder:
        return self._scaled(state["median"], state["range"])


@dataclass(frozen=True, slots=True)
class Bucketise(Numeric):
    """One feature per bucket of about equal size, cut at quantiles of the training split."""

    buckets: int = 10

    def __post_init__(self) -> None:
        Numeric.__post_init__(self)
        if self.buckets < 2:
            raise self.bad_config(f"buckets must be at least 2, got {self.buckets}")

    def measure(self, rows: pl.DataFrame) -> Statistic:
        return _counts(self._values(rows))

    def fit(self, statistic: Statistic) -> State:
        self._check_fit(statistic)
        assert isinstance(statistic, Counts)
        smallest = statistic.table["value"].min()
        # Frequent values fill several buckets: their edges coincide, and at the smallest value there is no edge.
        return {"edges": sorted(set(statistic.quantiles(self.buckets)) - {smallest})}

    def encoder(self, state: State) -> Encoder:
        edges = np.asarray(state["edges"], dtype=np.float64)
        names = tuple(f"{self.column}_bucket_{i}" for i in range(len(edges) + 1))

        def write(values: Values, out: FloatArray) -> None:
            one_hot(np.searchsorted(edges, values, side="right"), out)

        return self._encoder(names, write)


Period = float | Literal["hour", "weekday", "month"]
_PERIODS: Final = {"hour": 24.0, "weekday": 7.0, "month": 12.0}


@dataclass(frozen=True, slots=True)
class Cyclical(Numeric):
    """
    Sine and cosine of a place in a cycle, so that its end is near its start: 23 h to 0 h, December to January.

    :param period: length of the cycle; ``hour``, ``weekday`` or ``month`` stand for 24, 7 and 12, and take that part of
        a date or an instant (in the column's own time zone, with the minutes as part of the hour)
    """

    period: Period = "hour"

    def __post_init__(self) -> None:
        Numeric.__post_init__(self)
        if isinstance(self.period, str) and self.period not in _PERIODS:
            raise self.bad_config(f"period must be a number, {', '.join(map(repr, _PERIODS))}; got {self.period!r}")
        if not isinstance(self.period, str) and not self.period > 0:
            raise self.bad_config(f"period must be above 0, got {self.period}")

    def check(self, schema: Mapping[str, pl.DataType]) -> None:
        dtype = schema[self.column]
        if not dtype.is_temporal():
            Numeric.check(self, schema)
        elif dtype not in (pl.Date, pl.Datetime) or not isinstance(self.period, str):
            raise self.bad_config(f"the column is {dtype}; take a part of a date: period='hour', 'weekday' or 'month'")
        elif dtype == pl.Date and self.period == "hour":
            raise self.bad_config("the column is a date, which has no hours; use 'weekday' or 'month'")

    def _numbers(self, column: pl.Series) -> Values:
        if column.dtype.is_temporal():
            return column.to_frame().select(_part(pl.first(), self.period)).to_series().cast(pl.Float64).to_numpy()
        return Numeric._numbers(self, column)

    def fit(self, statistic: Statistic) -> State:
        self._check_fit(statistic)
        return {"period": _PERIODS[self.period] if isinstance(self.period, str) else float(self.period)}

    def encoder(self, state: State) -> Encoder:
        name = f"{self.column}_{self.period}" if isinstance(self.period, str) else self.column
        period = state["period"]

        def write(values: Values, out: FloatArray) -> None:
            angles = pl.Series(np.mod(values, period) * (2 * math.pi / period))
            # By Polars for the same reason as in Log.
            out[0], out[1] = angles.sin().to_numpy(), angles.cos().to_numpy()

        return self._encoder((f"{name}_sin", f"{name}_cos"), write)


def _part(instant: pl.Expr, period: Period) -> pl.Expr:
    if period == "weekday":
        return instant.dt.weekday()
    if period == "month":
        return instant.dt.month()
    return instant.dt.hour() + instant.dt.minute() / 60 + instant.dt.second() / 3600


def _counts(values: Values) -> Counts:
    return Counts.of(pl.Series(values).fill_nan(None))


def one_hot(places: npt.NDArray[np.int64], out: FloatArray) -> None:
    """Fill ``[K, N]`` with 1 at each row's place, all 0 where the place is negative."""
    out[:] = 0.0
    known = places >= 0
    out[places[known], np.flatnonzero(known)] = 1.0


def rounded(value: float) -> float:
    """Round to 12 digits: more is noise."""
    return float(f"{value:.12g}")
