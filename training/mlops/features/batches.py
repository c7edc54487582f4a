"""A table in batches that fit into memory and never cut a group, to make features of more rows than fit."""

from __future__ import annotations

import math
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import narwhals as nw
import polars as pl

from mlops.contract.step import scratch_parent
from mlops.data.engine.engines import Table, collect, is_spark, map_polars, without_rows
from mlops.data.engine.spark import errors_received
from mlops.data.shards.spool import Spool

T = TypeVar("T")
BATCH_ROWS: Final = 131_072
"""Most rows of a batch: some tens of megabytes of raw rows and features. No result depends on this number."""
_BATCH_FEATURES: Final = 32 << 20
"""Most features of a batch, about: 128 MiB."""
_MAX_BUCKETS: Final = 512
_BUCKET: Final = "__bucket"
_RESULT: Final = "result"


class Batches(Protocol):
    """Batches of a table, which may be iterated any number of times."""

    schema: pl.Schema
    num_rows: int

    def map(self, function: Callable[[pl.DataFrame], T]) -> Iterator[T]:
        """
        Iterate over a function's results for all batches.

        :param function: called with one batch; run where the rows are, so that it must be picklable. No result depends
            on which rows share a batch, nor on the order in which results come
        """


def rows_of(num_features: int) -> int:
    """Return the number of rows of a batch, of which each has so many features, such as the pixels of an image."""
    return max(1, min(BATCH_ROWS, _BATCH_FEATURES // max(1, num_features)))


@contextmanager
def batches_of(table: Table | pl.DataFrame, group_by: Sequence[str], *, rows: int = BATCH_ROWS) -> Iterator[Batches]:
    """
    Cut a table into batches.

    :param group_by: columns whose equal values must share a batch; none: rows are cut anywhere
    :param rows: number of rows in a batch, about
    """
    frame: Table = nw.from_native(table).lazy() if isinstance(table, pl.DataFrame) else table
    if is_spark(frame):
        yield _SparkBatches(frame, group_by, rows)
        return
    lazy: pl.LazyFrame = frame.to_native()
    with tempfile.TemporaryDirectory(prefix="batches-", dir=scratch_parent()) as scratch:
        yield _PolarsBatches(lazy, group_by, rows, Path(scratch))


class _PolarsBatches:
    """
    Batches of a Polars table. Few rows are one batch, kept. More are read slice by slice; groups are first brought
    together on disk.
    """

    def __init__(self, table: pl.LazyFrame, group_by: Sequence[str], rows: int, scratch: Path) -> None:
        self.schema = table.collect_schema()
        self.num_rows: int = table.select(pl.len()).collect().item()
        self._table = table
        self._group_by = list(group_by)
        self._rows = rows
        self._scratch = scratch
        self._kept: pl.DataFrame | None = None
        self._spool: Spool | None = None

    def map(self, function: Callable[[pl.DataFrame], T]) -> Iterator[T]:
        return map(function, self._frames())

    def _frames(self) -> Iterator[pl.DataFrame]:
        if self.num_rows <= self._rows:
            if self._kept is None:
                self._kept = self._table.collect()
            yield self._kept
        elif self._group_by:
            num_buckets = min(_MAX_BUCKETS, math.ceil(self.num_rows / self._rows))
            if self._spool is None:
                self._spool = self._spooled(num_buckets)
            for bucket in range(num_buckets):
                if (part := self._spool.read(bucket)) is not None:
                    yield pl.DataFrame(part).cast(self.schema)
        else:
            yield from self._slices()

    def _slices(self) -> Iterator[pl.DataFrame]:
        # In order, so that a stream of rows is the same one each time; a batch may hold less.
        yield from self._table.collect_batches(chunk_size=self._rows, maintain_order=True)

    def _spooled(self, num_buckets: int) -> Spool:
        spool = Spool(self._scratch / "groups")
        for frame in self._slices():
            marked = frame.with_columns(_bucket_of(self._group_by, num_buckets))
            for (bucket,), part in marked.partition_by(_BUCKET, include_key=False, as_dict=True).items():
                spool.append(bucket, part.to_arrow(compat_level=pl.CompatLevel.oldest()))
        return spool


class _SparkBatches:
    """
    Batches of a Spark table: functions run in the executors, on whole groups by way of a shuffle, else on Arrow's
    batches.
    """

    def __init__(self, table: Table, group_by: Sequence[str], rows: int) -> None:
        self.schema = without_rows(table).to_native().collect_schema()
        self.num_rows: int = collect(table.select(nw.len())).item()
        self._table = table
        self._group_by = list(group_by)
        self._num_buckets = max(1, math.ceil(self.num_rows / rows))

    def map(self, function: Callable[[pl.DataFrame], T]) -> Iterator[T]:
        result = pl.Schema({_RESULT: pl.Binary})
        table, by = self._table, []
        if self._group_by:
            mark = partial(_marked, group_by=self._group_by, num_buckets=self._num_buckets)
            marked = pl.Schema({**self.schema, _BUCKET: pl.Int32})
            table, by = map_polars(table, mark, schema=marked), [_BUCKET]
        run = map_polars(table, partial(_run, function), by=by, schema=result)
        # Partition by partition: the results of all need not fit into this process.
        with errors_received():
            for row in run.to_native().toLocalIterator():
                yield pickle.loads(row[_RESULT])  # noqa: S301


def _bucket_of(group_by: list[str], num_buckets: int) -> pl.Expr:
    return (pl.struct(group_by).hash(seed=1) % num_buckets).cast(pl.Int32).alias(_BUCKET)


def _marked(frame: pl.DataFrame, group_by: list[str], num_buckets: int) -> pl.DataFrame:
    return frame.with_columns(_bucket_of(group_by, num_buckets))


def _run(function: Callable[[pl.DataFrame], object], frame: pl.DataFrame) -> pl.DataFrame:
    result = function(frame.drop(_BUCKET, strict=False))
    return pl.DataFrame({_RESULT: [pickle.dumps(result)]}, schema={_RESULT: pl.Binary})
