"""The examined rows: on disk, read some columns at a time, so that a window need not fit into memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Final

import polars as pl
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.contract.grain import Periods
from mlops.data.engine.dtypes import instance_of
from mlops.data.snapshots.partitions import start_of_period
from mlops.data.snapshots.snapshot import Snapshot
from mlops.validation.bins import Numbers
from mlops.validation.statistics import (
    COUNT,
    FeatureType,
    as_number,
    describe_column,
    describe_strings,
    feature_type,
)

_PASS_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of the columns of one pass over the files; a single column may take more."""
_VALUE_BYTES: Final = 8


def as_described(table: pl.LazyFrame) -> pl.LazyFrame:
    """
    Put one number in the place of a value that is none: of a vector of numbers its length (the Euclidean norm), of
    another list how many values it has, of bytes, such as those of an image, how many they are, of a time of day its
    seconds, and 1 for a struct that is there. What else is in there, validation does not look at.
    """
    described = ((name, _as_number(pl.col(name), dtype)) for name, dtype in table.collect_schema().items())
    return table.with_columns(number.alias(name) for name, number in described if number is not None)


def _as_number(column: pl.Expr, dtype: pl.DataType) -> pl.Expr | None:
    """None: it is described as it is."""
    if isinstance(dtype, pl.Array):
        column, dtype = column.arr.to_list(), pl.List(dtype.inner)
    if isinstance(dtype, pl.List):
        if instance_of(dtype.inner).is_numeric():
            return (column.cast(pl.List(pl.Float64)).list.eval(pl.element() ** 2)).list.sum().sqrt()
        return column.list.len().cast(pl.Int64)
    if dtype == pl.Binary:
        return column.bin.size().cast(pl.Int64)
    if dtype == pl.Time:
        return column.cast(pl.Int64) // 1_000_000_000
    if dtype == pl.Struct:
        return pl.when(column.is_not_null()).then(pl.lit(1, pl.Int64))
    return column.cast(pl.Float64) if dtype.is_decimal() else None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a window, period after period."""

    whole: pl.LazyFrame
    """The rows, in the order of the periods of ``num_rows``."""
    num_rows: Mapping[str, int]
    """Number of rows by period, oldest first; those without rows are missing."""
    event_time: str
    """Column with the instant that decides to which period a row belongs."""
    kind: Periods
    """What the periods are."""

    @classmethod
    def of(cls, snapshot: Snapshot, cache: Path) -> Rows:
        """
        Open a snapshot's rows.

        :param cache: folder for what is fetched from a remote store
        """
        manifest = snapshot.manifest
        return cls(
            whole=snapshot.scan(cache=cache) if manifest.partitions else pl.LazyFrame(),
            num_rows={partition.period: partition.num_rows for partition in manifest.partitions},
            event_time=manifest.event_time,
            kind=Periods(manifest.grain, manifest.timezone),
        )

    @cached_property
    def table(self) -> pl.LazyFrame:
        """The rows as they are described; see :func:`as_described`."""
        return as_described(self.whole)

    @cached_property
    def schema(self) -> pl.Schema:
        return self.table.collect_schema()

    @property
    def periods(self) -> list[str]:
        """Periods that have rows, oldest first."""
        return list(self.num_rows)

    @property
    def total(self) -> int:
        return sum(self.num_rows.values())

    @property
    def period(self) -> pl.Expr:
        """Expression for the name of each row's period."""
        start = start_of_period(pl.col(self.event_time), self.kind)
        return start.cast(pl.String) if self.kind.grain == "day" else start.dt.strftime(self.kind.name_format)

    def columns(self) -> Iterator[Column]:
        """Iterate over every column, in order; of columns of numbers as many are read at a time as fit."""
        at_once = max(1, _PASS_BYTES // (_VALUE_BYTES * max(self.total, 1)))
        names = [name for name, dtype in self.schema.items() if feature_type(name, dtype) != FeatureType.STRING]
        batch: deque[pl.Series] = deque()
        for name in self.schema:
            if name not in names:
                yield Column(self, name)
                continue
            if not batch:
                start = names.index(name)
                batch.extend(self.table.select(names[start : start + at_once]).collect())
            yield Column(self, name, batch.popleft())

    def counts(self, column: str, period: str | None = None) -> pl.DataFrame:
        """
        Return a column's values as strings, each once, and the number of times they occur, without holding the column
        in memory.

        :param period: None for all periods
        """
        table = self.table
        if period is not None:
            start = sum(num_rows for other, num_rows in self.num_rows.items() if other < period)
            table = table.slice(start, self.num_rows[period])
        return table.group_by(pl.col(column).cast(pl.String)).agg(pl.len().alias(COUNT)).collect(engine="streaming")

    def counts_by_period(self, column: str, told: Sequence[str], periods: Sequence[str]) -> pl.DataFrame:
        """
        Return periods, values of a column as strings, whether there is one, and how many rows have them, without
        holding the column in memory.

        :param told: values that are told from each other; any other is null
        """
        value = pl.col(column).cast(pl.String)
        kept = pl.when(value.is_in(told)).then(value)
        starts = dict(zip(self.num_rows, accumulate(self.num_rows.values(), initial=0), strict=False))
        # Periods lie one after the other: those before the first that is asked for are not read.
        table = self.table.slice(starts[min(periods)])
        by = table.group_by(self.period.alias("period"), kept.alias("value"), value.is_not_null().alias("is there"))
        counted = by.agg(pl.len().alias(COUNT)).filter(pl.col("period").is_in(periods))
        return counted.collect(engine="streaming")

    def statistics(self, name: str) -> statistics_pb2.DatasetFeatureStatistics:
        """Return the statistics of all rows, see :func:`mlops.validation.statistics.dataset_statistics`."""
        dataset = statistics_pb2.DatasetFeatureStatistics(name=name, num_examples=self.total)
        dataset.features.extend(column.describe()[0] for column in self.columns())
        return dataset

    def by_period(self, column: pl.Series) -> dict[str, pl.Series]:
        """Cut a column of all rows into periods, without a copy."""
        parts, start = {}, 0
        for period, num_rows in self.num_rows.items():
            parts[period] = column.slice(start, num_rows)
            start += num_rows
        return parts

    def matching(self, column: str, condition: pl.Expr, periods: Sequence[str]) -> dict[str, pl.Series]:
        """
        Return the values of a column that meet a condition on it as a number or string, by period.

        :param periods: periods to search
        """
        values = as_number(self.table.select(column).collect().to_series())
        parts = self.by_period(values)
        return {period: parts[period].to_frame().filter(condition).to_series() for period in periods}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the rows."""

    rows: Rows
    name: str
    values: pl.Series | None = None
    """The column's values; None for strings, which are counted where they are stored."""

    @property
    def dtype(self) -> pl.DataType:
        return self.rows.schema[self.name]

    def describe(self, period: str | None = None) -> tuple[statistics_pb2.FeatureNameStatistics, Numbers | None]:
        """
        Describe the column as :func:`mlops.validation.statistics.describe_column` does.

        :param period: None for all periods
        """
        if self.values is None:
            return describe_strings(self.name, self.rows.counts(self.name, period)), None
        return describe_column(self.values if period is None else self.rows.by_period(self.values)[period])
