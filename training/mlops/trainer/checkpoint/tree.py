"""A state as flat tensors and flat plain values, and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from mlops.contract.step import BadConfigError

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Flat:
    """The leaves of nested dicts and lists, by key: their path with dots, ``model.layers.0.weight``."""

    tensors: dict[str, torch.Tensor]
    values: dict[str, Any]
    """Numbers, texts, booleans, None, and lists and tuples of them."""
    paths: dict[str, Path]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is known of a tensor before its bytes are read."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The leaves of a stored state, by path."""

    tensors: dict[Path, TensorFacts]
    values: dict[Path, Any]


def flatten(state: dict[str, Any]) -> Flat:
    """:raises BadConfigError: where two leaves have one key, or a leaf is neither a tensor nor a plain value"""
    flat = Flat(tensors={}, values={}, paths={})
    for path, leaf in _leaves(state, ()):
        key = ".".join(map(str, path))
        if key in flat.paths:
            raise BadConfigError(f"a checkpoint cannot hold both {flat.paths[key]} and {path}: name one of them anew")
        flat.paths[key] = path
        if isinstance(leaf, torch.Tensor):
            flat.tensors[key] = leaf
        else:
            flat.values[key] = leaf
    return flat


def contents_of(flat: Flat) -> Contents:
    """What a checkpoint of this state would hold; of a DTensor, the whole."""
    return Contents(
        tensors={
            flat.paths[key]: TensorFacts(tuple(tensor.shape), tensor.dtype) for key, tensor in flat.tensors.items()
        },
        values={flat.paths[key]: decode(encode(key, value)) for key, value in flat.values.items()},
    )


def unflatten(leaves: dict[str, Any], paths: dict[str, Path]) -> dict[str, Any]:
    """The nested state of some leaves."""
    state: dict[str | int, Any] = {}
    for key, leaf in leaves.items():
        *parents, last = paths[key]
        parent = state
        for name in parents:
            parent = parent.setdefault(name, {})
        parent[last] = leaf
    nested: dict[str, Any] = _with_lists(state)
    return nested


def put_leaf(state: Any, path: Path, leaf: Any) -> None:
    """Replace a leaf in place."""
    for name in path[:-1]:
        state = state[name]
    state[path[-1]] = leaf


def encode(key: str, value: Any) -> Any:
    """
    A plain value as JSON that tells tuples from lists.

    :raises BadConfigError: for anything else; a checkpoint runs no code when it is read
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encode(key, item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(key, item) for item in value]}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: encode(key, item) for name, item in value.items()}}
    raise BadConfigError(
        f"a checkpoint cannot hold {key}, a {type(value).__name__}: give tensors, numbers, texts, or lists of them"
    )


def decode(document: Any) -> Any:
    if isinstance(document, list):
        return [decode(item) for item in document]
    if isinstance(document, dict):
        if "tuple" in document:
            return tuple(decode(item) for item in document["tuple"])
        return {name: decode(item) for name, item in document["dict"].items()}
    return document


def _leaves(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(node, dict):
        for name, child in node.items():
            yield from _leaves(child, (*path, name))
    elif isinstance(node, list | tuple) and holds_tensor(node):
        for position, child in enumerate(node):
            yield from _leaves(child, (*path, position))
    else:
        yield path, node


def holds_tensor(node: Any) -> bool:
    """Return whether there is a tensor in it, however deep."""
    if isinstance(node, dict):
        return any(holds_tensor(child) for child in node.values())
    if isinstance(node, list | tuple):
        return any(holds_tensor(child) for child in node)
    return isinstance(node, torch.Tensor)


def _with_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    children = {name: _with_lists(child) for name, child in node.items()}
    if children and all(isinstance(name, int) for name in children):
        return [children[position] for position in sorted(children)]
    return children
