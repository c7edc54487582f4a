"""Replicas whose gradients do not depend on how many they are; see :mod:`training.trainer.layouts.exact`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from mlops_provider.step import BadConfigError
from training.trainer.layouts.exact import TreeSum, all_reduce, shards_of
from training.trainer.layouts.layout import Layout
from training.trainer.layouts.losses import sample_losses, weighted_backward
from training.trainer.parallel import seed_everything

if TYPE_CHECKING:
    from training.data.loader import Batch
    from training.trainer.config import Loss
    from training.trainer.parallel import Gang


class LogicalShards(Layout):
    """
    A layout of replicas for ``elastic: exact``.

    :param num_shards: logical shards of a global batch, a power of two
    :raises BadConfigError: where the model keeps statistics of its batches
    """

    def __init__(self, model: nn.Module, gang: Gang, num_shards: int) -> None:
        for name, module in model.named_modules():
            if isinstance(module, _NormBase) and module.track_running_stats:
                raise BadConfigError(
                    f"train.elastic: exact cannot keep the running statistics of {name} ({type(module).__name__}), "
                    "which depend on the order of the batches; use nn.LayerNorm or nn.GroupNorm"
                )
        super().__init__(model, gang)
        self._num_shards = num_shards
        self._shards = shards_of(gang.data_rank, gang.data_world_size, num_shards)
        self._numbers: tuple[int, ...] = ()
        # A sum within one kernel may depend on the number of its threads.
        torch.set_num_threads(1)

    def seed(self, *numbers: int) -> None:
        self._numbers = numbers

    def step(self, batches: Sequence[Batch], loss: Loss, scale: float) -> list[Tensor]:
        """:param batches: one for each logical shard of this rank, then those that only fill up"""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        tree, losses = TreeSum(), []
        for shard, batch in zip(self._shards, batches, strict=False):
            seed_everything(*self._numbers, shard)
            if batch.weights.any():
                losses.append(weighted_backward(sample_losses(loss, self.model, batch), batch, scale))
            else:  # a stand-in, on whose gradient the sign of its zeros would depend
                losses.append(torch.zeros_like(batch.weights))
            tree.add(shard, [_taken(parameter) for parameter in parameters])
        gradients = all_reduce(tree, self._num_shards, self._gang.rank, self._gang.world_size)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return losses


def _taken(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    parameter.grad = None
    return torch.zeros_like(parameter) if gradient is None else gradient
