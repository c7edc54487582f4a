"""
The rule for which records of a source count, as of an instant: known by then, and of several with one key the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import narwhals as nw
import polars as pl

from mlops.contract.step import BadDataError
from mlops.data.engine.engines import Table
from mlops.data.sources.numerals import numeral

# After a time of day: without it, the year of 02-01-2024 would pass for an offset.
_DATE = r"^\d{4}-\d{2}-\d{2}$"
_NAIVE = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?$"
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""
_OFFSET = r"\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})$"


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """The rule for which records of one source count."""

    source: str
    """Name of the source, for messages."""
    event_time: str | None
    """Column with the instant to which a row belongs."""
    created_time: str | None
    """Column with the instant at which a record was written."""
    key: Sequence[str]
    """Columns that identify a thing; of its records the one created last counts."""
    as_of: datetime
    """As-of time, UTC: neither event nor creation may be at or after this instant."""
    since: datetime | None
    """Earliest event time: events before this instant are left out."""
    time_zone: str | None = None
    """IANA zone of dates, and of times without an offset; None: they are no instants."""
    epoch: str | None = None
    """What instants that are numbers count since 1970 UTC: ``s``, ``ms``, ``us`` or ``ns``; None: they are none."""
    decimal: str = "."
    """What stands before the fraction of a number that is text."""

    @property
    def instants(self) -> list[str]:
        # One column may be both.
        return list(dict.fromkeys(name for name in (self.event_time, self.created_time) if name is not None))

    def check(self, schema: pl.Schema) -> None:
        """
        Check that a table has the columns that the rule needs.

        :raises BadDataError: where a column is not there, or holds no instants
        """
        wanted = {"event_time": self.event_time, "created_time": self.created_time}
        named = [(setting, column) for setting, column in wanted.items() if column is not None]
        for setting, column in [*named, *(("key", column) for column in self.key)]:
            if column not in schema:
                raise BadDataError(
                    f"source {self.source!r} has no column {column!r}, which its {setting} names; "
                    f"it has {', '.join(schema)}"
                )
        for setting, column in named:
            if not (missing := self._lacks(schema[column])):
                continue
            raise BadDataError(
                f"source {self.source!r}: {setting} {column!r} is {schema[column]}, not an instant; set "
                f"ingest.sources.{self.source}.{missing}"
            )

    def _lacks(self, dtype: pl.DataType) -> str | None:
        """Return the setting without which a column of this type holds no instants; None where there is none."""
        if dtype == pl.String or (isinstance(dtype, pl.Datetime) and dtype.time_zone is not None):
            return None
        if dtype == pl.Date or isinstance(dtype, pl.Datetime):
            return None if self.time_zone else "time_zone, such as Europe/Berlin: whose days or hours these are"
        if dtype.is_numeric():
            return None if self.epoch else "epoch to s, ms, us or ns: what it counts since 1970 UTC"
        return "event_time to a column of dates, times, or numbers since 1970"

    def instant(self, name: str, dtype: pl.DataType) -> pl.Expr:
        """Return a column as instants in UTC, in microseconds; what is none becomes null."""
        if self.epoch is not None and (dtype == pl.String or dtype.is_numeric()):
            number = numeral(pl.col(name), self.decimal) if dtype == pl.String else pl.col(name)
            return _since_1970(number, dtype, self.epoch)
        return instant(name, dtype, self.time_zone)

    def known(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """
        Leave out what was not known, before anything else sees it: what is not read cannot leak. A record without an
        instant is not known either.
        """
        schema = rows.collect_schema()
        rows = rows.with_columns(self.instant(name, schema[name]).alias(name) for name in self.instants)
        if self.created_time is not None:
            rows = rows.filter(pl.col(self.created_time) < self.as_of)
        # A correction may move a thing's event time: which record counts is settled first, see `latest`.
        return rows if self.key else rows.filter(*self._in_time(pl.col))

    def latest(self, table: Table) -> Table:
        """
        Keep the last known record of each key, and of these the records in time.

        :raises BadDataError: where two records of a key were created at the same instant and differ
        """
        if not self.key:
            return table
        assert self.created_time is not None, "the spec asks for it"
        by, created = list(self.key), self.created_time
        newest = table.group_by(*by).agg(nw.col(created).max())
        rows = table.join(newest, on=[*by, created], how="semi")
        twice = _several(rows, by).head(1).collect("polars")
        if len(twice):
            # One record delivered twice is still one.
            rows = rows.unique()
            if len(example := _several(rows, by).head(1).collect("polars")):
                which = ", ".join(f"{name} = {example[name][0]!r}" for name in by)
                raise BadDataError(
                    f"source {self.source!r}: {example['records'][0]} different records with {which} have the same "
                    f"{created!r}, so that none is the last; make created_time finer, or the key longer"
                )
        # Without an event time all are in time; narwhals filters by one condition at least.
        in_time = self._in_time(nw.col)
        return rows.filter(*in_time) if in_time else rows

    def _in_time(self, col: Callable[[str], Any]) -> list[Any]:
        """Return the conditions on the event time, in expressions of Polars or of narwhals."""
        if self.event_time is None:
            return []
        event = col(self.event_time)
        return [event < self.as_of, *([event >= self.since] if self.since is not None else [])]


def _several(rows: Table, by: list[str]) -> Table:
    return rows.group_by(*by).agg(nw.len().alias("records")).filter(nw.col("records") > 1)


def instant(name: str, dtype: pl.DataType, time_zone: str | None) -> pl.Expr:
    """
    Return a column as instants in UTC, in microseconds; text that is no instant becomes null.

    :param time_zone: of dates, and of times without an offset; None: they become null
    """
    column = pl.col(name)
    if dtype == pl.String:
        # Polars would take a text without an offset for UTC.
        with_offset = pl.when(column.str.contains(_OFFSET)).then(column)
        # Polars takes the pattern of the first text for that of all: a time without an offset must not be the first.
        there = with_offset.str.to_datetime(time_zone="UTC", time_unit="us", strict=False)
        if time_zone is None:
            return there
        # A date first: Polars would not take one for a time.
        day = pl.when(column.str.contains(_DATE)).then(column).str.to_date("%Y-%m-%d", strict=False)
        naive = pl.when(column.str.contains(_NAIVE)).then(column.str.replace("T", " ", literal=True))
        local = pl.coalesce(
            naive.str.to_datetime(format, time_unit="us", strict=False)
            for format in ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")
        )
        return pl.coalesce(there, _in_zone(local, time_zone), _first_instant(day, time_zone))
    if dtype == pl.Date or (isinstance(dtype, pl.Datetime) and dtype.time_zone is None):
        if time_zone is None:
            return pl.lit(None, pl.Datetime("us", "UTC"))
        if dtype == pl.Date:
            return _first_instant(column, time_zone)
        return _in_zone(column.cast(pl.Datetime("us")), time_zone)
    return column.dt.convert_time_zone("UTC").dt.cast_time_unit("us")


def _in_zone(local: pl.Expr, time_zone: str) -> pl.Expr:
    # In the night when clocks go back an hour is there twice. One that is skipped is nobody's.
    zoned = local.dt.replace_time_zone(time_zone, ambiguous="earliest", non_existent="null")
    return zoned.dt.convert_time_zone("UTC")


def _first_instant(day: pl.Expr, time_zone: str) -> pl.Expr:
    """Return the instant with which a date begins; null for a date that a zone skipped as a whole."""
    midnight = day.cast(pl.Datetime("us"))
    # Where clocks go forward at midnight, it is not there: the date begins 12 hours after the noon before.
    half_day = pl.duration(hours=12)
    after_noon = _in_zone(midnight - half_day, time_zone) + half_day
    is_there = after_noon.dt.convert_time_zone(time_zone).dt.date() == day
    return _in_zone(midnight, time_zone).fill_null(pl.when(is_there).then(after_noon))


def _since_1970(column: pl.Expr, dtype: pl.DataType, unit: str) -> pl.Expr:
    per_second = _PER_SECOND[unit]
    # Polars multiplies modulo 2^64: a number beyond would come out as any instant, also of the past.
    bound = min(_LAST_SECOND * per_second, 2**63 - 1)
    whole = column.cast(pl.Int64, strict=False)
    scaled = whole * (1_000_000 // per_second) if per_second <= 1_000_000 else whole // (per_second // 1_000_000)
    microseconds: pl.Expr = pl.when(whole.is_between(-bound, bound)).then(scaled)
    if not dtype.is_integer():
        # Parts of a second are instants too; whole numbers in text keep all their digits.
        fraction = column.cast(pl.Float64, strict=False)
        rounded = pl.when(fraction.is_between(-bound, bound)).then((fraction * (1e6 / per_second)).round())
        parts = rounded.cast(pl.Int64, strict=False)
        microseconds = pl.coalesce(microseconds, parts) if dtype == pl.String else parts
    return microseconds.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
