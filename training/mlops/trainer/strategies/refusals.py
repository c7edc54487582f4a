"""What a layout cannot train right, and says so at its start."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from mlops.contract.step import BadConfigError
from mlops.trainer.strategies.losses import sample_losses

if TYPE_CHECKING:
    from mlops.data.shards.batch import Batch
    from mlops.trainer.model import Loss


def sparse_tables(model: nn.Module) -> Sequence[str]:
    """Names of the embeddings whose gradients are sparse."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return [name for name, module in model.named_modules() if isinstance(module, kinds) and module.sparse]


def refuse_sparse(model: nn.Module, layout: str) -> None:
    """:param layout: the setting that has no sum of sparse gradients"""
    if names := sparse_tables(model):
        raise BadConfigError(
            f"{names[0]} is an embedding with sparse=True, whose gradients {layout} cannot add up: "
            "set sparse=False there, or train with replicas and elastic: fast"
        )


def refuse_mixed(model: nn.Module, layout: str) -> None:
    """:param layout: the setting that adds up all gradients in one type"""
    found: dict[torch.dtype, str] = {}
    for name, parameter in model.named_parameters():
        found.setdefault(parameter.dtype, name)
    if len(found) > 1 or any(not dtype.is_floating_point for dtype in found):
        shown = ", ".join(f"{name} is {str(dtype).removeprefix('torch.')}" for dtype, name in found.items())
        raise BadConfigError(f"{layout} adds up gradients of one real type: {shown}; use float32 throughout")


def refuse_optimizer(optimizer: Optimizer, model: nn.Module, import_path: str) -> None:
    """
    Where our loop cannot take the optimizer's steps, or not save its state.

    :param import_path: what made it, for the message
    """
    kind = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise BadConfigError(
            f"train.configure_optimizer: {import_path} returns {kind}, which evaluates the loss several times a step "
            "by a closure; gradients are accumulated, summed over processes and clipped once a step here: use AdamW, "
            "Muon or another optimizer whose step() needs no closure"
        )
    known = {id(parameter) for parameter in model.parameters()}
    seen: set[int] = set()
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise BadConfigError(
                    f"train.configure_optimizer: {import_path} gives {kind} a tensor {list(parameter.shape)} in group "
                    f"{number} that is not a parameter of the model, so that no checkpoint would hold it: make it one"
                )
            if id(parameter) in seen:
                name = next(name for name, each in model.named_parameters() if each is parameter)
                raise BadConfigError(
                    f"train.configure_optimizer: {import_path} gives {kind} the parameter {name} more than once, which "
                    "would be updated as often: name it once"
                )
            seen.add(id(parameter))


def refuse_changed_buffers(model: nn.Module, batch: Batch, loss: Loss, why: str) -> None:
    """
    Compare the buffers before and after a forward pass in training mode, which leaves no trace.

    :param why: such buffers cannot be had
    """
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if not before:
        return
    device = batch.features.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        sample_losses(loss, model, batch)
        changed = [
            name for name, buffer in model.named_buffers() if name not in before or not _same(before[name], buffer)
        ]
        owners = {name: type(model.get_submodule(name.rpartition(".")[0])).__name__ for name in changed}
        for name, buffer in model.named_buffers():
            if name in before and before[name].shape == buffer.shape:
                buffer.copy_(before[name])
    if changed:
        shown = ", ".join(f"{name} ({owners[name]})" for name in changed[:3]) + (", ..." if len(changed) > 3 else "")
        raise BadConfigError(f"{why}: each forward pass in training mode changes the buffer {shown}")


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
