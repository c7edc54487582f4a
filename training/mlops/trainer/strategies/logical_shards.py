"""Replicas whose gradients do not depend on how many they are; see :mod:`mlops.trainer.strategies.exact`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from mlops.contract.step import BadConfigError
from mlops.random_states import seed_everything
from mlops.trainer.health import EXCHANGE, FORWARD, enter
from mlops.trainer.strategies.exact import Exchange, TreeSum, shards_of
from mlops.trainer.strategies.losses import sample_losses, weighted_backward
from mlops.trainer.strategies.refusals import refuse_changed_buffers
from mlops.trainer.strategies.strategy import ParallelStrategy
from mlops.trainer.strategies.transfer import moved

if TYPE_CHECKING:
    from mlops.data.shards.loader import Batch
    from mlops.trainer.model import Loss
    from mlops.trainer.parallel import Ranks


class LogicalShards(ParallelStrategy):
    """
    A layout of replicas for ``elastic: exact``.

    :param num_shards: logical shards of a global batch, a power of two
    :raises BadConfigError: where the model keeps statistics of its batches, or a process would have no shard
    """

    def __init__(self, model: nn.Module, ranks: Ranks, num_shards: int) -> None:
        if ranks.data_world_size > num_shards:
            raise BadConfigError(
                f"train.elastic: exact cuts each global batch into {num_shards} logical shards, too few for "
                f"{ranks.data_world_size} processes: raise train.logical_shards, or take fewer (train.nodes, "
                "train.processes)"
            )
        for name, module in model.named_modules():
            if isinstance(module, _NormBase) and module.track_running_stats:
                raise BadConfigError(
                    f"train.elastic: exact cannot keep the running statistics of {name} ({type(module).__name__}), "
                    "which depend on the order of the batches; use nn.LayerNorm or nn.GroupNorm"
                )
        super().__init__(model, ranks)
        self._num_shards = num_shards
        self._shards = shards_of(ranks.data_rank, ranks.data_world_size, num_shards)
        self._numbers: tuple[int, ...] = ()
        self._learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._tree = TreeSum(self._learnt, ranks.data_world_size)
        self._exchange = Exchange(self._learnt, num_shards, ranks.data_rank, ranks.data_world_size)
        # A sum within one kernel may depend on the number of its threads.
        torch.set_num_threads(1)

    def warm_up(self, batch: Batch, loss: Loss, *, finds_changing: bool = False) -> frozenset[str]:
        """
        Look for what depends on the order of the batches. Called once by all ranks, before the first step.

        :return: nothing: what a forward pass changes is refused
        """
        refuse_changed_buffers(
            self.model, batch, loss, "train.elastic: exact cannot keep what depends on the order of the batches"
        )
        return frozenset()

    def seed(self, *numbers: int) -> None:
        self._numbers = numbers

    def step(self, batches: Sequence[Batch], loss: Loss, scale: float) -> list[Tensor]:
        """:param batches: one for each logical shard of this rank, then those that only fill up"""
        self._tree.clear()
        losses = []
        # Once for all shards, of which ranks may have unequal numbers: nothing waits for others before the exchange.
        enter(FORWARD)
        mine = batches[: len(self._shards)]
        # Asked of the host's copy: a GPU's would be waited for.
        real = [bool(batch.weights.any()) for batch in mine]
        for shard, batch, counts in zip(self._shards, moved(mine, self._ranks.device), real, strict=True):
            seed_everything(*self._numbers, shard)
            if counts:
                losses.append(weighted_backward(sample_losses(loss, self.model, batch), batch, scale))
            else:  # a stand-in, on whose gradient the sign of its zeros would depend
                losses.append(torch.zeros_like(batch.weights))
            self._tree.add(shard, [_taken(parameter) for parameter in self._learnt])
        enter(EXCHANGE)
        for parameter, gradient in zip(self._learnt, self._exchange.sum(self._tree), strict=True):
            parameter.grad = gradient
        return losses


def _taken(parameter: nn.Parameter) -> Tensor | None:
    gradient = parameter.grad
    parameter.grad = None
    return gradient
