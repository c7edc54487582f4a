"""
Fitted transforms: column in, float columns out. What is learnt from the training split is plain JSON.

Every transform says what becomes of a missing value (null or NaN): ``missing="error"`` (the default) refuses it,
``"indicator"`` adds a column ``<name>_missing``, and a number is filled in before anything else.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import narwhals as nw

from mlops_provider.step import BadConfigError, BadDataError

Missing = float | Literal["error", "indicator"]
State = dict[str, Any]
Columns = dict[str, nw.Expr]
"""Name of a feature to the expression that makes it."""


class Transform(Protocol):
    """
    Called by :class:`training.features.feature_set.FeatureSet`: ``fit`` once on the training split, ``columns`` for
    every frame that is applied. Expressions must be row-wise, so that a row served alone equals the same row in a
    batch bit for bit.
    """

    @property
    def column(self) -> str: ...

    def fit(self, frame: nw.DataFrame[Any]) -> State:
        """State as JSON. Numbers are rounded: they must not depend on the order in which a sum was taken."""

    def columns(self, frame: nw.DataFrame[Any], state: State) -> Columns: ...


@dataclass(frozen=True, slots=True)
class _Numeric:
    """A numeric column with its missing values dealt with."""

    column: str
    missing: Missing = "error"

    def _value(self, frame: nw.DataFrame[Any]) -> nw.Expr:
        """The column as float64; missing values are filled, or null where they get an indicator."""
        dtype = frame.schema[self.column]
        if not (dtype.is_numeric() or dtype == nw.Boolean or _all_missing(frame, self.column)):
            raise BadConfigError(
                f"{type(self).__name__}({self.column!r}): the column is {dtype}, not a number; "
                "use Vocabulary or Hash, or derive a number from it"
            )
        value = nw.col(self.column).cast(nw.Float64)
        if dtype.is_float():
            value = nw.when(~nw.col(self.column).is_nan()).then(value)
        if not isinstance(self.missing, str):
            return value.fill_null(float(self.missing))
        if self.missing == "error" and (count := frame.select(value.is_null().sum()).item()):
            raise _missing_values(self, count, frame)
        return value

    def _with_indicator(self, columns: Columns, value: nw.Expr) -> Columns:
        if self.missing == "indicator":
            columns[f"{self.column}_missing"] = value.is_null().cast(nw.Float32)
        return columns


@dataclass(frozen=True, slots=True)
class Passthrough(_Numeric):
    """The number as it is; for shares and flags, which have a fit scale already."""

    def fit(self, frame: nw.DataFrame[Any]) -> State:
        self._value(frame)
        return {}

    def columns(self, frame: nw.DataFrame[Any], state: State) -> Columns:
        value = self._value(frame)
        return self._with_indicator({self.column: value.fill_null(0.0)}, value)


@dataclass(frozen=True, slots=True)
class Standardise(_Numeric):
    """Mean 0 and standard deviation 1 on the training split; missing values with an indicator become 0, the mean."""

    def fit(self, frame: nw.DataFrame[Any]) -> State:
        mean, std = frame.select(
            self._value(frame).mean().alias("mean"), self._value(frame).std(ddof=0).alias("std")
        ).row(0)
        if mean is None:
            raise BadDataError(f"Standardise({self.column!r}): the training split has no values to fit on")
        if not (math.isfinite(mean) and math.isfinite(std)):
            raise BadDataError(f"Standardise({self.column!r}): the training split holds infinite values")
        # A constant column has no scale; it becomes 0.
        return {"mean": _rounded(mean), "std": _rounded(std) or 1.0}

    def columns(self, frame: nw.DataFrame[Any], state: State) -> Columns:
        value = self._value(frame)
        scaled = (value - state["mean"]) / state["std"]
        return self._with_indicator({self.column: scaled.fill_null(0.0)}, value)


@dataclass(frozen=True, slots=True)
class Bucketise(_Numeric):
    """One column per bucket of about equal size, cut at quantiles of the training split."""

    buckets: int = 10

    def fit(self, frame: nw.DataFrame[Any]) -> State:
        if self.buckets < 2:
            raise BadConfigError(f"Bucketise({self.column!r}): buckets must be at least 2, got {self.buckets}")
        value = self._value(frame)
        smallest, *quantiles = frame.select(
            value.min().alias("min"),
            *(value.quantile(i / self.buckets, interpolation="lower").alias(str(i)) for i in range(1, self.buckets)),
        ).row(0)
        # Frequent values fill several buckets: their edges coincide, and at the smallest value there is no edge.
        return {"edges": sorted({float(edge) for edge in quantiles if edge is not None and edge > smallest})}

    def columns(self, frame: nw.DataFrame[Any], state: State) -> Columns:
        value = self._value(frame)
        edges = [-math.inf, *state["edges"], math.inf]
        columns = {}
        for i, (low, high) in enumerate(pairwise(edges)):
            inside = (value >= low) & (value < high) if high < math.inf else value >= low
            columns[f"{self.column}_bucket_{i}"] = inside.fill_null(False).cast(nw.Float32)
        return self._with_indicator(columns, value)


@dataclass(frozen=True, slots=True)
class _Categorical:
    """A column of strings, integers or booleans. Missing values are a category of their own or an error."""

    column: str
    missing: Literal["error", "indicator"] = "error"

    def _checked(self, frame: nw.DataFrame[Any]) -> nw.Expr:
        value = nw.col(self.column)
        dtype = frame.schema[self.column]
        if not (dtype in (nw.String, nw.Boolean) or dtype.is_integer() or _all_missing(frame, self.column)):
            raise BadConfigError(
                f"{type(self).__name__}({self.column!r}): the column is {dtype}; categories are strings, integers or "
                "booleans: derive one, or use Standardise or Bucketise"
            )
        if self.missing == "error" and (count := frame.select(value.is_null().sum()).item()):
            raise _missing_values(self, count, frame)
        return value

    def _distinct(self, frame: nw.DataFrame[Any]) -> list[Any]:
        self._checked(frame)
        return frame[self.column].drop_nulls().unique().sort().to_list()

    def _with_indicator(self, columns: Columns) -> Columns:
        if self.missing == "indicator":
            columns[f"{self.column}_missing"] = nw.col(self.column).is_null().cast(nw.Float32)
        return columns


@dataclass(frozen=True, slots=True)
class Vocabulary(_Categorical):
    """
    Categories seen at least ``min_count`` times in the training split; all others are out of vocabulary.

    :param encoding: ``one_hot``: one column per category and one for out of vocabulary; ``id``: one column with 0 for
        missing, 1 for out of vocabulary, and categories from 2, for an embedding
    """

    min_count: int = 1
    encoding: Literal["one_hot", "id"] = "one_hot"

    def fit(self, frame: nw.DataFrame[Any]) -> State:
        self._checked(frame)
        counts = frame.select(nw.col(self.column)).drop_nulls().group_by(self.column).agg(nw.len().alias("__count"))
        return {"values": counts.filter(nw.col("__count") >= self.min_count)[self.column].sort().to_list()}

    def columns(self, frame: nw.DataFrame[Any], state: State) -> Columns:
        value, values = self._checked(frame), state["values"]
        if self.encoding == "id":
            ids = _mapped(self, frame, {known: float(i) for i, known in enumerate(values, 2)}, default=1.0)
            return {f"{self.column}_id": ids.fill_null(0.0)}
        columns = {f"{self.column}={known}": (value == known).fill_null(False).cast(nw.Float32) for known in values}
        unknown = ~value.is_in(values) & ~value.is_null()
        columns[f"{self.column}=<other>"] = unknown.fill_null(False).cast(nw.Float32)
        return self._with_indicator(columns)


@dataclass(frozen=True, slots=True)
class Hash(_Categorical):
    """One column per bucket of a hash (CRC-32 of the value's text); needs no fitting, for unbounded categories."""

    buckets: int = 16

    def fit(self, frame: nw.DataFrame[Any]) -> State:
        if self.buckets < 2:
            raise BadConfigError(f"Hash({self.column!r}): buckets must be at least 2, got {self.buckets}")
        self._checked(frame)
        return {"buckets": self.buckets}

    def columns(self, frame: nw.DataFrame[Any], state: State) -> Columns:
        buckets = state["buckets"]
        mapping = {value: float(zlib.crc32(str(value).encode()) % buckets) for value in self._distinct(frame)}
        bucket = _mapped(self, frame, mapping, default=None)
        return self._with_indicator(
            {f"{self.column}_hash_{i}": (bucket == i).fill_null(False).cast(nw.Float32) for i in range(buckets)}
        )


def _mapped(
    transform: _Categorical, frame: nw.DataFrame[Any], mapping: Mapping[Any, float], default: float | None
) -> nw.Expr:
    """The column through a mapping; null stays null."""
    # Only what the frame holds: a long vocabulary costs nothing where one row is served.
    present = transform._distinct(frame)
    known = {value: mapping.get(value, default) for value in present}
    if not known:
        return nw.lit(None, dtype=nw.Float64)
    return nw.col(transform.column).replace_strict(
        list(known), list(known.values()), default=None, return_dtype=nw.Float64
    )


def _all_missing(frame: nw.DataFrame[Any], column: str) -> bool:
    """A served row with nothing in it has no type."""
    return bool(frame[column].is_null().all())


def _missing_values(transform: _Numeric | _Categorical, count: int, frame: nw.DataFrame[Any]) -> BadDataError:
    return BadDataError(
        f"{type(transform).__name__}({transform.column!r}): {count} of {len(frame)} values are missing; say what they "
        'mean, with missing="indicator" or, for a number, missing=<value>'
    )


def _rounded(value: float) -> float:
    return float(f"{value:.12g}")
