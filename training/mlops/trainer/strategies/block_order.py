"""The order in which a forward pass calls the sharded blocks: ranks that differ in it would mix up their weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from mlops.contract.step import BadConfigError

if TYPE_CHECKING:
    from mlops.trainer.parallel import Ranks


class BlockOrder:
    """
    Holds each forward pass to the first one, by hooks before the blocks gather their weights.

    The ranks that share a model gather the weights of its blocks together, without saying whose they are. Where the
    data or a random number choose the blocks, ranks would take each other's weights: with blocks of one size without
    any error. Training and evaluation have an order each.

    :param model: where a pass begins and ends
    :param blocks: those that are sharded, with the names under which a message shows them
    """

    def __init__(self, model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
        self._first: dict[bool, list[str]] = {}
        self._called: list[str] | None = None
        self._training = True
        for name, block in blocks:
            # Prepended: it comes before the hook that gathers.
            block.register_forward_pre_hook(partial(self._call, name), prepend=True)
        model.register_forward_pre_hook(self._begin, prepend=True)
        model.register_forward_hook(self._end)

    def compare(self, ranks: Ranks) -> None:
        """
        Compare the first pass of a training among the ranks. Called by all, after their first step.

        :raises BadConfigError: where ranks of one pipeline stage have called other blocks, or in another order
        """
        digest = hashlib.blake2b(repr(self._first.get(True)).encode(), digest_size=7).digest()
        told = ranks.gather([ranks.place["pp"], int.from_bytes(digest, "big")])
        if len({stage for stage, _ in told}) < len({tuple(row) for row in told}):
            raise _refusal("the ranks call other blocks in the first step, or in another order")

    def _begin(self, model: nn.Module, _: Any) -> None:
        self._called, self._training = [], model.training

    def _call(self, name: str, *_: Any) -> None:
        if self._called is None:  # a block that is called by itself, outside of a pass
            return
        first, place = self._first.get(self._training), len(self._called)
        self._called.append(name)
        if first is not None and (place >= len(first) or first[place] != name):
            expected = first[place] if place < len(first) else "none"
            raise _refusal(f"a forward pass calls {name} where the first one called {expected}")

    def _end(self, model: nn.Module, *_: Any) -> None:
        called, self._called = self._called or [], None
        first = self._first.setdefault(self._training, called)
        if len(called) < len(first):
            raise _refusal(f"a forward pass does not call {first[len(called)]}, which the first one called")


def _refusal(what: str) -> BadConfigError:
    return BadConfigError(
        f"train.parallel: {what}. Ranks that share a sharded model must call the same parts of it in the same order, "
        "whatever their samples and random numbers are: call all blocks, or use replicas only (dp_shard: 1), with "
        "train.unused_parameters: true"
    )
