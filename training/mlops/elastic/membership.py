"""
Who takes part in which round, as every node works it out from one log (state machine replication, Schneider 1990).

Nodes append what they do to the log; nobody writes the outcome. All that read the same entries know the same members,
so that a thousand nodes may come at once without one of them having to try again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple


class NodeId(NamedTuple):
    """One agent's process. Ranks follow this order."""

    address: str
    pid: int
    number: int
    """Among those of the process."""


@dataclass
class Membership:
    """
    The members after the entries that were applied so far.

    :param min_nodes: of a round
    :param max_nodes: of a round; more wait
    """

    min_nodes: int
    max_nodes: int
    round: int = 0
    complete: bool = False
    """Whether the round has its members. Then it only loses some; who comes waits for the next one."""
    closed: bool = False
    participants: dict[NodeId, int] = field(default_factory=dict)
    """With the number of the entry by which they came."""
    waiting: dict[NodeId, int] = field(default_factory=dict)
    """For the next round, in the order in which they came."""
    ranks: Mapping[NodeId, int] = field(default_factory=dict)
    """Ranks of all nodes that the round began with; the same for who looks at once and for who looks when one of
    them is lost."""
    length: int = 0
    """Number of entries of the log so far."""

    @property
    def members(self) -> dict[NodeId, int]:
        """All that are there."""
        return self.participants | self.waiting

    @property
    def enough(self) -> bool:
        """Whether the round could begin with those that are there."""
        return not self.complete and len(self.participants) >= self.min_nodes

    def after(self, entries: Sequence[Mapping[str, Any] | None]) -> Membership:
        """
        What it is after the next entries of the log, as :func:`join` and its like make them.

        :param entries: None: one that was never written
        """
        following = replace(self, participants=dict(self.participants), waiting=dict(self.waiting))
        for entry in entries:
            following._apply(entry)
            following.length += 1
        return following

    def _apply(self, entry: Mapping[str, Any] | None) -> None:
        # What has come too late does nothing.
        match entry:
            case {"do": "join", "node": node}:
                self._join(NodeId(*node))
            case {"do": "leave", "node": node, "came": came}:
                if self.members.get(NodeId(*node)) == came:  # not where it has come again since
                    self._remove(NodeId(*node))
            case {"do": "complete", "round": number}:
                if number == self.round and self.enough:
                    self._begin()
            case {"do": "close"}:
                self.closed = True

    def _join(self, node: NodeId) -> None:
        self._remove(node)
        if self.complete:
            self.waiting[node] = self.length
        else:
            self.participants[node] = self.length
            self._fill()

    def _remove(self, node: NodeId) -> None:
        self.waiting.pop(node, None)
        if self.participants.pop(node, None) is not None and self.complete and not self.participants:
            self.complete = False
            self.round += 1
            self._fill()

    def _fill(self) -> None:
        while self.waiting and len(self.participants) < self.max_nodes:
            node = next(iter(self.waiting))
            self.participants[node] = self.waiting.pop(node)
        if len(self.participants) == self.max_nodes:
            self._begin()

    def _begin(self) -> None:
        self.complete = True
        self.ranks = {node: rank for rank, node in enumerate(sorted(self.participants))}


def join(node: NodeId) -> dict[str, Any]:
    """It comes, or leaves this round for the next one."""
    return {"do": "join", "node": node}


def leave(node: NodeId, came: int) -> dict[str, Any]:
    """
    It leaves, or is lost.

    :param came: the number of the entry by which it came
    """
    return {"do": "leave", "node": node, "came": came}


def complete(number: int) -> dict[str, Any]:
    """The round begins with those that are there."""
    return {"do": "complete", "round": number}


def close() -> dict[str, Any]:
    """Nobody may join any more."""
    return {"do": "close"}
