"""The repeated parts of a model: what is sharded, compiled and recomputed as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks(model: nn.Module) -> list[nn.Module]:
    """
    The children of the outermost ``nn.ModuleList``s, or else of the model itself.

    Left out are children without parameters, and those that share a parameter with another part: a tied weight must
    stay with whatever holds both of its users.
    """
    found = list(_listed(model)) or list(model.children())
    users = Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))
    return [
        block
        for block in dict.fromkeys(found)
        if any(True for _ in block.parameters()) and _own_all(block, users) and not _is_container(block)
    ]


def compile_blocks(model: nn.Module) -> None:
    """Let torch.compile fuse each block. Hooks, as those that gather shards, stay outside."""
    for block in blocks(model) or [model]:
        block.forward = torch.compile(block.forward)


def recompute_blocks(model: nn.Module) -> None:
    """Keep only each block's input for the backward pass, and run the block again there, with the same dropout."""
    for block in blocks(model) or [model]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=True)


def _listed(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child.children()
        else:
            yield from _listed(child)


def _own_all(block: nn.Module, users: Counter[int]) -> bool:
    inside = Counter(id(parameter) for module in block.modules() for parameter in module.parameters(recurse=False))
    return all(users[parameter] == times for parameter, times in inside.items())


def _is_container(module: nn.Module) -> bool:
    # They are never called, so that a hook on them would never run.
    return isinstance(module, nn.ModuleList | nn.ModuleDict)
