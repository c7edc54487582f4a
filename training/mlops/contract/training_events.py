"""What happens to a training, noted beside its results while it goes on, each event an object of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal, Self

EventKind = Literal["started", "resumed", "slow", "failed", "hung", "node_lost", "interrupted", "ended"]
KINDS: Final[tuple[EventKind, ...]] = (
    "started", "resumed", "slow", "failed", "hung", "node_lost", "interrupted", "ended"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEvent:
    """Something that happened to a training."""

    kind: EventKind
    said: str
    """In words."""
    node: str
    """Which tells it; empty where it is not known."""
    at: float
    """Unix time, by that node's clock."""

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        """:raises ValueError: where this is not what :meth:`dump` wrote"""
        found = json.loads(data)
        if not isinstance(found, dict) or found.keys() != {"kind", "said", "node", "at"} or found["kind"] not in KINDS:
            raise ValueError("it is no event of a training")
        said, node = (str(found[name]).encode(errors="replace").decode() for name in ("said", "node"))
        return cls(kind=found["kind"], said=said, node=node, at=float(found["at"]))


def events_of(place: str) -> str:
    """Folder of a training's events in the store."""
    return f"{place}/events"


def event_key(place: str, gang: str, round_: int, what: str) -> str:
    """
    Return an event's key. What several processes of one round see is one event: the first to tell it has the word.

    :param gang: name that its processes have in common, and no others
    :param round_: which of its starts
    :param what: the kind, with the node where each has an event of its own
    """
    return f"{events_of(place)}/{gang}-{round_:04d}-{what}.json"
