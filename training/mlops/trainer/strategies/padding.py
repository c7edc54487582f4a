"""Micro batches of one shape, as a pipeline needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from mlops.data.shards.loader import Batch
    from mlops.trainer.parallel import Ranks


def common_size(batches: Sequence[Batch], ranks: Ranks) -> tuple[int, int]:
    """
    Samples, and rows where grouped, else 0, that each micro batch of each rank fits in. Called by all ranks.

    For a new shape torch runs the stage once more, and with it the collectives of sharded layers. So the data-parallel
    ranks must meet new shapes together.
    """
    samples = max(len(batch.weights) for batch in batches)
    grouped = batches[0].mask is not None
    longest = max(batch.features.shape[1] for batch in batches) if grouped else 0
    if ranks.data_world_size > 1:
        samples, longest = ranks.reduce(largest=[samples, longest]).largest
    # Powers of two: few shapes, for each costs a trial run.
    return samples, 1 << (longest - 1).bit_length() if grouped else 0


def alike(batches: Sequence[Batch], samples: int, rows: int) -> list[Batch]:
    """Pad with samples of weight 0, and with rows of 0."""
    return [_padded(batch, samples, rows) for batch in batches]


def _padded(batch: Batch, samples: int, rows: int) -> Batch:
    missing = samples - len(batch.weights)
    if missing:
        take = torch.cat([torch.arange(len(batch.weights)), torch.zeros(missing, dtype=torch.int64)])
        take = take.to(batch.weights.device)
        batch = replace(
            batch,
            features=batch.features[take],
            labels=batch.labels[take],
            mask=None if batch.mask is None else batch.mask[take],
            weights=functional.pad(batch.weights, (0, missing)),
        )
    short = rows - batch.features.shape[1] if batch.mask is not None else 0
    if short > 0:
        assert batch.mask is not None
        batch = replace(
            batch,
            features=functional.pad(batch.features, (0, 0, 0, short)),
            labels=functional.pad(batch.labels, (*[0, 0] * (batch.labels.ndim - 2), 0, short)),
            mask=functional.pad(batch.mask, (0, short)),
        )
    return batch
