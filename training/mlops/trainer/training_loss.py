"""What a step minimises: the loss of each sample, weighted by a curriculum, of sequences that are short at first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from mlops.contract.sections.sequence_length import SequenceLength
from mlops.data.shards.batch import Batch
from mlops.trainer.model import Loss
from mlops.trainer.strategies.losses import sample_losses

Curriculum = Callable[[Batch, float], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingLoss:
    """The loss, as a function of the share of the training that is done."""

    loss: Loss
    curriculum: Curriculum | None = None
    lengths: Sequence[SequenceLength] = ()

    def __call__(self, model: nn.Module, batch: Batch, progress: float) -> Tensor:
        """
        Return the loss of each sample of the batch, ``[B]``.

        :raises BadConfigError: where the loss of short sequences is not one value for each
        """
        read = self.read(batch, progress)
        if read is batch:
            losses = self.loss(model, batch)
        else:
            losses = sample_losses(self.loss, model, read).view(len(batch.weights), -1).mean(1)
        return losses if self.curriculum is None else losses * self.curriculum(batch, progress)

    def tokens(self, progress: float) -> int | None:
        """Return the length of sequences; None: they are whole, or samples are rows."""
        return next((each.tokens for each in self.lengths if progress < each.until), None)

    def read(self, batch: Batch, progress: float) -> Batch:
        """
        Return a batch as the model reads it: each sequence ``[B, C]`` of tokens as ``n`` short ones, one after the
        other, ``[B * n, C / n]``.
        """
        tokens = self.tokens(progress)
        if tokens is None or tokens == batch.features.shape[1]:
            return batch
        several = batch.features.shape[1] // tokens
        return replace(
            batch,
            features=batch.features.reshape(-1, tokens),
            labels=batch.labels.reshape(-1, tokens),
            weights=batch.weights.repeat_interleave(several),
            samples=np.repeat(batch.samples, several),
        )
