"""What a loss must return."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from mlops.contract.step import BadConfigError

if TYPE_CHECKING:
    from mlops.data.shards.loader import Batch
    from mlops.trainer.model import Loss


def sample_losses(loss: Loss, model: nn.Module, batch: Batch) -> Tensor:
    """
    ``[B]``, not weighted: a stand-in has one too.

    :raises BadConfigError: where the loss does not return one value per sample
    """
    losses = loss(model, batch)
    if not isinstance(losses, Tensor):
        raise BadConfigError(f"train.loss must return a tensor of one value per sample, got {type(losses).__name__}")
    if losses.shape != batch.weights.shape:
        raise BadConfigError(
            f"train.loss must return one value per sample, {list(batch.weights.shape)}, got {list(losses.shape)}"
        )
    return losses


def weighted_backward(losses: Tensor, batch: Batch, scale: Tensor | float) -> Tensor:
    """
    The backward pass of ``(losses * weights).sum() * scale``, without these on the tape: 20 microseconds a step.

    :return: ``[B]``, the weighted losses, detached
    """
    losses.backward((batch.weights * scale).to(losses.dtype))
    return losses.detach() * batch.weights
