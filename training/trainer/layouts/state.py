"""
The tensors of a checkpoint: by their names in the whole model, whatever the layout, so that any other can load them.

A value is a plain tensor, the same on every rank that has it, or a DTensor, which says what slice this rank has. A rank
of a pipeline has its stage's names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from training.trainer.layouts.layout import Layout

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def model_state(layout: Layout) -> dict[str, Any]:
    """Parameters and buffers; the same memory."""
    return _whole(layout, get_model_state_dict(layout.model))


def load_model_state(layout: Layout, state: Mapping[str, Any]) -> None:
    set_model_state_dict(layout.model, _staged(layout, state))


def optimizer_state(layout: Layout, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """
    ``state.<name>.<moment>`` tensors, and ``param_groups.<name>.<option>``.

    An optimizer that has not stepped yet gets its state by a step without effect.
    """
    optimizer.zero_grad(set_to_none=True)
    fresh = not optimizer.state
    state = get_optimizer_state_dict(layout.model, optimizer, options=_FLAT)
    if fresh:
        # torch has counted that step.
        for moments in optimizer.state.values():
            if isinstance(moments.get("step"), torch.Tensor):
                moments["step"].zero_()
    return _whole(layout, state)


def load_optimizer_state(layout: Layout, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    set_optimizer_state_dict(layout.model, optimizer, _staged(layout, state), options=_FLAT)


def _whole(layout: Layout, state: Mapping[str, Any]) -> dict[str, Any]:
    return {_renamed(key, layout.names): value for key, value in state.items()}


def _staged(layout: Layout, state: Mapping[str, Any]) -> dict[str, Any]:
    names = {whole: staged for staged, whole in layout.names.items()}
    return {_renamed(key, names): value for key, value in state.items()}


def _renamed(key: str, names: Mapping[str, str]) -> str:
    if key in names:
        return names[key]
    kind, _, rest = key.partition(".")
    name, _, leaf = rest.rpartition(".")
    return f"{kind}.{names[name]}.{leaf}" if kind in ("state", "param_groups") and name in names else key
