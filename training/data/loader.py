"""
Batches for torch from a memory-mapped table, in an order that is a pure function of (seed, epoch).

Global batch ``b`` of an epoch is a fixed slice of one permutation, and rank ``r`` takes every ``world_size``-th sample
of it: any number of ranks sees the same global batches, and each sample exactly once per epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from training.data.feature_table import FeatureTable

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Samples of one rank: B samples of F features; grouped samples have D rows, D the longest of this batch."""

    features: Tensor
    """``[B, F]``, or ``[B, D, F]`` where grouped; float32; padding is 0."""
    labels: Tensor
    """``[B]``, or ``[B, D]``; float32; padding is 0."""
    mask: Tensor | None
    """``[B, D]``, True for rows that are there; None where not grouped."""
    weights: Tensor
    """``[B]``, 1 for a sample, 0 for the stand-in of a rank that has none."""
    samples: IntArray
    """``[B]``, position of each sample in the split."""

    def to(self, device: torch.device) -> Batch:
        return Batch(
            features=self.features.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            mask=None if self.mask is None else self.mask.to(device, non_blocking=True),
            weights=self.weights.to(device, non_blocking=True),
            samples=self.samples,
        )


def sample_order(num_samples: int, seed: int, epoch: int) -> IntArray:
    """The permutation of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(num_samples)


def gather(table: FeatureTable, samples: IntArray, *, grouped: bool, weight: float = 1.0) -> Batch:
    """Copy the samples out of the memory map, padded to the longest of them where grouped."""
    starts = table.offsets[samples]
    mask: npt.NDArray[np.bool_] | None = None
    if grouped:
        lengths = table.offsets[samples + 1] - starts
        within = np.arange(lengths.max(initial=1))
        mask = within < lengths[:, None]
        # Padding points at the sample's first row, which exists; its values are then cleared.
        rows = np.where(mask, starts[:, None] + within, starts[:, None])
        features, labels = table.features[rows], table.labels[rows]
        features[~mask] = 0
        labels[~mask] = 0
    else:
        features, labels = table.features[starts], table.labels[starts]
    return Batch(
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels),
        mask=None if mask is None else torch.from_numpy(mask),
        weights=torch.full((len(samples),), weight),
        samples=samples,
    )


def in_order(table: FeatureTable, batch_size: int, *, grouped: bool) -> Iterator[Batch]:
    """Every sample once, in the order of the split: for validation and scoring."""
    num_samples = len(table.offsets) - 1
    for first in range(0, num_samples, batch_size):
        yield gather(table, np.arange(first, min(first + batch_size, num_samples)), grouped=grouped)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """One rank's share of the training split."""

    table: FeatureTable
    grouped: bool
    global_batch: int
    """Samples per optimizer step over all ranks."""
    seed: int
    rank: int
    world_size: int

    @property
    def num_samples(self) -> int:
        return len(self.table.offsets) - 1

    @property
    def num_steps(self) -> int:
        """Optimizer steps per epoch; the last batch may be short."""
        return math.ceil(self.num_samples / self.global_batch)

    def epoch(self, epoch: int) -> Iterator[tuple[Batch, int]]:
        """
        This rank's batches, each with the number of samples of its global batch.

        A rank without a sample in a short last batch gets a stand-in of weight 0: it must take part in the
        all-reduce all the same.
        """
        order = sample_order(self.num_samples, self.seed, epoch)
        for first in range(0, self.num_samples, self.global_batch):
            whole = order[first : first + self.global_batch]
            mine = whole[self.rank :: self.world_size]
            if len(mine):
                yield gather(self.table, mine, grouped=self.grouped), len(whole)
            else:
                yield gather(self.table, whole[:1], grouped=self.grouped, weight=0.0), len(whole)
