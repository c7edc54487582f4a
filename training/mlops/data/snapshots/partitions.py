"""
Rows to blobs, a period at a time: only a single one must fit in memory.

On Polars the rows stream by once and are dealt out to their periods, in memory up to a budget and in files beyond it.
On Spark they are grouped by period, and executors store them. A period is written by the same code on both.
"""

from __future__ import annotations

import os
import pickle
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

import narwhals as nw
import polars as pl

from mlops.contract.grain import Periods
from mlops.contract.manifest import Blob, Partition
from mlops.contract.sections.ingest import AnySplit, TimeSplit
from mlops.data.engine.engines import Table, collect, is_spark, map_polars
from mlops.data.snapshots.canonical import encode, encode_pieces, in_order, normalise
from mlops.data.snapshots.splits import SPLITS, index_of
from mlops.process import memory_limit
from mlops.store import Store

_MAX_SPOOL_BYTES: Final = 1024**3
_PERIOD: Final = "__period"
_STORED: Final = pl.Schema({"stored": pl.Binary()})


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPeriod:
    """A partition whose blobs are in the store."""

    partition: Partition
    schema: tuple[tuple[str, str], ...]
    """Column names and polars types."""
    split_rows: dict[str, int]
    """Rows of each split, where these are not whole periods."""
    num_new_blobs: int
    num_new_bytes: int
    """Bytes that the store did not have yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodWriter:
    """Stores the rows of a period. It is picklable, because Spark's executors store rows where they are."""

    store_uri: str
    event_time: str
    split: AnySplit | None
    max_blob_bytes: int

    def write(self, period: str, rows: pl.DataFrame) -> StoredPeriod:
        """
        Cut the rows into blobs, and index their splits where those are not whole periods.

        :raises BadDataError: where a column or key cannot be stored
        """
        store = Store(self.store_uri)
        rows = in_order(normalise(rows), self.event_time)
        stored = [_store(store, data, num_rows) for data, num_rows in encode_pieces(rows, self.max_blob_bytes)]
        blobs = tuple(blob for blob, _ in stored)
        index, split_rows = None, {}
        if self.split is not None and not isinstance(self.split, TimeSplit):
            names = index_of(rows, self.split, period)
            split_rows = {name: int((names.to_series() == name).sum()) for name in SPLITS}
            stored.append(_store(store, encode(names), rows.height))
            index = stored[-1][0]
        return StoredPeriod(
            partition=Partition(
                period=period, num_rows=rows.height, num_bytes=sum(b.num_bytes for b in blobs), blobs=blobs, index=index
            ),
            schema=tuple((name, str(dtype)) for name, dtype in rows.schema.items()),
            split_rows=split_rows,
            num_new_blobs=sum(new for _, new in stored),
            num_new_bytes=sum(blob.num_bytes for blob, new in stored if new),
        )

    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Store one of Spark's groups, whose rows are all of one period."""
        stored = self.write(str(rows[_PERIOD][0]), rows.drop(_PERIOD))
        return pl.DataFrame({"stored": [pickle.dumps(stored)]}, schema=_STORED)


def _store(store: Store, data: bytes, num_rows: int) -> tuple[Blob, bool]:
    artifact, new = store.put_blob(data, ".parquet")
    return Blob(key=artifact.key, sha256=artifact.sha256, num_bytes=artifact.num_bytes, num_rows=num_rows), new


def write_periods(table: Table, writer: PeriodWriter, periods: Periods, *, scratch: Path) -> list[StoredPeriod]:
    """
    Store a table's rows by period.

    :param scratch: folder for rows that do not fit in memory
    :return: the periods that have rows, oldest first
    """
    if is_spark(table):
        return _write_on_spark(table, writer, periods)
    spool_bytes = min(_MAX_SPOOL_BYTES, memory_limit() // 8)
    spool = _Spool(scratch, spool_bytes)
    start = start_of_period(pl.col(writer.event_time), periods)
    rows: pl.LazyFrame = table.to_native()
    with pl.Config(streaming_chunk_size=_batch_rows(rows.collect_schema())):
        # In order, though the order is worthless: otherwise Polars reads all files of a table at once, and holds them.
        for batch in rows.collect_batches(maintain_order=True):
            spool.add(batch, batch.select(start).to_series())
    starts = spool.starts
    if not starts:
        return []
    # As many at once as fit the budget: a period is held about three times (as it came, in order, encoded). More of
    # them than cores, for each waits now and then for the disk.
    num_threads = max(1, min(2 * (os.cpu_count() or 1), spool_bytes // (3 * spool.largest_bytes)))
    with ThreadPoolExecutor(num_threads) as threads:
        return list(
            threads.map(lambda start: writer.write(start.strftime(periods.name_format), spool.take(start)), starts)
        )


def start_of_period(instants: pl.Expr, periods: Periods) -> pl.Expr:
    """
    Return what tells the periods of instants apart, and is quick to make: the start of their hour in UTC, or the first
    day of their week or month. Written in :attr:`Periods.name_format` it is the period's name.
    """
    if periods.grain == "hour":
        apart = periods.hours_apart
        return (instants.dt.convert_time_zone("UTC") - apart).dt.truncate("1h") + apart
    day = instants.dt.convert_time_zone(periods.timezone).dt.date()
    return {"day": day, "week": day.dt.truncate("1w"), "month": day.dt.truncate("1mo")}[periods.grain]


def _batch_rows(schema: pl.Schema) -> int:
    """
    Return the number of rows in about 4 MB: Polars holds dozens of batches in flight, and its own are 100,000 rows,
    however wide.
    """
    row_bytes = sum(8 if dtype.is_numeric() or dtype.is_temporal() else 32 for dtype in schema.dtypes())
    return min(100_000, max(5_000, 4_000_000 // row_bytes))


def _write_on_spark(table: Table, writer: PeriodWriter, periods: Periods) -> list[StoredPeriod]:
    native = table.to_native()
    rows = nw.from_native(native.withColumn(_PERIOD, _name_on_spark(writer.event_time, periods)))
    stored = collect(map_polars(rows, writer, by=[_PERIOD], schema=_STORED))
    return sorted((pickle.loads(row) for row in stored["stored"]), key=lambda each: each.partition.period)  # noqa: S301


def _name_on_spark(event_time: str, periods: Periods) -> Any:
    """Return the column with the name of each row's period."""
    from pyspark.sql import functions

    # narwhals has no time zones on Spark; the session's own is UTC.
    instant = functions.col(event_time)
    local = functions.from_utc_timestamp(instant, periods.timezone)
    match periods.grain:
        case "hour":
            apart = functions.expr(f"INTERVAL {int(periods.hours_apart.total_seconds())} SECONDS")
            return functions.date_format(functions.date_trunc("hour", instant - apart) + apart, "yyyy-MM-dd'T'HH:mm'Z'")
        case "week":
            # ISO weeks belong to the year of their Thursday.
            thursday = functions.date_add(functions.to_date(functions.date_trunc("week", local)), 3)
            week = functions.lpad(functions.weekofyear(local).cast("string"), 2, "0")
            return functions.concat(functions.date_format(thursday, "yyyy"), functions.lit("-W"), week)
        case "month":
            return functions.date_format(local, "yyyy-MM")
    return functions.date_format(local, "yyyy-MM-dd")


@dataclass(slots=True)
class _Spool:
    """
    Rows dealt out to their periods as they arrive, by what these start with; in files once there are too many for the
    memory.
    """

    folder: Path
    memory_bytes: int
    _held: dict[date, list[pl.DataFrame]] = field(default_factory=lambda: defaultdict(list))
    _files: dict[date, list[Path]] = field(default_factory=lambda: defaultdict(list))
    _bytes: dict[date, int] = field(default_factory=lambda: defaultdict(int))
    _held_bytes: int = 0

    @property
    def starts(self) -> list[date]:
        return sorted(self._bytes)

    @property
    def largest_bytes(self) -> int:
        """Size in memory of the largest period."""
        return max(1, *self._bytes.values())

    def add(self, rows: pl.DataFrame, starts: pl.Series) -> None:
        """
        Deal rows out to their periods.

        :param starts: start of each row's period
        """
        for start, part in _by_start(rows, starts):
            num_bytes = int(part.estimated_size())
            self._held[start].append(part)
            self._bytes[start] += num_bytes
            self._held_bytes += num_bytes
        if self._held_bytes > self.memory_bytes:
            self._spill()

    def take(self, start: date) -> pl.DataFrame:
        """Return the rows of a period, and forget them."""
        files = [pl.read_ipc(path) for path in self._files.pop(start, ())]
        rows: pl.DataFrame = pl.concat([*files, *self._held.pop(start, ())])
        return rows

    def _spill(self) -> None:
        for start, parts in self._held.items():
            path = self.folder / f"{start:%Y%m%dT%H%M}-{len(self._files[start])}.arrow"
            pl.concat(parts).write_ipc(path, compression="lz4")
            self._files[start].append(path)
        self._held.clear()
        self._held_bytes = 0


def _by_start(rows: pl.DataFrame, starts: pl.Series) -> Iterator[tuple[date, pl.DataFrame]]:
    runs = starts.rle().struct.unnest()
    if runs.height > starts.n_unique():
        keyed = rows.with_columns(starts.alias(_PERIOD))
        for (start,), part in keyed.partition_by(_PERIOD, as_dict=True, include_key=False).items():
            yield start, part
        return
    # Rows that come by time, as they mostly do, need no copying.
    place = 0
    for num_rows, start in runs.iter_rows():
        yield start, rows[place : place + num_rows]
        place += num_rows
