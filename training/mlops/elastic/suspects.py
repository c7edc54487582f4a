"""Which rank the others wait for: a pure function of what each rank was last seen doing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mlops.elastic.flight import Record, WaitGraph, list_ranks
from mlops.elastic.stacks import GRADIENTS, OTHERS
from mlops.trainer.health import WAITS

STOPPED, STUCK, ENDED = "stopped by a signal", "stuck in the kernel (state D)", "ended"
_HALTED = (STOPPED, STUCK, ENDED)
_BUSY = 0.3
"""Share of the time in which it can compute from which on a rank does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankState:
    """A rank of a gang that stands still. Sent between nodes as JSON."""

    rank: int
    node: str
    step: int
    beats: int
    """Heartbeats within the step."""
    phase: str
    seconds: float
    """Since its last heartbeat."""
    state: str
    """State of the rank's process."""
    doing: str
    """Innermost function, and the innermost of the user's code."""
    waits_for: str = ""
    """What its stacks show that it waits for, see :mod:`mlops.elastic.stacks`; empty where it computes."""
    seen: bool = True
    """Whether its stacks could be read."""
    busy: float = 0.0
    """Share of the time in which it computed, of that in which it did not stand in line for a processor."""
    flight: Record | None = None
    """What NCCL's flight recorder says of it, where it has one; see :mod:`mlops.elastic.flight`."""

    @property
    def halted(self) -> bool:
        return self.state in _HALTED

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks, as far as can be seen."""
        if self.halted:
            return False
        if not self.seen:
            return self.phase in WAITS
        # The backward pass of replicas waits for gradients, unless it computes.
        return self.waits_for == OTHERS or (self.waits_for == GRADIENTS and self.busy < _BUSY)

    @property
    def place(self) -> tuple[int, int]:
        return self.step, self.beats


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    suspect: RankState | None
    """None where all ranks wait for each other in the same place."""
    certain: bool
    why: str


def judge(states: Sequence[RankState], graph: WaitGraph | None = None) -> Suspicion:
    """
    Find the rank that the others wait for.

    Where stacks leave a doubt, as on GPUs, which work behind their programs, the flight recorders' word counts.

    :param graph: what they say; None where there are none
    """
    verdict = _judge_stacks(states)
    if verdict.certain or graph is None or len(graph.roots) != 1:
        return verdict
    suspect = next((state for state in states if state.rank == graph.roots[0]), None)
    why = "so NCCL's flight recorders say"
    return verdict if suspect is None else Suspicion(suspect=suspect, certain=not graph.unknown, why=why)


def _judge_stacks(states: Sequence[RankState]) -> Suspicion:
    """
    By what processes and stacks show.

    Certain is only a single rank that is halted, or seen to do something else than waiting while all others wait.

    :param states: of all ranks, at least one
    """
    halted = [state for state in states if state.halted]
    working = [state for state in states if not state.waits and not state.halted]
    if halted:
        suspect = _furthest_behind(halted)
        sure = len(halted) == 1 and (not working or len(states) == 1)
        return Suspicion(suspect=suspect, certain=sure, why=f"its process is {suspect.state}")
    if len(working) == 1:
        [suspect] = working
        why = "all others wait for other ranks" if len(states) > 1 else "it is the only one"
        if not suspect.seen:
            return Suspicion(suspect=suspect, certain=False, why=f"{why}, though its stack could not be read")
        return Suspicion(suspect=suspect, certain=True, why=why)
    if working:
        suspect = _furthest_behind(working)
        ranks = list_ranks([state.rank for state in working])
        return Suspicion(
            suspect=suspect, certain=False, why=f"of the ranks that wait for no other, {ranks}, it is last"
        )
    return _judge_waiting(states)


def _judge_waiting(states: Sequence[RankState]) -> Suspicion:
    """All wait: for one that cannot go on though what it waits for has come, or in different places."""
    busy = [state for state in states if state.busy >= _BUSY]
    if len(busy) == 1 and len(states) > 1:
        why = "all wait for each other, but only its threads compute, of which one may hold Python's lock"
        return Suspicion(suspect=busy[0], certain=False, why=why)
    places: defaultdict[tuple[int, int, str], list[RankState]] = defaultdict(list)
    for state in states:
        places[*state.place, state.doing.partition(" (")[0]].append(state)
    if len(places) == 1:
        return Suspicion(suspect=None, certain=False, why="all wait for each other in the same place")
    # The place of the fewest, else the one that is least far.
    fewest = min(places.values(), key=lambda group: (len(group), group[0].place))
    others = [state.rank for state in states if state not in fewest]
    why = (
        f"all wait for each other, but in different places: {list_ranks([state.rank for state in fewest])} in one "
        f"where {list_ranks(others)} are not, as where a rank skips a collective or has one of its own"
    )
    return Suspicion(suspect=_furthest_behind(fewest), certain=False, why=why)


def _furthest_behind(states: Sequence[RankState]) -> RankState:
    return min(states, key=lambda state: (*state.place, -state.seconds))
