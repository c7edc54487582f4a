"""Fully sharded data parallel (FSDP2), and its product with replicas (HSDP)."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from mlops.trainer.strategies.block_order import BlockOrder
from mlops.trainer.strategies.blocks import blocks


def shard(model: nn.Module, mesh: DeviceMesh, *, dtype: torch.dtype | None, widen: bool) -> BlockOrder:
    """
    Shard each block, then what is left, over ``dp_shard``; replicate over ``dp_replicate``. In place.

    :param mesh: the whole mesh
    :param dtype: weights are gathered and multiplied in it, gradients summed in float32; None: all in float32
    :param widen: return float32, so that a loss is computed in it
    :return: what holds every forward pass to one order of the blocks
    """
    data = mesh["dp_replicate", "dp_shard"] if mesh["dp_replicate"].size() > 1 else mesh["dp_shard"]
    # The micro batches of a pipeline would gather the weights again and again.
    reshard = mesh["pp"].size() == 1
    inner, outer = MixedPrecisionPolicy(), MixedPrecisionPolicy()
    if dtype is not None:
        inner = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        outer = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32 if widen else None
        )
    # A number cannot be cut: it stays whole, and its gradient is averaged by the layout.
    scalars = {parameter for parameter in model.parameters() if parameter.ndim == 0}
    names = {module: name for name, module in model.named_modules()}
    sharded = []
    for block in blocks(model):
        if any(parameter not in scalars for parameter in block.parameters()):
            fully_shard(block, mesh=data, mp_policy=inner, reshard_after_forward=reshard, ignored_params=scalars)
            sharded.append((names[block], block))
    fully_shard(model, mesh=data, mp_policy=outer, reshard_after_forward=reshard, ignored_params=scalars)
    return BlockOrder(model, sharded)


def exchange_gradients(model: nn.Module, last: bool) -> None:
    """
    Say whether the next backward pass is the last of a step.

    Each pass adds its gradients up over the shards, so that a rank keeps its own part only; without that, whole ones
    would be kept until the last pass, as much memory as unsharded weights. Replicas wait for the last pass.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_all_reduce(last)
