"""
Shards: train-ready float32 rows as uncompressed Arrow IPC, memory-mapped when opened.

One FixedSizeList column is one block of memory, so that a local shard is used in place, without a copy, and a batch is
gathered straight out of the page cache. The manifest says where in the file each block begins: a process that trains
maps them without Arrow, whose import would be paid by each of its ranks at each start.

Samples are shuffled within and between the shards of a split: they lie in the order of their ids, which are hashes of
what tells them apart. That order follows from the rows alone, whatever order, batch or engine they came from, so that
equal features are equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlops.contract.refs import FeaturesRef
from mlops.contract.step import BadDataError
from mlops.data.shards.batch import SampleSource, block_of, window_of
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.shard_cache import MAX_CACHE_BYTES, OpenShards, ShardCache
from mlops.data.shards.shard_files import columns_of, map_shards, offsets_of_samples
from mlops.data.shards.table_source import ShardRows, TableSource
from mlops.data.shards.tokens import TOKENS, TokenSource
from mlops.store import Store


def open_split(store: Store, ref: FeaturesRef, name: str, cache: Path) -> FeatureTable:
    """
    Map a split into memory. One shard on a local store is used in place; several are joined by a copy.

    :param cache: folder for shards of a remote store
    :raises BadDataError: where the features have no such split
    :raises DamagedObjectError: naming the shard whose bytes are not those that were written
    """
    split = _split(_manifest(store, ref), ref, name)
    if split.get("kind") == TOKENS:
        raise BadDataError(f"the split {name!r} of {ref.place} holds tokens, not rows; read it by a loader")
    return map_shards(store, split["shards"], cache)


def open_source(
    store: Store, ref: FeaturesRef, name: str, cache: Path, *, max_cache_bytes: int = MAX_CACHE_BYTES
) -> SampleSource:
    """
    Open a split for the loader, of rows, groups or tokens: no shard is read, or its digest checked, before it is used.

    :param cache: folder for shards of a remote store; the processes of a node may share it
    :param max_cache_bytes: size of that folder
    :raises BadDataError: where the features have no such split
    """
    manifest = _manifest(store, ref)
    split = _split(manifest, ref, name)
    shards = ShardCache(store, cache, max_cache_bytes)
    if split.get("kind") == TOKENS:
        return TokenSource.open(shards, split)
    grouped = bool(manifest.get("grouped", False))
    if not grouped and split["num_rows"] != split["num_samples"]:
        raise BadDataError(
            f"the split {name!r} of {ref.place} has {split['num_rows']} rows in {split['num_samples']} samples, but "
            "its manifest does not say that rows are grouped; run the features step again"
        )
    num_bytes = sum(shard["num_bytes"] for shard in split["shards"])
    return TableSource(
        OpenShards(shards, split["shards"], partial(_rows, grouped=grouped)),
        np.array([shard["num_samples"] for shard in split["shards"]], np.int64),
        grouped=grouped,
        window_samples=window_of(split["num_samples"], num_bytes),
        block_samples=block_of(split["num_samples"], num_bytes),
    )


def _manifest(store: Store, ref: FeaturesRef) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(store.read(ref.artifacts["manifest"]))
    return manifest


def _split(manifest: dict[str, Any], ref: FeaturesRef, name: str) -> dict[str, Any]:
    if name not in manifest["splits"]:
        raise BadDataError(f"the features at {ref.place} have no split {name!r}, only {', '.join(manifest['splits'])}")
    split: dict[str, Any] = manifest["splits"][name]
    return split


def _rows(path: Path, shard: Mapping[str, Any], *, grouped: bool) -> ShardRows:
    features, labels, ids = columns_of(path, shard)
    return ShardRows(features=features, labels=labels, offsets=offsets_of_samples(ids) if grouped else None)
