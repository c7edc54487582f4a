"""
Rows to blobs, a day at a time: only a single day must fit in memory.

On Polars the rows stream by once and are dealt out to their days, in memory up to a budget and in files beyond it. On
Spark they are grouped by day, and executors store them. A day is written by the same code on both.
"""

from __future__ import annotations

import os
import pickle
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import narwhals as nw
import polars as pl

from mlops.contract.sections.ingest import AnySplit, TimeSplit
from mlops.data.engine.engines import Table, collect, is_spark, map_polars
from mlops.data.snapshots.canonical import encode, encode_pieces, in_order, normalise
from mlops.data.snapshots.manifest import Blob, Partition
from mlops.data.snapshots.splits import SPLITS, index_of
from mlops.process import memory_limit
from mlops.store import Store

_MAX_SPOOL_BYTES: Final = 1024**3
_DAY: Final = "__day"
_STORED: Final = pl.Schema({"stored": pl.Binary()})


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDay:
    """A partition whose blobs are in the store."""

    partition: Partition
    schema: tuple[tuple[str, str], ...]
    """Column names and polars types."""
    split_rows: dict[str, int]
    """Rows of each split, where these are not whole days."""
    num_new_blobs: int
    num_new_bytes: int
    """Bytes that the store did not have yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DayWriter:
    """Stores the rows of a day. It is picklable, because Spark's executors store rows where they are."""

    store_uri: str
    event_time: str
    split: AnySplit
    max_blob_bytes: int

    def write(self, day: str, rows: pl.DataFrame) -> StoredDay:
        """
        Cut the rows into blobs, and index their splits where those are not whole days.

        :raises BadDataError: where a column or key cannot be stored
        """
        store = Store(self.store_uri)
        rows = in_order(normalise(rows), self.event_time)
        stored = [_store(store, data, num_rows) for data, num_rows in encode_pieces(rows, self.max_blob_bytes)]
        blobs = tuple(blob for blob, _ in stored)
        index, split_rows = None, {}
        if not isinstance(self.split, TimeSplit):
            names = index_of(rows, self.split, day)
            split_rows = {name: int((names.to_series() == name).sum()) for name in SPLITS}
            stored.append(_store(store, encode(names), rows.height))
            index = stored[-1][0]
        return StoredDay(
            partition=Partition(
                day=day, num_rows=rows.height, num_bytes=sum(b.num_bytes for b in blobs), blobs=blobs, index=index
            ),
            schema=tuple((name, str(dtype)) for name, dtype in rows.schema.items()),
            split_rows=split_rows,
            num_new_blobs=sum(new for _, new in stored),
            num_new_bytes=sum(blob.num_bytes for blob, new in stored if new),
        )

    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Store one of Spark's groups, whose rows are all of one day."""
        stored = self.write(str(rows[_DAY][0]), rows.drop(_DAY))
        return pl.DataFrame({"stored": [pickle.dumps(stored)]}, schema=_STORED)


def _store(store: Store, data: bytes, num_rows: int) -> tuple[Blob, bool]:
    artifact, new = store.put_blob(data, ".parquet")
    return Blob(key=artifact.key, sha256=artifact.sha256, num_bytes=artifact.num_bytes, num_rows=num_rows), new


def write_days(table: Table, writer: DayWriter, *, timezone: str, scratch: Path) -> list[StoredDay]:
    """
    Store a table's rows by calendar day of a time zone.

    :param scratch: folder for rows that do not fit in memory
    :return: the days, oldest first
    """
    if is_spark(table):
        return _write_on_spark(table, writer, timezone)
    spool_bytes = min(_MAX_SPOOL_BYTES, memory_limit() // 8)
    spool = _Spool(scratch, spool_bytes)
    day = pl.col(writer.event_time).dt.convert_time_zone(timezone).dt.date()
    rows: pl.LazyFrame = table.to_native()
    with pl.Config(streaming_chunk_size=_batch_rows(rows.collect_schema())):
        # In order, though the order is worthless: otherwise Polars reads all files of a table at once, and holds them.
        for batch in rows.collect_batches(maintain_order=True):
            spool.add(batch, batch.select(day).to_series())
    days = spool.days
    if not days:
        return []
    # As many at once as fit the budget: a day is held about three times (as it came, in order, encoded). More of them
    # than cores, for each waits now and then for the disk.
    num_threads = max(1, min(2 * (os.cpu_count() or 1), spool_bytes // (3 * spool.largest_bytes)))
    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(lambda day: writer.write(day, spool.take(day)), days))


def _batch_rows(schema: pl.Schema) -> int:
    """
    Return the number of rows in about 4 MB: Polars holds dozens of batches in flight, and its own are 100,000 rows,
    however wide.
    """
    row_bytes = sum(8 if dtype.is_numeric() or dtype.is_temporal() else 32 for dtype in schema.dtypes())
    return min(100_000, max(5_000, 4_000_000 // row_bytes))


def _write_on_spark(table: Table, writer: DayWriter, timezone: str) -> list[StoredDay]:
    from pyspark.sql import functions

    # narwhals has no time zones on Spark; the session's own is UTC.
    local = functions.from_utc_timestamp(functions.col(writer.event_time), timezone)
    days = nw.from_native(table.to_native().withColumn(_DAY, functions.date_format(local, "yyyy-MM-dd")))
    stored = collect(map_polars(days, writer, by=[_DAY], schema=_STORED))
    return sorted((pickle.loads(row) for row in stored["stored"]), key=lambda each: each.partition.day)  # noqa: S301


@dataclass(slots=True)
class _Spool:
    """Rows dealt out to their days as they arrive; in files once there are too many for the memory."""

    folder: Path
    memory_bytes: int
    _held: dict[str, list[pl.DataFrame]] = field(default_factory=lambda: defaultdict(list))
    _files: dict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    _day_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _held_bytes: int = 0

    @property
    def days(self) -> list[str]:
        return sorted(self._day_bytes)

    @property
    def largest_bytes(self) -> int:
        """Size in memory of the largest day."""
        return max(1, *self._day_bytes.values())

    def add(self, rows: pl.DataFrame, days: pl.Series) -> None:
        """
        Deal rows out to their days.

        :param days: day of each row
        """
        for day, part in _by_day(rows, days):
            num_bytes = int(part.estimated_size())
            self._held[day].append(part)
            self._day_bytes[day] += num_bytes
            self._held_bytes += num_bytes
        if self._held_bytes > self.memory_bytes:
            self._spill()

    def take(self, day: str) -> pl.DataFrame:
        """Return the rows of a day, and forget them."""
        files = [pl.read_ipc(path) for path in self._files.pop(day, ())]
        rows: pl.DataFrame = pl.concat([*files, *self._held.pop(day, ())])
        return rows

    def _spill(self) -> None:
        for day, parts in self._held.items():
            path = self.folder / f"{day}-{len(self._files[day])}.arrow"
            pl.concat(parts).write_ipc(path, compression="lz4")
            self._files[day].append(path)
        self._held.clear()
        self._held_bytes = 0


def _by_day(rows: pl.DataFrame, days: pl.Series) -> Iterator[tuple[str, pl.DataFrame]]:
    runs = days.rle().struct.unnest()
    if runs.height > days.n_unique():
        for (day,), part in (
            rows.with_columns(days.alias(_DAY)).partition_by(_DAY, as_dict=True, include_key=False).items()
        ):
            yield str(day), part
        return
    # Rows that come by time, as they mostly do, need no copying.
    start = 0
    for num_rows, day in runs.iter_rows():
        yield str(day), rows[start : start + num_rows]
        start += num_rows
