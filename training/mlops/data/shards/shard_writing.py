"""Write shards, see :mod:`mlops.data.shards.shard_reading`. It is apart from reading them, which needs neither
Polars nor Arrow."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from mlops.contract.step import BadDataError, scratch_parent
from mlops.data.shards.feature_table import FeatureTable, concat
from mlops.data.shards.label_values import SplitLabels
from mlops.data.shards.shard_files import COLUMNS, offsets_of_samples
from mlops.data.shards.spool import Spool
from mlops.store import Store

MAX_SHARD_BYTES: Final = 127 * 1024 * 1024
"""Most bytes of the rows of a shard; the file's schema and padding stay below the 128 MB that a shard may have."""
_BUCKET_BYTES: Final = 64 * 1024 * 1024
_MAX_BUCKETS: Final = 512
_OFFSET_BYTES: Final = 8
"""Where a text begins in its column."""


def write_split(
    store: Store, place: str, name: str, table: FeatureTable, *, keys: pl.DataFrame | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> dict[str, Any]:  # fmt: skip
    """
    Store a split that is in memory; see :class:`SplitWriter`.

    :param keys: further columns to store, row for row
    :return: the split's part of the manifest: ``num_rows``, ``num_samples``, ``shards``
    """
    with SplitWriter(store, place, name, max_shard_bytes=max_shard_bytes) as writer:
        writer.add(table if keys is None else replace(table, keys=keys))
        return writer.finish()


class SplitWriter:
    """
    Stores a split that comes in pieces, in any order, in shards of equal size: they differ by less than a sample's
    rows, for a sample is never cut. Samples without ids keep the order in which they come.

    What does not fit into memory is dealt into buckets on local disk by the upper bits of the ids; each bucket is then
    sorted in memory.

    :param place: folder of the step
    :param name: name of the split, e.g. ``train``
    :param num_bytes: about the size of all rows that will come; if that is more than a bucket, samples must have ids
    :param alike: True: samples are rows, of which several may be alike and then have one id
    """

    def __init__(
        self, store: Store, place: str, name: str, *, num_bytes: int = 0, alike: bool = False,
        max_shard_bytes: int = MAX_SHARD_BYTES, bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:  # fmt: skip
        self._store, self._place, self._name, self._alike = store, place, name, alike
        self._max_shard_bytes = max_shard_bytes
        self._num_buckets = min(_MAX_BUCKETS, max(1, math.ceil(num_bytes / bucket_bytes)))
        self._scratch = tempfile.TemporaryDirectory(prefix="shards-", dir=scratch_parent())
        self._spool = Spool(Path(self._scratch.name, "buckets"))
        self._kept: list[FeatureTable] = []
        self._num_rows = self._row_bytes = self._key_bytes = 0
        self._labels = SplitLabels()

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def add(self, table: FeatureTable) -> None:
        self._num_rows += table.num_rows
        self._labels.add(table.labels)
        self._row_bytes = row_bytes(table)
        # A sum of all, for a mean of each batch would tell of the batches: they are the engine's.
        self._key_bytes += 0 if table.keys is None else key_bytes(table.keys)
        if self._num_buckets == 1:
            self._kept.append(table)
            return
        assert table.ids is not None, "only samples with ids can be dealt into buckets"
        buckets = ((table.ids >> np.uint64(32)) * np.uint64(self._num_buckets)) >> np.uint64(32)
        for bucket in np.unique(buckets):
            part = table.take(np.flatnonzero(buckets == bucket))
            self._spool.append(int(bucket), pa.Table.from_batches([_to_arrow(part, first_sample=0)]))
        self._kept = [table.samples(0, 0)]

    def finish(self) -> dict[str, Any]:
        """
        Store the samples that were added.

        :return: the split's part of the manifest: ``num_rows``, ``num_samples``, ``labels`` (see
            :class:`SplitLabels`), ``shards``
        :raises BadDataError: where two samples have one id: their keys do not tell them apart
        """
        shards: list[dict[str, Any]] = []
        num_samples = 0
        for table in self._shards():
            path = Path(self._scratch.name, f"{self._name}-{len(shards):05d}.arrow")
            batch = _to_arrow(table, first_sample=num_samples)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
            starts = _starts(path)
            artifact = self._store.put_artifact(self._place, path.name, path)
            path.unlink()
            shards.append(
                {
                    "key": artifact.key,
                    "sha256": artifact.sha256,
                    "num_bytes": artifact.num_bytes,
                    "num_rows": table.num_rows,
                    "num_samples": table.num_samples,
                    "num_features": table.num_features,
                    "num_labels": table.labels.shape[1] if table.labels.ndim == 2 else None,
                    "starts": starts,
                }
            )
            num_samples += table.num_samples
        return {
            "num_rows": self._num_rows,
            "num_samples": num_samples,
            "labels": self._labels.listed(),
            "shards": shards,
        }

    def _shards(self) -> Iterator[FeatureTable]:
        """Iterate over the samples in their order, cut into shards; a split without samples is one empty shard."""
        num_bytes = self._num_rows * self._row_bytes + self._key_bytes
        num_shards = max(1, -(-num_bytes // self._max_shard_bytes))
        pending: list[FeatureTable] = []
        current = first_row = 0
        for table in self._buckets():
            # A sample belongs to the shard that its first row falls into.
            places = (table.offsets[:-1] + first_row) * num_shards // max(1, self._num_rows)
            edges = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), table.num_samples]
            for start, stop in pairwise(edges):
                if start < stop and places[start] != current:
                    if pending:
                        yield concat(pending)
                    pending, current = [], int(places[start])
                if start < stop:
                    pending.append(table.samples(start, stop))
            first_row += table.num_rows
        yield concat(pending) if pending else self._kept[0]

    def _buckets(self) -> Iterator[FeatureTable]:
        if self._num_buckets == 1:
            yield self._sorted(concat(self._kept))
            return
        for bucket in range(self._num_buckets):
            if (part := self._spool.read(bucket)) is not None:
                yield self._sorted(concat([_from_arrow(batch, alike=self._alike) for batch in part.to_batches()]))

    def _sorted(self, table: FeatureTable) -> FeatureTable:
        if table.ids is None:
            return table
        order = np.argsort(table.ids, kind="stable")
        ids = table.ids[order]
        if self._alike:
            # Rows that are alike may come in any order, but each is a sample.
            return replace(table.take(order), ids=_told_apart(ids))
        if (same := np.flatnonzero(ids[1:] == ids[:-1])).size:
            raise BadDataError(
                f"{len(same)} samples of the split {self._name!r} have the keys of another one: rows are doubled, or "
                "order_by (group_by, where rows are grouped) does not tell them apart; add a column to it"
            )
        return table.take(order)


def row_bytes(table: FeatureTable) -> int:
    """Return the bytes of one row in a shard, without its keys."""
    num_labels = table.labels.shape[1] if table.labels.ndim == 2 else 1
    return 4 * (table.num_features + num_labels) + 8


def key_bytes(keys: pl.DataFrame) -> int:
    """
    Return the bytes of keys in a shard, without the bits that tell nulls. Those of parts add up to those of the whole.
    """
    num_bytes = 0
    for column in keys.get_columns():
        physical = column.dtype if column.dtype == pl.String else column.to_physical().dtype
        if physical == pl.String:
            num_bytes += int(column.str.len_bytes().sum())
        num_bytes += len(column) * (_fixed_width(physical) if physical.is_numeric() else _OFFSET_BYTES)
    return num_bytes


def _fixed_width(dtype: pl.DataType) -> int:
    return int(pl.Series([0], dtype=dtype).estimated_size())


def _to_arrow(table: FeatureTable, first_sample: int) -> pa.RecordBatch:
    """
    Convert a table to Arrow, in the columns of a shard.

    :param first_sample: number of the first sample, if samples have no ids
    """
    features = pa.array(np.ascontiguousarray(table.features).reshape(-1))
    ids = np.arange(table.num_samples, dtype=np.uint64) + np.uint64(first_sample) if table.ids is None else table.ids
    columns = {
        "features": pa.FixedSizeListArray.from_arrays(features, table.num_features),
        "label": _label_column(table.labels),
        "sample": pa.array(np.repeat(ids, np.diff(table.offsets))),
    }
    if table.keys is not None:
        keys = table.keys.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        columns |= {name: keys.column(name).combine_chunks() for name in keys.column_names}
    return pa.record_batch(columns)


def _label_column(labels: npt.NDArray[np.float32]) -> pa.Array:
    if labels.ndim == 1:
        return pa.array(labels)
    values = pa.array(np.ascontiguousarray(labels).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, labels.shape[1])


def _label_values(column: pa.Array) -> pa.Array:
    """Return the labels of a column, flat."""
    return column.flatten() if pa.types.is_fixed_size_list(column.type) else column


def _told_apart(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Count up equal ids, which are sorted, so that they differ and stay sorted."""
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]]) if len(ids) else np.empty(0, np.int64)
    counted = np.arange(len(ids)) - np.repeat(starts, np.diff(np.r_[starts, len(ids)]))
    apart = ids + counted.astype(np.uint64)
    assert (apart[1:] > apart[:-1]).all(), "hashes of 64 bits lie further apart than there are rows that are alike"
    return apart


def _from_arrow(batch: pa.RecordBatch, *, alike: bool) -> FeatureTable:
    """
    Return a bucket's rows, in place.

    :param alike: True: each row is a sample, whatever its id
    """
    width = batch.schema.field("features").type.list_size
    # Not to_numpy, which imports pandas: half a second of each process that starts.
    features: Any = np.from_dlpack(batch.column("features").flatten())
    labels: Any = np.from_dlpack(_label_values(batch.column("label")))
    if (several := batch.schema.field("label").type) != pa.float32():
        labels = labels.reshape(-1, several.list_size)
    ids = np.from_dlpack(batch.column("sample")).view(np.uint64)
    offsets = np.arange(len(ids) + 1, dtype=np.int64) if alike else offsets_of_samples(ids)
    names = batch.schema.names[len(COLUMNS) :]
    return FeatureTable(
        features=features.reshape(-1, width),
        labels=labels,
        offsets=offsets,
        ids=ids[offsets[:-1]],
        keys=pl.DataFrame(batch.select(names)) if names else None,
    )


def _starts(path: Path) -> dict[str, int]:
    """Return where each of :data:`COLUMNS` begins in a shard's file, in bytes."""
    with pa.memory_map(str(path)) as file:
        start = file.read_buffer().address
        batch = pa.ipc.open_file(file).get_batch(0)
        values = [batch.column("features").flatten(), _label_values(batch.column("label")), batch.column("sample")]
        return {
            name: 0 if column.buffers()[1] is None else column.buffers()[1].address - start
            for name, column in zip(COLUMNS, values, strict=True)
        }
