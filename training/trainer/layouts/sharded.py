"""Fully sharded data parallel (FSDP2), and its product with replicas (HSDP)."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from training.trainer.layouts.blocks import blocks


def shard(model: nn.Module, mesh: DeviceMesh, *, dtype: torch.dtype | None, widen: bool) -> None:
    """
    Shard each block, then what is left, over ``dp_shard``; replicate over ``dp_replicate``. In place.

    :param mesh: the whole mesh
    :param dtype: weights are gathered and multiplied in it, gradients summed in float32; None: all in float32
    :param widen: return float32, so that a loss is computed in it
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
    for block in blocks(model):
        fully_shard(block, mesh=data, mp_policy=inner, reshard_after_forward=reshard)
    fully_shard(model, mesh=data, mp_policy=outer, reshard_after_forward=reshard)


def exchange_gradients(model: nn.Module, now: bool) -> None:
    """Whether the next backward pass, the last of a step, exchanges gradients."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
        model.set_is_last_backward(now)
