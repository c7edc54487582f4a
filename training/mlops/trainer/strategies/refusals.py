"""What a layout cannot train right, and says so at its start."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from mlops.contract.step import BadConfigError
from mlops.trainer.strategies.buffers import unlearnt, without_trace
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
        if "initial_lr" in group:  # which each scheduler of torch's leaves there, with a rate that it has set already
            raise BadConfigError(
                f"train.configure_optimizer: {import_path} returns {kind} with a learning rate scheduler attached "
                f"(group {number} has initial_lr), and the training loop sets the rates itself: remove the scheduler, "
                "and say train.schedule"
            )
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
    Compare buffers and frozen parameters before and after a forward pass in training mode, which leaves no trace.

    :param why: what such a pass changes cannot be had
    """
    if next(unlearnt(model), None) is None:
        return
    with without_trace(model, batch.features.device, others=True) as changed, torch.no_grad():
        sample_losses(loss, model, batch)
        names = changed()
    if names:
        owners = {name: type(model.get_submodule(name.rpartition(".")[0])).__name__ for name in names}
        kind = "parameter" if names[0] in dict(model.named_parameters()) else "buffer"
        shown = ", ".join(f"{name} ({owners[name]})" for name in names[:3]) + (", ..." if len(names) > 3 else "")
        raise BadConfigError(f"{why}: each forward pass in training mode changes the {kind} {shown}")
