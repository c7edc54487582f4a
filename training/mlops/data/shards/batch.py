"""The batch that a model is given, and the protocol of the sources that batches come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """
    Samples for one forward pass: B rows of F features; or B groups of rows, padded to D rows, the longest of this
    batch; or B sequences of C tokens.
    """

    features: Tensor
    """``[B, F]`` or, where grouped, ``[B, D, F]``, float32, padding is 0. Of tokens ``[B, C]``, int64."""
    labels: Tensor
    """``[B]`` or, where grouped, ``[B, D]``, float32, padding is 0; of L labels one more dimension. Of tokens
    ``[B, C]``, int64: the token that follows each of ``features``."""
    mask: Tensor | None
    """``[B, D]``, True for rows that are there; None where not grouped."""
    weights: Tensor
    """``[B]``, float32; 1 for a sample, 0 for the stand-in of a rank that has none."""
    samples: IntArray
    """``[B]``, position of each sample in the split."""

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; does not wait for the copy if this batch is pinned."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """Return the batch in page-locked memory, from which a GPU copies by itself."""
        return self.map(Tensor.pin_memory)

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the same batch with changed tensors."""
        return Batch(
            features=change(self.features),
            labels=change(self.labels),
            mask=None if self.mask is None else change(self.mask),
            weights=change(self.weights),
            samples=self.samples,
        )

    def tensors(self) -> list[Tensor]:
        """Return the batch's tensors that are not None, in a fixed order."""
        parts = (self.features, self.labels, self.mask, self.weights)
        return [part for part in parts if part is not None]


def rows_with(labels: Tensor) -> Batch:
    """Return ungrouped rows of which labels alone are known, for an objective that asks for nothing else."""
    return Batch(
        features=torch.empty(len(labels), 0),
        labels=labels,
        mask=None,
        weights=torch.ones(len(labels)),
        samples=np.arange(len(labels)),
    )


class SampleSource(Protocol):
    """
    The samples of a split, numbered through its shards. Called by one loader's thread: ``prefetch`` ahead, then
    ``lengths`` where grouped, then ``gather_many``.
    """

    @property
    def grouped(self) -> bool:
        """True if a sample is a group of rows."""

    @property
    def shard_sizes(self) -> IntArray:
        """``[K]``, number of samples of each shard."""

    @property
    def window_samples(self) -> int:
        """
        Number of samples shuffled together, a function of the data alone; see
        :class:`mlops.data.shards.sampler.EpochSampler`.
        """

    @property
    def block_samples(self) -> int:
        """Number of samples that are gathered at once where batches are smaller."""

    def lengths(self, samples: IntArray) -> IntArray:
        """Return ``[B]``, the number of rows of each sample."""

    def gather(self, samples: IntArray, weight: float = 1.0) -> Batch:
        """Return a copy of the samples as one batch."""

    def gather_many(self, parts: Sequence[IntArray], weights: Sequence[float]) -> Sequence[Batch]:
        """Return one batch for each part; all samples of a part have the weight of that part."""

    def prefetch(self, samples: IntArray) -> None:
        """Hint that these samples will be gathered soon; returns at once."""


def samples_in(room: int, *, num_samples: int, num_bytes: int) -> int:
    """Return the number of samples that take about ``room`` bytes; at least 1."""
    return max(1, room * num_samples // max(1, num_bytes))


def window_of(num_samples: int, num_bytes: int) -> int:
    """
    Return the number of samples of a window: 4 GiB, which a node's cache holds a few times, and at most 4 million.
    """
    return min(1 << 22, samples_in(4 << 30, num_samples=num_samples, num_bytes=num_bytes))


def block_of(num_samples: int, num_bytes: int) -> int:
    """Return the number of samples of a block: 2 MiB, about what a core's cache holds."""
    return samples_in(2 << 20, num_samples=num_samples, num_bytes=num_bytes)
