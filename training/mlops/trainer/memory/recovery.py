"""Which state in memory a new gang goes on from: decided by rank 0 from what all have found on their seats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlops.trainer.memory.seats import Header, Note


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What one rank has found on its seat."""

    node: int
    """Number of the seat's node in this round."""
    local_rank: int
    headers: Sequence[Header | None]
    """By slot."""
    notes: Sequence[Note]


@dataclass(frozen=True, slots=True)
class Place:
    """A slot of the whole gang."""

    rank: int
    """Rank of this round on whose seat the slot is."""
    node: int
    local_rank: int
    slot: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The state to go on from."""

    header: Header
    """Header of the first place; others may have a document of another length."""
    loss_units: int
    """Loss units of all ranks that made the state."""
    places: Sequence[Place]
    """Where it is: one for each node that has it."""
    missing: bool
    """Whether some node does not have it."""


def choose(found: Sequence[Found], place: str) -> Choice | None:
    """
    The newest state of which all is there.

    Replicas hold equal states, so that of one rank is everyone's. What differs are the sums of their losses: a state
    counts only where those of all ranks of its gang are known.

    :param found: by rank
    :param place: of the training that is asked for
    """
    slots: dict[tuple[int, int, int], list[tuple[Header, Place]]] = {}
    for rank, each in enumerate(found):
        for slot, header in enumerate(each.headers):
            if header is not None and header.place == place:
                slots.setdefault(header.age, []).append((header, Place(rank, each.node, each.local_rank, slot)))
    notes = {(note.round, note.step, note.rank): note.units for each in found for note in each.notes}
    for age in sorted(slots, reverse=True):
        header = slots[age][0][0]
        units = [header.loss_units]
        if header.loss_units is None:
            units = [notes.get((header.round, header.step, rank)) for rank in range(header.world_size)]
        if all(each is not None for each in units):
            by_node: dict[int, Place] = {}
            for _, held in slots[age]:
                by_node.setdefault(held.node, held)
            return Choice(
                header=header,
                loss_units=sum(each for each in units if each is not None),
                places=list(by_node.values()),
                missing=len(by_node) < len({each.node for each in found}),
            )
    return None
