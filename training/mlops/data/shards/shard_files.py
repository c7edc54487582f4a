"""The files of shards, mapped into memory: see :mod:`mlops.data.shards.shard_reading`. Without Arrow, Polars and
torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mlops.contract.refs import Artifact
from mlops.data.shards.feature_table import FeatureTable, IntArray, concat
from mlops.store import Store

COLUMNS: Final = ("features", "label", "sample")
"""The first columns of a shard: ``[N, F]`` float32, ``[N]`` or ``[N, L]`` float32, and ``[N]``
uint64: the id of its sample."""


def map_shards(store: Store, shards: list[dict[str, Any]], cache: Path) -> FeatureTable:
    """Map shards into memory, see :func:`open_split`; ``keys`` are left out."""
    files = [
        store.local_file(Artifact(key=s["key"], sha256=s["sha256"], num_bytes=s["num_bytes"]), cache) for s in shards
    ]
    return concat([_table(path, shard) for path, shard in zip(files, shards, strict=True)])


def _table(path: Path, shard: Mapping[str, Any]) -> FeatureTable:
    features, labels, ids = columns_of(path, shard)
    offsets = offsets_of_samples(ids)
    return FeatureTable(features=features, labels=labels, offsets=offsets, ids=ids[offsets[:-1]])


def columns_of(
    path: Path, shard: Mapping[str, Any]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.uint64]]:
    """
    Return a shard's ``[N, F]`` features, ``[N]`` or ``[N, L]`` labels and ``[N]`` ids of the samples, in place.

    :param shard: the shard's part of the manifest
    """
    file: npt.NDArray[np.uint8] = np.asarray(np.memmap(path, np.uint8, mode="r"))
    num_rows, width = shard["num_rows"], shard["num_features"]

    def column(name: str, dtype: Any, values: int) -> Any:
        start = shard["starts"][name]
        return file[start : start + values * np.dtype(dtype).itemsize].view(dtype)

    features = column("features", np.float32, num_rows * width).reshape(num_rows, width)
    num_labels = shard["num_labels"]
    labels = column("label", np.float32, num_rows * (num_labels or 1))
    if num_labels is not None:
        labels = labels.reshape(num_rows, num_labels)
    return features, labels, column("sample", np.uint64, num_rows)


def offsets_of_samples(ids: npt.NDArray[np.uint64]) -> IntArray:
    """Return ``[S + 1]``, the offsets of a shard's samples: no two of them have one id."""
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.empty(0, np.int64)
    return np.append(starts, len(ids)).astype(np.int64)
