"""What models and optimizers may remember beside what a checkpoint holds: found by looking at their attributes."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

_LONGEST: Final = 1000
"""Entries of a list or dict that is compared; longer ones are data, not state."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """The value of such an attribute, as far as it can be compared, and how to keep it instead."""

    value: object
    shown: str
    fix: str


def look(model: nn.Module, optimizer: Optimizer, functions: Sequence[object]) -> Mapping[str, Hidden]:
    """
    Attributes of modules and of the optimizer, non-persistent buffers, and global variables of the recipe's modules.

    :param functions: of the recipe, whose modules' variables count too
    """
    found: dict[str, Hidden] = {}
    for name, module in model.named_modules():
        place = f"{name}." if name else ""
        for key, value in _attributes(module, _module_attributes()):
            _add(found, f"{place}{key} ({type(module).__name__})", value, _fix_of_module(key, value))
        for key in module._non_persistent_buffers_set:
            fix = f"register it with persistent=True: register_buffer({key!r}, ..., persistent=True)"
            _add(found, f"the buffer {place}{key} ({type(module).__name__})", module._buffers.get(key), fix)
    for key, value in _attributes(optimizer, _optimizer_attributes()):
        fix = "keep it in self.state[parameter] or in self.param_groups, which checkpoints hold"
        _add(found, f"{type(optimizer).__name__}.{key} (optimizer)", value, fix)
    for owner in {type(module) for module in model.modules()} | {type(optimizer)} | set(functions):
        module_name = getattr(owner, "__module__", None) or ""
        if module_name.split(".")[0] in _LIBRARIES or module_name not in sys.modules:
            continue
        for key, value in vars(sys.modules[module_name]).items():
            if not key.startswith("__"):
                fix = "draw from torch's default generator" if _draws(value) else "make it a buffer of the model"
                _add(found, f"{module_name}.{key} (global variable)", value, fix)
    return found


def changed(before: Mapping[str, Hidden], after: Mapping[str, Hidden]) -> list[str]:
    """A sentence for each that is not what it was."""
    found = []
    for name, hidden in after.items():
        earlier = before.get(name)
        if earlier is None or earlier.value != hidden.value:
            moved = "" if earlier is None or not hidden.shown else f", from {earlier.shown} to {hidden.shown}"
            found.append(f"{name}{moved}: {hidden.fix}")
    return found


_LIBRARIES: Final = frozenset({"torch", "numpy", "mlops", "builtins", "functools"})


def _add(found: dict[str, Hidden], name: str, value: object, fix: str) -> None:
    fingerprint = _fingerprint(value)
    if fingerprint is not None:
        shown = repr(value) if isinstance(value, bool | int | float | str | count) else ""
        found[name] = Hidden(fingerprint, shown[:40], fix)


def _attributes(owner: object, usual: frozenset[str]) -> Iterator[tuple[str, Any]]:
    for key, value in vars(owner).items():
        if key not in usual:
            yield key, value


@cache
def _module_attributes() -> frozenset[str]:
    return frozenset(vars(nn.Module())) | {"forward", "_flat_weights", "_flat_weight_refs"}


@cache
def _optimizer_attributes() -> frozenset[str]:
    # A scheduler of torch's, and its own bookkeeping, change none of its steps.
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    return frozenset(vars(optimizer)) | {"_opt_called", "_step_count", "_cuda_graph_capture_health_check"}


def _fix_of_module(key: str, value: object) -> str:
    if _draws(value):
        return "draw from torch's default generator, which the training seeds at each step"
    if isinstance(value, Tensor):
        return f"register it: self.register_buffer({key!r}, ...)"
    return f"register it as a buffer: self.register_buffer({key!r}, torch.tensor(...))"


def _draws(value: object) -> bool:
    return isinstance(value, torch.Generator | np.random.Generator | np.random.RandomState | random.Random)


def _fingerprint(value: object, depth: int = 0) -> object:
    """Something to compare by; None where there is nothing."""
    if isinstance(value, bool | int | float | str | count):
        return repr(value)
    if isinstance(value, torch.Generator):
        return _fingerprint(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.layout == torch.strided:
        data = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        return (tuple(value.shape), zlib.crc32(data.numpy().tobytes()))
    if isinstance(value, np.ndarray) and value.dtype != object:
        return (value.shape, zlib.crc32(np.ascontiguousarray(value).tobytes()))
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list | tuple) and len(value) <= _LONGEST and depth < 3:
        return tuple(_fingerprint(each, depth + 1) for each in value)
    return None
