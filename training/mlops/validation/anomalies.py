"""The anomalies of the data, described in words for the person who has to act on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2

from mlops.contract.grain import Grain, counted
from mlops.validation.rows import Rows
from mlops.validation.schema import Schema
from mlops.validation.statistics import COUNT, in_rank

NUM_EXAMPLES: Final = 5
MAX_SHOWN: Final = 12

_Kind = anomalies_pb2.AnomalyInfo.Type
_UNEXPECTED_STRING: Final = frozenset({_Kind.ENUM_TYPE_UNEXPECTED_STRING_VALUES, _Kind.BOOL_TYPE_UNEXPECTED_STRING})
_TOO_SMALL: Final = frozenset({_Kind.INT_TYPE_SMALL_INT, _Kind.FLOAT_TYPE_SMALL_FLOAT, _Kind.BOOL_TYPE_SMALL_INT})
_TOO_BIG: Final = frozenset({_Kind.INT_TYPE_BIG_INT, _Kind.FLOAT_TYPE_BIG_FLOAT, _Kind.BOOL_TYPE_BIG_INT})
_MISSING_VALUES: Final = frozenset(
    {_Kind.FEATURE_TYPE_LOW_FRACTION_PRESENT, _Kind.FEATURE_TYPE_LOW_NUMBER_PRESENT, _Kind.FEATURE_TYPE_NOT_PRESENT}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Two histograms over the same bins, to be drawn together."""

    labels: tuple[str, ...]
    """Name of each bin: a value, a range of numbers, ``no value``."""
    expected: tuple[float, ...]
    """Share of the reference's rows in each bin, 0 to 1."""
    found: tuple[float, ...]
    """Share of the examined rows in each bin, 0 to 1."""
    expected_name: str
    """Name of the reference's rows, e.g. ``champion's snapshot, 2013-01-10 to 2013-02-08``."""
    found_name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Anomaly:
    """One way in which the data does not fit."""

    column: str | None
    """Column with the anomaly; None if it concerns the rows as a whole."""
    kind: str
    """
    TFDV's name of the anomaly, e.g. ``ENUM_TYPE_UNEXPECTED_STRING_VALUES``; ``EMPTY_PERIOD`` and ``TIME_TYPE`` are
    ours.
    """
    title: str
    expected: str
    found: str
    examples: tuple[str, ...] = ()
    """Offending values, the most frequent first."""
    periods: tuple[str, ...] = ()
    """Periods with offending rows."""
    fix: str = ""
    """Suggested fix: for a row count in whole sentences, for a column how the schema changes if the data is right."""
    distribution: Distribution | None = None
    """Both distributions, if the anomaly is a difference between two."""
    slice: str | None = None
    """Part of the rows with the anomaly, e.g. ``carrier=UA``; None: all of them."""

    @property
    def line(self) -> str:
        """The whole anomaly in one line."""
        subject = f"column {self.column}: " if self.column is not None else ""
        subject = f"slice {self.slice}: {subject}" if self.slice is not None else subject
        values = f" (e.g. {', '.join(self.examples)})" if self.examples else ""
        return f"{subject}{self.found}{values}; expected {self.expected}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnDistance:
    """Distance of a column's distribution from the reference's."""

    column: str
    measure: str
    """Name of the distance: ``Jensen-Shannon`` of numbers, ``L-infinity`` of values."""
    distance: float
    threshold: float
    """Distance from which on it is an anomaly."""
    distribution: Distribution


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceComparison:
    """One reference that the data was compared with, or could not be."""

    reference: str
    """``champion``, ``previous snapshot`` or ``serving log``."""
    description: str
    """Description of the reference's data; if it was not compared, the reason."""
    compared: bool
    columns: tuple[ColumnDistance, ...] = ()


def describe(
    info: anomalies_pb2.AnomalyInfo, column: str, schema: Schema, rows: Rows, periods: Sequence[str]
) -> list[Anomaly]:
    """
    Put TFDV's finding about a column into words, with the offending values and their periods.

    :param periods: the periods with the finding
    """
    # What TFDV says of the values of another type than expected follows from that.
    types = [reason for reason in info.reason if reason.type == _Kind.UNEXPECTED_DATA_TYPE]
    return [_describe_reason(reason, column, schema, rows, periods) for reason in types or info.reason]


def _describe_reason(
    reason: anomalies_pb2.AnomalyInfo.Reason, column: str, schema: Schema, rows: Rows, examined: Sequence[str]
) -> Anomaly:
    kind = reason.type
    offends = _offends(kind, column, schema)
    # Read only now: most data has nothing to show.
    offending = rows.matching(column, offends, examined) if offends is not None and column in rows.schema else {}
    periods = tuple(period for period, values in offending.items() if not values.is_empty())
    values = pl.concat(offending.values()) if offending else pl.Series(column, [], pl.Null)
    num_rows = sum(rows.num_rows[period] for period in examined)
    on = on_periods(periods, len(examined), rows.kind.grain)
    where = f"{values.len():,} of {num_rows:,} rows, {on}" if periods else ""
    expected, found = _expectation(kind, column, schema, reason.description.strip())
    if where:
        found = f"{found} in {where}" if kind not in _MISSING_VALUES else f"no value in {where}"
    shown = () if kind in _MISSING_VALUES else _most_frequent(values)
    return Anomaly(
        column=column,
        kind=_Kind.Name(kind),
        title=_TITLES.get(kind, reason.short_description),
        expected=expected,
        found=found,
        examples=shown,
        periods=periods if len(periods) < len(examined) else (),
        fix=_fix(kind, column, schema, shown),
    )


_TITLES: Final[Mapping[int, str]] = {
    _Kind.ENUM_TYPE_UNEXPECTED_STRING_VALUES: "Unknown values",
    _Kind.FEATURE_TYPE_LOW_FRACTION_PRESENT: "Too many missing values",
    _Kind.FEATURE_TYPE_LOW_NUMBER_PRESENT: "Too many missing values",
    _Kind.FEATURE_TYPE_NOT_PRESENT: "No values at all",
    _Kind.SCHEMA_MISSING_COLUMN: "Missing column",
    _Kind.SCHEMA_NEW_COLUMN: "New column",
    _Kind.UNEXPECTED_DATA_TYPE: "Type changed",
    **dict.fromkeys(_TOO_SMALL, "Values too small"),
    **dict.fromkeys(_TOO_BIG, "Values too large"),
}


def _offends(kind: int, column: str, schema: Schema) -> pl.Expr | None:
    """Return the condition that a finding's values meet; None if it is not about single rows."""
    low, high = bounds(schema.feature(column))
    value = pl.col(column)
    if kind in _MISSING_VALUES:
        return value.is_null()
    if kind == _Kind.ENUM_TYPE_UNEXPECTED_STRING_VALUES:
        return value.cast(pl.String).is_in(schema.domain_values(column)).not_()
    if kind in _TOO_SMALL and low is not None:
        return value < low
    if kind in _TOO_BIG and high is not None:
        # Polars orders NaN above every number.
        return (value > high) & value.cast(pl.Float64).is_not_nan()
    if kind == _Kind.FLOAT_TYPE_HAS_NAN:
        return value.is_nan()
    if kind == _Kind.FLOAT_TYPE_HAS_INF:
        return value.is_infinite()
    return None


def bounds(feature: schema_pb2.Feature | None) -> tuple[float | None, float | None]:
    """Return the smallest and largest number that a column may hold; None where there is no such bound."""
    if feature is None:
        return None, None
    if feature.HasField("bool_domain"):
        return 0, 1
    for name in ("int_domain", "float_domain"):
        if feature.HasField(name):
            domain = getattr(feature, name)
            return (
                domain.min if domain.HasField("min") else None,
                domain.max if domain.HasField("max") else None,
            )
    return None, None


def _expectation(kind: int, column: str, schema: Schema, description: str) -> tuple[str, str]:
    """Return what the schema asks for, and what was found."""
    feature = schema.feature(column)
    low, high = bounds(feature)
    if kind == _Kind.SCHEMA_NEW_COLUMN:
        return f"only the columns of {schema.path}", "is in the data but not in the schema"
    if kind == _Kind.SCHEMA_MISSING_COLUMN:
        return "the column, as the schema has it", "is not in the data"
    assert feature is not None, "TFDV speaks of columns of the data or of the schema only"
    if kind == _Kind.ENUM_TYPE_UNEXPECTED_STRING_VALUES:
        return f"one of {shorten(schema.domain_values(column))}", "unknown values"
    if kind in _TOO_SMALL and low is not None:
        return f"at least {low:,.15g}", f"values below {low:,.15g}"
    if kind in _TOO_BIG and high is not None:
        return f"at most {high:,.15g}", f"values above {high:,.15g}"
    if kind in _MISSING_VALUES:
        share = feature.presence.min_fraction
        expected = f"a value in at least {100 * share:.4g}% of the rows" if share else "at least one value"
        return expected, "no value"
    if kind == _Kind.FLOAT_TYPE_HAS_NAN:
        return "numbers or no value", "NaN"
    if kind == _Kind.FLOAT_TYPE_HAS_INF:
        return "finite numbers", "infinite values"
    return f"type {schema_pb2.FeatureType.Name(feature.type)}, as the schema has it", description


def _fix(kind: int, column: str, schema: Schema, shown: Sequence[str]) -> str:
    """Return what to change in the schema if the data is right."""
    where = f"feature {column!r} of {schema.path}"
    if kind == _Kind.SCHEMA_NEW_COLUMN:
        return f"describe the column in {schema.path}, or drop it in the ingest transform"
    if kind == _Kind.SCHEMA_MISSING_COLUMN:
        return f"remove {where}"
    if kind == _Kind.ENUM_TYPE_UNEXPECTED_STRING_VALUES:
        return f"add the values to the string_domain of {where}"
    if kind in _TOO_SMALL or kind in _TOO_BIG:
        return f"widen the domain of {where}"
    if kind in _MISSING_VALUES:
        return f"lower presence.min_fraction of {where}"
    return f"change {where}"


def _most_frequent(values: pl.Series) -> tuple[str, ...]:
    if values.is_empty():
        return ()
    ranked = in_rank(values.value_counts(name=COUNT)).head(NUM_EXAMPLES)
    return tuple(f"{value!r} {count:,}x" if count > 1 else repr(value) for value, count in ranked.iter_rows())


def on_periods(periods: Sequence[str], num_periods: int, grain: Grain) -> str:
    """Return periods as text: ``on 2013-02-09``, ``on every day``, ``on 3 days, first 2013-02-01, last 2013-02-09``."""
    if num_periods > 1 and len(periods) == num_periods:
        return f"on every {grain}"
    if len(periods) <= 2:
        return f"on {' and '.join(periods)}"
    return f"on {counted(len(periods), grain)}, first {periods[0]}, last {periods[-1]}"


def shorten(values: Sequence[str]) -> str:
    """Return at most a dozen values as text, and the number of the others."""
    rest = len(values) - MAX_SHOWN
    return ", ".join(values[:MAX_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
