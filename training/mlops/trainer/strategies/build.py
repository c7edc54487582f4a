"""Composing a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mlops.contract.step import BadConfigError
from mlops.trainer.strategies.blocks import compile_blocks, recompute_blocks
from mlops.trainer.strategies.buffers import saved_buffers
from mlops.trainer.strategies.precision import LossScale, autocast, dtype_of
from mlops.trainer.strategies.refusals import refuse_mixed, refuse_sparse
from mlops.trainer.strategies.strategy import ParallelStrategy

if TYPE_CHECKING:
    from mlops.trainer.parallel import Ranks


def build_strategy(
    model: nn.Module,
    ranks: Ranks,
    *,
    precision: str = "fp32",
    activation_checkpointing: bool = False,
    compile: bool = False,
    logical_shards: int | None = None,
    unused_parameters: bool = False,
) -> ParallelStrategy:
    """
    Lay a model out over the gang's mesh. Called by all ranks; all start with rank 0's parameters and buffers.

    :param model: whole, on any device; it is changed in place and must not be used afterwards
    :param precision: ``fp32``, ``bf16`` or ``fp16``; weights are float32 always
    :param logical_shards: of a global batch, for gradients that do not depend on the number of replicas; takes a gang
        of replicas only
    :param unused_parameters: the data decide which parameters the loss depends on, as of experts
    :raises BadConfigError: where the model cannot be laid out like that
    """
    dtype = dtype_of(precision)
    scaler = LossScale(device=ranks.device) if precision == "fp16" else None
    model = model.to(ranks.device).train()
    if ranks.mesh is None:
        _finish(model, ranks, dtype, activation_checkpointing, compile)
        if logical_shards is not None:
            from mlops.trainer.strategies.logical_shards import LogicalShards  # which needs the gang

            refuse_sparse(model, "elastic: exact")
            refuse_mixed(model, "elastic: exact")
            _start_alike(model, ranks)
            return LogicalShards(model, ranks, logical_shards)
        replica = _replicate(model, ranks, unused_parameters) if ranks.world_size > 1 else None
        return ParallelStrategy(model, ranks, replica=replica, scaler=scaler, unused_parameters=unused_parameters)
    assert logical_shards is None, "settings were checked: exact takes replicas only"
    refuse_sparse(model, "train.parallel")
    if unused_parameters and ranks.data_world_size > 1:
        raise BadConfigError(
            "train.unused_parameters: ranks that share a sharded model must call the same parts of it; set "
            "train.parallel.dp_shard to 1, without tp and pp, or let each expert take part in every batch"
        )
    return _over_mesh(model, ranks, dtype, scaler, activation_checkpointing, compile, unused_parameters)


def _over_mesh(
    model: nn.Module,
    ranks: Ranks,
    dtype: torch.dtype | None,
    scaler: LossScale | None,
    recompute: bool,
    compile: bool,
    unused_parameters: bool,
) -> ParallelStrategy:
    # torch's parallel libraries take a while to import, which a training without them should not wait for.
    from mlops.trainer.strategies.cutting import stage_of
    from mlops.trainer.strategies.pipeline import PipelineSeat
    from mlops.trainer.strategies.sharded import shard
    from mlops.trainer.strategies.tensor import slice_layers

    assert ranks.mesh is not None
    parallel, mesh = ranks.parallel, ranks.mesh
    _start_alike(model, ranks)
    buffered = bool(saved_buffers(model))
    if parallel.tp > 1:
        slice_layers(model, mesh["tp"])
    names, whole_names, index = None, None, ranks.place["pp"]
    if parallel.pp > 1:
        whole_names = frozenset(model.state_dict())
        model, names = stage_of(model, index, parallel.pp)
        model.train()
    sharded = ranks.data_world_size > 1
    _finish(model, ranks, None if sharded else dtype, recompute, compile, widen=index == parallel.pp - 1)
    order = shard(model, mesh, dtype=dtype, widen=index == parallel.pp - 1) if sharded else None
    pipeline = None
    if parallel.pp > 1:
        pipeline = PipelineSeat(
            model, index, parallel.pp, group=mesh.get_group("pp"), device=ranks.device, buffered=buffered
        )
    return ParallelStrategy(
        model,
        ranks,
        names=names,
        whole_names=whole_names,
        pipeline=pipeline,
        scaler=scaler,
        order=order,
        unused_parameters=unused_parameters,
    )


def _finish(
    model: nn.Module, ranks: Ranks, dtype: torch.dtype | None, recompute: bool, compile: bool, widen: bool = True
) -> None:
    if compile:
        compile_blocks(model)
    if recompute:
        recompute_blocks(model)
    if dtype is not None:
        autocast(model, dtype, ranks.device.type, widen=widen)


def _replicate(model: nn.Module, ranks: Ranks, unused_parameters: bool) -> DistributedDataParallel:
    return DistributedDataParallel(
        model,
        device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
        forward_sync_buffers=False,
        gradient_as_bucket_view=True,
        find_unused_parameters=unused_parameters,
    )


def _start_alike(model: nn.Module, ranks: Ranks) -> None:
    if ranks.world_size > 1:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                distributed.broadcast(tensor, src=0)
