"""What the agents of one round tell each other, through the round's store."""

from __future__ import annotations

import json
import time
from typing import Any

_HANGS = "mlops/hangs"
_POLL_SECONDS = 0.1
_TELL_SECONDS = 10.0
"""How long to wait for the other nodes at each stage of a diagnosis."""


class Peers:
    """
    :param store: of this round, a :class:`torch.distributed.Store`
    :param node: number of this node in the round
    """

    def __init__(self, store: Any, *, node: int, num_nodes: int) -> None:
        self._store = store
        self._node = node
        self._num_nodes = num_nodes

    def all_silent(self, silent: bool) -> bool:
        """
        Whether every node says that its ranks are. While another node's ranks work, ours may well wait for them.

        Called again and again by each node, in no step with the others. Once true for one of them it is true for all:
        its examination may wake the rank that the others wait for.
        """
        if self._num_nodes == 1:
            return silent
        if self._store.check([_HANGS]):
            return True
        keys = self._keys("silent")
        mine = keys[self._node]
        if silent:
            self._store.set(mine, "1")
        elif self._store.check([mine]):
            self._store.delete_key(mine)
        if hangs := silent and bool(self._store.check(keys)):
            self._store.set(_HANGS, "1")
        return hangs

    def all_done(self) -> bool:
        """
        Whether the ranks of every node have ended well. Called again and again by a node whose ranks have.

        Waiting for it in the store would hold the one connection to it, and keep this node from saying that it lives.
        """
        if self._num_nodes == 1:
            return True
        keys = self._keys("done")
        self._store.set(keys[self._node], "1")
        return bool(self._store.check(keys))

    def await_seen(self) -> None:
        """Called by each node once it has seen its ranks that run: until all have, or the time is over."""
        if self._num_nodes == 1:
            return
        keys = self._keys("seen")
        self._store.set(keys[self._node], "1")
        self._await(keys)

    def gather(self, mine: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The lists of all nodes, joined; of those that told theirs in time."""
        if self._num_nodes == 1:
            return mine
        keys = self._keys("told")
        self._store.set(keys[self._node], json.dumps(mine))
        self._await(keys)
        told = [json.loads(self._store.get(key)) for key in keys if self._store.check([key])]
        return [entry for entries in told for entry in entries]

    def _await(self, keys: list[str]) -> None:
        deadline = time.monotonic() + _TELL_SECONDS
        while not self._store.check(keys) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _keys(self, what: str) -> list[str]:
        return [f"mlops/{what}/{node}" for node in range(self._num_nodes)]
