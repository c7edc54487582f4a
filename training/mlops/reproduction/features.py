"""The comparison of two materialisations of one feature set, to the bit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlops.contract.refs import FeaturesRef
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.shard_reading import open_split
from mlops.data.shards.tokens import TOKENS
from mlops.features.fitted import read_manifest
from mlops.store import Store


def compare_features(store: Store, then: FeaturesRef, now: FeaturesRef, cache: Path) -> list[str]:
    """
    Compare fitted state and shards, by their digests; where they differ, by their values.

    :param cache: folder for shards of a remote store
    :return: a sentence for each difference; empty if all is equal
    """
    found = []
    if then.artifacts["state"].sha256 != now.artifacts["state"].sha256:
        states = [json.loads(store.read(ref.artifacts["state"])) for ref in (then, now)]
        where = next(_paths_that_differ(states[0], states[1], "state"), "its form")
        found.append(f"the fitted state differs, first in {where}")
    before, after = (read_manifest(store, ref) for ref in (then, now))
    for name in before["splits"]:
        digests = [[shard["sha256"] for shard in manifest["splits"][name]["shards"]] for manifest in (before, after)]
        if digests[0] != digests[1]:
            found.append(f"the shards of the split {name} differ: {_in_split(store, then, now, name, cache)}")
    if then.version != now.version and not found:
        found.append(f"the versions differ, {then.version[:12]} then and {now.version[:12]} now: code or engine do")
    return found


def _in_split(store: Store, then: FeaturesRef, now: FeaturesRef, name: str, cache: Path) -> str:
    manifest = read_manifest(store, then)
    part = manifest["splits"][name]
    if part.get("kind") == TOKENS:
        return f"{part['num_samples']:,} samples of tokens then, {now.num_samples[name]:,} now"
    before, after = (open_split(store, ref, name, cache) for ref in (then, now))
    return _in_table(before, after, manifest["feature_names"])


def _in_table(then: FeatureTable, now: FeatureTable, feature_names: Sequence[str]) -> str:
    if then.features.shape != now.features.shape:
        (rows, columns), (rows_now, columns_now) = then.features.shape, now.features.shape
        return f"{rows} rows of {columns} features then, {rows_now} of {columns_now} now"
    unequal = then.features.view(np.uint32) != now.features.view(np.uint32)
    if not unequal.any():
        return "not in features, but in labels, ids or keys"
    columns = np.flatnonzero(unequal.any(axis=0))
    row = int(np.flatnonzero(unequal.any(axis=1))[0])
    apart = np.abs(then.features.astype(np.float64) - now.features)
    names = [feature_names[column] for column in columns.tolist()]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}, first in row {row}, by at most {np.nanmax(apart):.3g}"


def _paths_that_differ(then: Any, now: Any, path: str) -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in sorted(then.keys() | now.keys()):
            yield from _paths_that_differ(then.get(name), now.get(name), f"{path}.{name}")
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for position, (old, new) in enumerate(zip(then, now, strict=True)):
            yield from _paths_that_differ(old, new, f"{path}[{position}]")
    elif then != now:
        yield f"{path}: {_short(then)} then, {_short(now)} now"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
