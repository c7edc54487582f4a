"""Tensor parallel: each rank of a group holds a slice of a layer's weights (Megatron-LM, Shoeybi et al. 2019)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, parallelize_module

from mlops.contract.step import BadConfigError


def slice_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """
    Slice the layers over a mesh of one dimension, in place.

    A model says which by ``tensor_parallel_plan() -> {name of a module: ParallelStyle}``, which can spare most of the
    communication; see :func:`default_plan` for the others.

    :raises BadConfigError: where the plan names no module of the model, or nothing can be sliced
    """
    own: Any = getattr(model, "tensor_parallel_plan", None)
    plan = dict(own() if own is not None else default_plan(model, mesh.size()))
    if not plan:
        raise BadConfigError(
            f"train.parallel.tp is {mesh.size()}, but no nn.Linear or nn.Embedding of {type(model).__name__} has a "
            f"width that {mesh.size()} divides: make layers wider, or leave tp out"
        )
    names = [name for name, _ in model.named_modules()]
    for pattern in plan:
        if not any(fnmatch(name, pattern) for name in names):
            raise BadConfigError(f"{type(model).__name__}.tensor_parallel_plan names {pattern!r}, which is no module")
    ties = _ties(model)
    frozen = {name for name, each in model.named_parameters(remove_duplicate=False) if not each.requires_grad}
    parallelize_module(model, mesh, plan)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in frozen:  # SequenceParallel makes new parameters, that learn
            parameter.requires_grad_(False)
    for tied in sorted(ties - _ties(model)):
        raise BadConfigError(
            f"{type(model).__name__}.tensor_parallel_plan slices one tied weight, {' and '.join(tied)}, twice: "
            "leave both out of the plan, or untie them"
        )


def default_plan(model: nn.Module, size: int) -> Mapping[str, ParallelStyle]:
    """
    Columns of linear layers and embeddings, each output gathered at once: right for any model.

    Layers stay whole whose width ``size`` does not divide, whose weight another module shares, or that a module of
    ``torch.nn`` holds, for it may use the weight itself (as nn.MultiheadAttention does).
    """
    users = Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))
    plan: dict[str, ParallelStyle] = {}
    for parent_name, parent in model.named_modules():
        if type(parent).__module__.startswith("torch.nn.") and not isinstance(parent, _CONTAINERS):
            continue
        for name, child in parent.named_children():
            width = {nn.Linear: "out_features", nn.Embedding: "embedding_dim"}.get(type(child))
            shared = any(users[id(parameter)] > 1 for parameter in child.parameters())
            if width is not None and not shared and getattr(child, width) % size == 0:
                full_name = f"{parent_name}.{name}" if parent_name else name
                plan[full_name] = ColwiseParallel(output_layouts=Replicate())
    return plan


_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _ties(model: nn.Module) -> set[tuple[str, ...]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {tuple(tied) for tied in names.values() if len(tied) > 1}
