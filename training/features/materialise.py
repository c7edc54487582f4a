"""Make a split's features, store them as shards, and hold some of what was stored against what a server makes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from mlops_provider.step import BadDataError
from training.data.shards import SplitWriter, map_shards
from training.features.applied import FittedFeatures
from training.features.batches import Batches
from training.features.parity import check_served
from training.store import Store

CHECKED_SAMPLES: Final = 16
"""Of each split, by the serving gate. They lie first in its shards, hence are drawn at random."""

logger = logging.getLogger(__name__)


def materialise(
    store: Store, place: str, name: str, fitted: FittedFeatures, batches: Batches, keys: Mapping[str, str]
) -> dict[str, Any]:
    """
    Apply features to a split, batch by batch, and store its shards.

    :param place: folder of the step
    :param name: of the split
    :param keys: raw columns that are kept beside the features, by the name that they have in the shards
    :return: the split's part of the manifest
    :raises BadDataError: where the split has no samples, or two of them have the same keys
    """
    num_features = len(fitted.feature_names)
    with SplitWriter(store, place, name, num_bytes=4 * num_features * batches.num_rows) as writer:
        for table in batches.map(partial(fitted.apply, keys=keys)):
            writer.add(table)
        part = writer.finish()
    if not part["num_samples"]:
        raise BadDataError(
            f"no samples in the split {name!r} of {batches.num_rows} rows; check where and min_group_size"
        )
    logger.info(
        "%s: %d samples, %d of %d rows, %d features, %d shards", name, part["num_samples"], part["num_rows"],
        batches.num_rows, num_features, len(part["shards"]),
    )  # fmt: skip
    return part


def check_stored(store: Store, part: Mapping[str, Any], fitted: FittedFeatures, batches: Batches, cache: Path) -> int:
    """
    The serving gate on samples of a stored split; see :func:`training.features.parity.check_served`.

    :param part: the split's part of the manifest
    :return: samples compared
    """
    stored = map_shards(store, part["shards"][:1], cache)
    stored = stored.samples(0, min(CHECKED_SAMPLES, stored.num_samples))
    assert stored.ids is not None, "shards hold ids"
    frames = batches.map(partial(fitted.with_ids, ids=stored.ids))
    return check_served(fitted, pl.concat(frames), stored)
