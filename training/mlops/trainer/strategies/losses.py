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

    :raises BadConfigError: where the loss does not return one value per sample, or a batch norm is given a single row
    """
    try:
        losses = loss(model, batch)
    except ValueError as error:
        # torch's own words.
        if "Expected more than 1 value per channel when training" not in str(error) or len(batch.weights) > 1:
            raise
        raise BadConfigError(
            "a batch norm cannot learn from a forward pass over one sample: give each process two or more, by a larger "
            "train.global_batch, fewer processes, or a train.micro_batch above 2; or use a LayerNorm"
        ) from error
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
