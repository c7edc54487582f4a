"""Composing a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mlops.contract.step import BadConfigError
from mlops.trainer.layouts.blocks import compile_blocks, recompute_blocks
from mlops.trainer.layouts.buffers import saved_buffers
from mlops.trainer.layouts.layout import Layout
from mlops.trainer.layouts.precision import LossScale, autocast, dtype_of
from mlops.trainer.layouts.refusals import refuse_mixed, refuse_sparse

if TYPE_CHECKING:
    from mlops.trainer.parallel import Gang


def build_layout(
    model: nn.Module,
    gang: Gang,
    *,
    precision: str = "fp32",
    activation_checkpointing: bool = False,
    compile: bool = False,
    logical_shards: int | None = None,
    unused_parameters: bool = False,
) -> Layout:
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
    scaler = LossScale(device=gang.device) if precision == "fp16" else None
    model = model.to(gang.device).train()
    if gang.mesh is None:
        _finish(model, gang, dtype, activation_checkpointing, compile)
        if logical_shards is not None:
            from mlops.trainer.layouts.logical_shards import LogicalShards  # which needs the gang

            refuse_sparse(model, "elastic: exact")
            refuse_mixed(model, "elastic: exact")
            _start_alike(model, gang)
            return LogicalShards(model, gang, logical_shards)
        replica = _replicate(model, gang, unused_parameters) if gang.world_size > 1 else None
        return Layout(model, gang, replica=replica, scaler=scaler, unused_parameters=unused_parameters)
    assert logical_shards is None, "settings were checked: exact takes replicas only"
    refuse_sparse(model, "train.parallel")
    if unused_parameters and gang.data_world_size > 1:
        raise BadConfigError(
            "train.unused_parameters: ranks that share a sharded model must call the same parts of it; set "
            "train.parallel.dp_shard to 1, without tp and pp, or let each expert take part in every batch"
        )
    return _over_mesh(model, gang, dtype, scaler, activation_checkpointing, compile, unused_parameters)


def _over_mesh(
    model: nn.Module,
    gang: Gang,
    dtype: torch.dtype | None,
    scaler: LossScale | None,
    recompute: bool,
    compile: bool,
    unused_parameters: bool,
) -> Layout:
    # torch's parallel libraries take a while to import, which a training without them should not wait for.
    from mlops.trainer.layouts.cutting import stage_of
    from mlops.trainer.layouts.pipeline import Pipeline
    from mlops.trainer.layouts.sharded import shard
    from mlops.trainer.layouts.tensor import slice_layers

    assert gang.mesh is not None
    parallel, mesh = gang.parallel, gang.mesh
    _start_alike(model, gang)
    buffered = bool(saved_buffers(model))
    if parallel.tp > 1:
        slice_layers(model, mesh["tp"])
    names, whole_names, index = None, None, gang.place["pp"]
    if parallel.pp > 1:
        whole_names = frozenset(model.state_dict())
        model, names = stage_of(model, index, parallel.pp)
        model.train()
    sharded = gang.data_world_size > 1
    _finish(model, gang, None if sharded else dtype, recompute, compile, widen=index == parallel.pp - 1)
    order = shard(model, mesh, dtype=dtype, widen=index == parallel.pp - 1) if sharded else None
    pipeline = None
    if parallel.pp > 1:
        pipeline = Pipeline(
            model, index, parallel.pp, group=mesh.get_group("pp"), device=gang.device, buffered=buffered
        )
    return Layout(
        model,
        gang,
        names=names,
        whole_names=whole_names,
        pipeline=pipeline,
        scaler=scaler,
        order=order,
        unused_parameters=unused_parameters,
    )


def _finish(
    model: nn.Module, gang: Gang, dtype: torch.dtype | None, recompute: bool, compile: bool, widen: bool = True
) -> None:
    if compile:
        compile_blocks(model)
    if recompute:
        recompute_blocks(model)
    if dtype is not None:
        autocast(model, dtype, gang.device.type, widen=widen)


def _replicate(model: nn.Module, gang: Gang, unused_parameters: bool) -> DistributedDataParallel:
    return DistributedDataParallel(
        model,
        device_ids=[gang.device] if gang.device.type == "cuda" else None,
        forward_sync_buffers=False,
        gradient_as_bucket_view=True,
        find_unused_parameters=unused_parameters,
    )


def _start_alike(model: nn.Module, gang: Gang) -> None:
    if gang.world_size > 1:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                distributed.broadcast(tensor, src=0)
