"""Make and store the features of every split, and compare some stored ones with those that a server makes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from mlops.contract.refs import Artifact
from mlops.contract.step import BadDataError
from mlops.data.engine.engines import Table
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.shard_files import map_shards
from mlops.data.shards.shard_writing import SplitWriter
from mlops.features.applied import FittedFeatures
from mlops.features.batches import Batches, batches_of, rows_of
from mlops.features.feature_set import FeatureSet
from mlops.features.fitted import version
from mlops.features.fitting import fit
from mlops.features.parity import check_served
from mlops.features.protocol import State
from mlops.features.release import engine
from mlops.store import Store

CHECKED_SAMPLES: Final = 16
"""Samples of each split that the serving gate checks. They are the first of its shards, hence drawn at random."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Materialised:
    """The result of materialising a feature set or a token set."""

    manifest: Mapping[str, Any]
    """Facts of this kind of features, and ``splits`` with their shards."""
    state: State
    version: str
    num_features: int


def materialise(
    store: Store, place: str, features: FeatureSet, tables: Mapping[str, Table], code: Artifact, event_time: str,
    scratch: Path, *, sample: float | None = None,
) -> Materialised:  # fmt: skip
    """
    Fit on the training split, and store every split.

    :param place: folder of the step
    :param tables: rows by split
    :param code: code of the feature set
    :param event_time: column that is kept with the keys of an entity
    :param sample: share of the samples to train on that is stored; None: all
    :raises BadDataError: where a split has no samples, or what a server makes is not what is stored
    """
    # As far as it is known before anything is fitted: of most transforms it is one.
    width = sum(getattr(transform, "num_features", 1) for transform in features.transforms) + len(features.label_names)
    with ExitStack() as stack:
        splits = {
            name: stack.enter_context(batches_of(table, features.group_by, rows=rows_of(width)))
            for name, table in tables.items()
        }
        fitted = FittedFeatures(features, fit(features, splits["train"]))
        keys = {f"key.{column}": column for column in features.entity}
        if keys:
            keys["event_time"] = event_time
        parts, num_checked = {}, 0
        for name, batches in splits.items():
            parts[name] = write_features(
                store, place, name, fitted, batches, keys, sample=sample if name == "train" else None
            )  # fmt: skip
            num_checked += check_stored(store, parts[name], fitted, batches, scratch)
    logger.info("serving parity: %d samples of all splits, served alone, equal the stored ones", num_checked)
    names = fitted.feature_names
    return Materialised(
        manifest={
            "feature_names": names,
            "categorical": fitted.categorical,
            "grouped": features.grouped,
            "group_by": list(features.group_by),
            "label_names": features.label_names,
            "several_labels": features.several_labels,
            "classes": features.class_names,
            "engine": engine(),
            "splits": parts,
        },
        state=fitted.state,
        version=version(code.sha256, fitted),
        num_features=len(names),
    )


def write_features(
    store: Store, place: str, name: str, fitted: FittedFeatures, batches: Batches, keys: Mapping[str, str],
    *, sample: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """
    Apply features to a split, batch by batch, and store its shards.

    :param place: folder of the step
    :param name: name of the split
    :param keys: raw columns that are kept beside the features, by the name that they have in the shards
    :param sample: share of the samples that is stored; None: all
    :return: the split's part of the manifest
    :raises BadDataError: where the split has no samples, or two of them have the same keys
    """
    num_features, num_labels = len(fitted.feature_names), len(fitted.feature_set.label_names)
    num_bytes = 4 * (num_features + num_labels) * batches.num_rows
    alike = not fitted.feature_set.order_by
    with SplitWriter(store, place, name, num_bytes=num_bytes, alike=alike) as writer:
        for table in batches.map(partial(fitted.apply, keys=keys)):
            writer.add(table if sample is None else _sampled(table, sample))
        part = writer.finish()
    if not part["num_samples"]:
        raise BadDataError(
            f"no samples in the split {name!r} of {batches.num_rows} rows; check where and min_group_size"
            + ("" if sample is None else ", or raise features.sample")
        )
    logger.info(
        "%s: %d samples, %d of %d rows, %d features, %d shards", name, part["num_samples"], part["num_rows"],
        batches.num_rows, num_features, len(part["shards"]),
    )  # fmt: skip
    return part


def _sampled(table: FeatureTable, share: float) -> FeatureTable:
    """Return the samples whose ids, which are hashes, are the least: the same in any batch, and on any engine."""
    assert table.ids is not None, "samples of the training split have ids"
    # In whole numbers: a float has no 64 bits.
    most = np.uint64(min(int(share * 2**64), 2**64 - 1))
    return table.take(np.flatnonzero(table.ids <= most))


def check_stored(store: Store, part: Mapping[str, Any], fitted: FittedFeatures, batches: Batches, cache: Path) -> int:
    """
    Run the serving gate on samples of a stored split; see :func:`mlops.features.parity.check_served`.

    :param part: the split's part of the manifest
    :return: number of samples compared
    """
    stored = map_shards(store, part["shards"][:1], cache)
    stored = stored.samples(0, min(CHECKED_SAMPLES, stored.num_samples))
    assert stored.ids is not None, "shards hold ids"
    frames = batches.map(partial(fitted.with_ids, ids=stored.ids))
    return check_served(fitted, pl.concat(frames), stored)
