"""
The state of a training as a checkpoint holds it: by names in the whole model, whatever the layout, so that any other
layout can load it.

A tensor is plain, the same on every rank that has it, or a DTensor, which says what slice this rank has. A rank of a
pipeline has its stage's names only. An optimizer's state is what it made so far: no step is taken to find out what it
will make, for that may leave traces, and some optimizers make entries in later steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from mlops.contract.step import BadConfigError
from mlops.trainer.checkpoint.tree import Contents, TensorFacts, holds_tensor, unflatten
from mlops.trainer.strategies.strategy import ParallelStrategy

_AGAIN = "train from the start, under another run key"
_DICT, _TUPLE = "<dict>", "<tuple>"


def training_state(strategy: ParallelStrategy, optimizer: Optimizer) -> dict[str, Any]:
    """All of it; the same memory."""
    state = {"model": model_state(strategy), "optimizer": optimizer_state(strategy, optimizer)}
    return state if strategy.scaler is None else {**state, "scaler": strategy.scaler.state_dict()}


def state_to_fill(strategy: ParallelStrategy, optimizer: Optimizer, contents: Contents) -> dict[str, Any]:
    """
    What :func:`load_training_state` takes, with room for what a checkpoint holds of this rank's part.

    :raises BadConfigError: where the checkpoint holds what this training has not, which would be lost silently
    """
    state: dict[str, Any] = {"model": model_state(strategy)}
    _refuse_extra(contents, "model", strategy.whole_names or set(state["model"]), "the model has not")
    state["optimizer"] = _optimizer_state_to_fill(strategy, optimizer, contents)
    if strategy.scaler is not None:
        state["scaler"] = strategy.scaler.state_dict()
    elif any(path[0] == "scaler" for path in contents.values):
        raise BadConfigError(f"the checkpoint is of train.precision fp16, and this training is not: {_AGAIN}")
    return state


def load_training_state(strategy: ParallelStrategy, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """:param state: of :func:`state_to_fill`, filled"""
    load_model_state(strategy, state["model"])
    load_optimizer_state(strategy, optimizer, state["optimizer"])
    if strategy.scaler is not None:
        strategy.scaler.load_state_dict(state["scaler"])


def model_state(strategy: ParallelStrategy) -> dict[str, Any]:
    """Parameters and buffers; the same memory."""
    return {strategy.names.get(name, name): value for name, value in get_model_state_dict(strategy.model).items()}


def load_model_state(strategy: ParallelStrategy, state: Mapping[str, Any]) -> None:
    names = {whole: staged for staged, whole in strategy.names.items()}
    set_model_state_dict(strategy.model, {names.get(name, name): value for name, value in state.items()})


def optimizer_state(strategy: ParallelStrategy, optimizer: Optimizer) -> dict[str, Any]:
    """
    ``{"kind", "state": {name: {entry: ...}}, "param_groups": {name: {option: ...}}, "shared", "own"}``.

    Options stand at each parameter, for layouts group them differently. ``shared`` is state that belongs to no
    parameter, ``own`` what the optimizer's class adds to its ``state_dict``.
    """
    packed = optimizer.state_dict()
    parameters = _parameters(strategy, optimizer)
    numbers = {id(each): number for number, each in enumerate(_held(optimizer))}
    groups = _group_of(optimizer)
    state: dict[str, Any] = {"kind": _kind(optimizer), "state": {}, "param_groups": {}, "shared": {}, "own": {}}
    for name, parameter in parameters.items():
        if entries := packed["state"].get(numbers[id(parameter)]):
            state["state"][name] = _described(entries)
        group = packed["param_groups"][groups[id(parameter)]]
        options = {option: value for option, value in group.items() if option != "params"}
        state["param_groups"][name] = _described(options)
    shared = {str(key): value for key, value in packed["state"].items() if not isinstance(key, int)}
    own = {key: value for key, value in packed.items() if key not in ("state", "param_groups")}
    state["shared"] = {key: _described(value) for key, value in shared.items()}
    state["own"] = {key: _described(value) for key, value in own.items()}
    return state


def load_optimizer_state(strategy: ParallelStrategy, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Bring the optimizer to where it was, with as many entries as it had, each in its own type."""
    parameters = _parameters(strategy, optimizer)
    numbers = {id(each): number for number, each in enumerate(_held(optimizer))}
    packed = optimizer.state_dict()
    entries = {name: _restored(each) for name, each in state.get("state", {}).items()}
    options = {name: _restored(each) for name, each in state.get("param_groups", {}).items()}
    names = {numbers[id(parameter)]: name for name, parameter in parameters.items()}
    groups = [
        {**group, **(options[names[group["params"][0]]] if group["params"] else {})} for group in packed["param_groups"]
    ]
    found = {numbers[id(parameters[name])]: dict(each) for name, each in entries.items()}
    shared, own = _restored(state.get("shared", {})), _restored(state.get("own", {}))
    optimizer.load_state_dict({**own, "state": {**found, **shared}, "param_groups": groups})
    for name, each in entries.items():
        kept = optimizer.state.get(parameters[name], {})
        kept.update({key: _as_saved(value, kept[key]) for key, value in each.items() if key in kept})


def _optimizer_state_to_fill(strategy: ParallelStrategy, optimizer: Optimizer, contents: Contents) -> dict[str, Any]:
    mine, own = _parameters(strategy, optimizer), optimizer_state(strategy, optimizer)
    kind = contents.values.get(("optimizer", "kind"))
    if kind != own["kind"]:
        raise BadConfigError(
            f"the checkpoint is of the optimizer {kind}, and this training has {own['kind']}: {_AGAIN}"
        )
    elsewhere = (strategy.whole_names or frozenset()) - {
        strategy.names.get(name, name) for name, _ in strategy.model.named_parameters()
    }
    leaves: dict[str, Any] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for path, facts in {**contents.tensors, **contents.values}.items():
        if path[0] != "optimizer":
            continue
        name = str(path[2]) if path[1] in ("state", "param_groups") else None
        if name is not None and name not in mine:
            if name in elsewhere:
                continue  # another stage's
            raise BadConfigError(f"the checkpoint has state of {name}, which the optimizer does not hold: {_AGAIN}")
        key = ".".join(map(str, path))
        paths[key] = path[1:]
        leaves[key] = (
            _room(facts, None if name is None else mine[name], path[-1]) if path in contents.tensors else facts
        )
    state = unflatten(leaves, paths)
    for name in mine:
        theirs, ours = state.get("param_groups", {}).get(name, {}), own["param_groups"][name]
        if wrong := sorted(set(theirs) ^ set(ours)):
            raise BadConfigError(
                f"the optimizer's options of {name} are not those of the checkpoint: {', '.join(wrong)} is only in one "
                f"of the two: {_AGAIN}"
            )
    return state


def _described(value: Any) -> Any:
    """
    A value whose containers a checkpoint's paths tell apart.

    By these, each container of tensors is a list or a dict of named entries: others become such a dict, with an entry
    that says what they were.
    """
    if isinstance(value, dict):
        items = [_described(item) for item in value.values()]
        if value and all(isinstance(key, str) and key not in (_DICT, _TUPLE) for key in value):
            return dict(zip(value, items, strict=True))
        return {_DICT: list(value), **{str(number): item for number, item in enumerate(items)}}
    if isinstance(value, list | tuple):
        items = [_described(item) for item in value]
        if isinstance(value, tuple) and holds_tensor(value):
            return {_TUPLE: len(items), **{str(number): item for number, item in enumerate(items)}}
        return items if isinstance(value, list) else tuple(items)
    return value


def _restored(value: Any) -> Any:
    """What :func:`_described` was given."""
    if isinstance(value, dict):
        if _DICT in value:
            return {key: _restored(value[str(number)]) for number, key in enumerate(value[_DICT])}
        if _TUPLE in value:
            return tuple(_restored(value[str(number)]) for number in range(value[_TUPLE]))
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_restored(item) for item in value)
    return value


def _as_saved(value: Any, loaded: Any) -> Any:
    """
    An entry as it was saved, where torch has put it.

    torch gives each tensor the parameter's type: an integer or a 64-bit one would go on as another number. A text
    within an entry it takes apart.

    :param loaded: what torch, or the optimizer, has made of the entry
    """
    if isinstance(value, Tensor) and isinstance(loaded, Tensor):
        return value.to(loaded.device)
    if isinstance(value, dict) and isinstance(loaded, dict):
        return {key: _as_saved(item, loaded.get(key, item)) for key, item in value.items()}
    if isinstance(value, list | tuple) and isinstance(loaded, list | tuple) and len(value) == len(loaded):
        return type(value)(_as_saved(*pair) for pair in zip(value, loaded, strict=True))
    return value if isinstance(value, str) else loaded


def _room(facts: TensorFacts, parameter: Tensor | None, entry: str | int) -> Tensor:
    """An empty tensor, placed as the optimizer places such an entry."""
    if parameter is None:
        return torch.empty(facts.shape, dtype=facts.dtype)
    if facts.shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=facts.dtype, requires_grad=False)
    if isinstance(parameter, DTensor) and facts.shape:
        # By what optimizers make it with, so that it lies as theirs did.
        return parameter.detach().new_zeros(facts.shape, dtype=facts.dtype)
    # Where it belongs knows the optimizer, which moves it.
    return torch.empty(facts.shape, dtype=facts.dtype)


def _refuse_extra(contents: Contents, part: str, known: set[str] | frozenset[str], why: str) -> None:
    extra = sorted(".".join(map(str, path[1:])) for path in contents.tensors if path[0] == part)
    extra = [name for name in extra if name not in known]
    if extra:
        shown = ", ".join(extra[:3]) + (", ..." if len(extra) > 3 else "")
        raise BadConfigError(f"the checkpoint has {shown}, which {why}: {_AGAIN}")


def _kind(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _held(optimizer: Optimizer) -> Iterator[Tensor]:
    """In the order of torch's numbers."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _group_of(optimizer: Optimizer) -> dict[int, int]:
    return {id(each): number for number, group in enumerate(optimizer.param_groups) for each in group["params"]}


def _parameters(strategy: ParallelStrategy, optimizer: Optimizer) -> dict[str, Tensor]:
    """What the optimizer holds, by name in the whole model."""
    held = {id(each) for each in _held(optimizer)}
    named = strategy.model.named_parameters()
    return {strategy.names.get(name, name): parameter for name, parameter in named if id(parameter) in held}
