"""
Shards: train-ready float32 rows as uncompressed Arrow IPC, memory-mapped when opened.

One FixedSizeList column is one block of memory, so that a local shard is used in place, without a copy, and a batch is
gathered straight out of the page cache.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mlops_provider.refs import Artifact, FeaturesRef
from mlops_provider.step import BadDataError
from training.store import Store

MAX_SHARD_BYTES: Final = 1024 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureTable:
    """Rows ready for a model. A sample is a row, or a group of rows that are ranked together."""

    features: npt.NDArray[np.float32]
    """[N, F]"""
    labels: npt.NDArray[np.float32]
    """[N]"""
    offsets: npt.NDArray[np.int64]
    """[S + 1]; sample i is rows ``offsets[i]:offsets[i + 1]``."""

    def __post_init__(self) -> None:
        assert self.features.ndim == 2, self.features.shape
        assert self.labels.shape == self.features.shape[:1], (self.labels.shape, self.features.shape)
        dtypes = [str(array.dtype) for array in (self.features, self.labels, self.offsets)]
        assert dtypes == ["float32", "float32", "int64"], dtypes
        assert (self.offsets[0], self.offsets[-1]) == (0, len(self.features)), "offsets span all rows"

    @property
    def num_rows(self) -> int:
        return len(self.features)

    @property
    def num_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def num_samples(self) -> int:
        return len(self.offsets) - 1

    def samples(self, start: int, stop: int) -> FeatureTable:
        """Samples ``start:stop`` as views of the same memory."""
        first, last = self.offsets[start], self.offsets[stop]
        return FeatureTable(
            features=self.features[first:last],
            labels=self.labels[first:last],
            offsets=self.offsets[start : stop + 1] - first,
        )


def write_split(
    store: Store, place: str, name: str, table: FeatureTable, max_shard_bytes: int = MAX_SHARD_BYTES
) -> dict[str, Any]:
    """
    Store a split in shards; a sample is never cut.

    :param place: folder of the step
    :param name: of the split, e.g. ``train``
    :return: its part of the manifest: ``num_rows``, ``num_samples``, ``shards``
    """
    rows_per_shard = max(1, max_shard_bytes // (4 * table.num_features + 12))
    shards: list[dict[str, Any]] = []
    start = 0
    while start < table.num_samples or not shards:
        limit = table.offsets[start] + rows_per_shard
        stop = min(max(int(np.searchsorted(table.offsets, limit, side="right")) - 1, start + 1), table.num_samples)
        part = table.samples(start, stop)
        artifact = store.put_artifact(place, f"{name}-{len(shards):05d}.arrow", _encode(part, first_sample=start))
        shards.append(
            {
                "key": artifact.key,
                "sha256": artifact.sha256,
                "num_bytes": artifact.num_bytes,
                "num_rows": part.num_rows,
                "num_samples": part.num_samples,
            }
        )
        start = stop
    return {"num_rows": table.num_rows, "num_samples": table.num_samples, "shards": shards}


def open_split(store: Store, ref: FeaturesRef, name: str, cache: Path) -> FeatureTable:
    """
    Map a split into memory. One shard on a local store is used in place; several are joined by a copy.

    :param cache: folder for shards of a remote store
    :raises BadDataError: where the features have no such split
    :raises DamagedObjectError: naming the shard whose bytes are not those that were written
    """
    manifest = json.loads(store.read(ref.artifacts["manifest"]))
    if name not in manifest["splits"]:
        raise BadDataError(f"the features at {ref.place} have no split {name!r}, only {', '.join(manifest['splits'])}")
    parts = [
        _decode(store.local_file(Artifact(key=s["key"], sha256=s["sha256"], num_bytes=s["num_bytes"]), cache))
        for s in manifest["splits"][name]["shards"]
    ]
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return FeatureTable(
        features=np.concatenate([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
    )


def _encode(table: FeatureTable, first_sample: int) -> bytes:
    features = pa.array(np.ascontiguousarray(table.features).reshape(-1))
    samples = np.repeat(np.arange(table.num_samples, dtype=np.int64) + first_sample, np.diff(table.offsets))
    batch = pa.record_batch(
        {
            "features": pa.FixedSizeListArray.from_arrays(features, table.num_features),
            "label": pa.array(table.labels),
            "sample": pa.array(samples),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _decode(path: Path) -> FeatureTable:
    # The arrays keep the mapping alive through their buffers.
    batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    width = batch.schema.field("features").type.list_size
    samples = batch.column("sample").to_numpy(zero_copy_only=True)
    starts = np.flatnonzero(np.diff(samples, prepend=-1))
    return FeatureTable(
        features=batch.column("features").flatten().to_numpy(zero_copy_only=True).reshape(-1, width),
        labels=batch.column("label").to_numpy(zero_copy_only=True),
        offsets=np.append(starts, len(samples)).astype(np.int64),
    )
