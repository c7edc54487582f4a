"""Why a gang stands still: which rank is late, where, and what each was doing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from mlops.contract.step import Failure, StepError
from mlops.elastic.flight import read_records, request_dumps, wait_graph
from mlops.elastic.stacks import Doing, doing, write_stacks
from mlops.elastic.suspects import ENDED, STOPPED, STUCK, RankState, judge
from mlops.trainer.health import REST, Pulse, read_pulse

START_FACTOR = 4
"""Before its first whole step a gang has this many times as long: it loads, compiles, warms caches."""
REST_FACTOR = 4
"""While a rank waits for the store, or does its last work, the gang has this many times as long."""

_STATES = {psutil.STATUS_STOPPED: STOPPED, psutil.STATUS_DISK_SLEEP: STUCK, psutil.STATUS_ZOMBIE: ENDED}
_LOOKS, _LOOK_SECONDS = 20, 0.025
"""How often, and how far apart, it is looked which ranks compute."""
_TICKS = os.sysconf("SC_CLK_TCK")
_SHOWN_RANKS = 7


class HungRankError(StepError):
    """No rank made progress any more. A retry goes on from the last checkpoint."""


class Watch:
    """
    Tells when the ranks of this node have been silent for too long.

    :param folder: of their heartbeats
    :param pids: process of each rank
    """

    def __init__(self, folder: Path, pids: Mapping[int, int], *, hang_seconds: float, node: str) -> None:
        self._folder = folder
        self._pids = pids
        self._hang_seconds = hang_seconds
        self._node = node
        self._started = time.monotonic()

    def pulse(self, rank: int) -> Pulse | None:
        return read_pulse(self._folder, rank)

    def knows(self) -> bool:
        """Whether any rank tells how far it is; a script that knows nothing of heartbeats does not."""
        return any(self.pulse(rank) is not None for rank in self._pids)

    def furthest(self) -> int:
        """The highest step of any rank; -1 where there is none."""
        return max((pulse.step for rank in self._pids if (pulse := self.pulse(rank))), default=-1)

    def silent(self, running: Sequence[int]) -> float | None:
        """
        For how long no rank has made progress, where that is too long.

        Ranks wait for each other, so one that hangs silences all. None too where no rank has a heartbeat (a script
        that knows nothing of them).
        """
        pulses = {rank: self.pulse(rank) for rank in running}
        known = [pulse for pulse in pulses.values() if pulse is not None]
        if not known:
            return None
        allowed = self._hang_seconds
        if any(pulse.phase == REST for pulse in known):
            allowed *= REST_FACTOR
        elif len(known) < len(pulses) or not any(pulse.under_way for pulse in known):
            allowed *= START_FACTOR
        seconds = time.monotonic() - max(pulse.at for pulse in known)
        return seconds if seconds > allowed else None

    def examine(self, ranks: Sequence[int], *, all_seen: Callable[[], object] = lambda: None) -> list[RankState]:
        """
        Have the ranks write their stacks. They may do anything afterwards: they must be ended.

        A stopped rank goes on as it writes its own, and with it those that wait for it: it comes last.

        :param all_seen: waits until the other nodes have the stacks of their ranks that are not stopped
        """
        busy = _busy([self._pids[rank] for rank in ranks])
        process_states = {rank: _process_state(self._pids[rank]) for rank in ranks}
        now = time.monotonic()
        pulses = {rank: self.pulse(rank) for rank in ranks}
        records = {record["rank"]: record for record in read_records(request_dumps(self._folder, ranks))}
        stopped = [rank for rank in ranks if process_states[rank] == STOPPED]
        stacks = self._stacks([rank for rank in ranks if rank not in stopped])
        all_seen()
        stacks |= self._stacks(stopped)
        return [
            replace(
                self._state(rank, pulses[rank], process_states[rank], busy[self._pids[rank]], doing(stacks[rank]), now),
                flight=records.get(rank),
            )
            for rank in ranks
        ]

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        with ThreadPoolExecutor(max(1, len(ranks))) as pool:
            written = pool.map(lambda rank: write_stacks(self._folder, rank, self._pids[rank]), ranks)
            return dict(zip(ranks, written, strict=True))

    def _state(self, rank: int, pulse: Pulse | None, state: str, busy: float, does: Doing, now: float) -> RankState:
        return RankState(
            rank=rank,
            node=self._node,
            step=pulse.step if pulse else -1,
            beats=pulse.beats if pulse else 0,
            phase=pulse.phase if pulse else "before its first heartbeat",
            seconds=now - (pulse.at if pulse else self._started),
            state=state,
            doing=does.text,
            waits_for=does.waits_for,
            seen=does.known,
            busy=busy,
        )


def describe(state: RankState) -> str:
    """One rank, in a line."""
    waits = f"waits for {state.waits_for} " if state.waits_for and not state.halted else ""
    return (
        f"rank {state.rank} on {state.node}: step {state.step}, {state.phase}, silent for {state.seconds:.0f} s, "
        f"{state.state}; {waits}{state.doing}"
    )


def hung(states: Sequence[RankState], seconds: float) -> Failure:
    """The error of a gang whose ranks have all been silent for so long."""
    return accuse(states, f"the gang hangs: no rank made progress for {seconds:.0f} s")


def accuse(states: Sequence[RankState], what: str) -> Failure:
    """
    The error of a gang that cannot go on, naming whom the others wait for.

    :param what: happened
    """
    states = sorted(states, key=lambda state: state.rank)
    records = [state.flight for state in states if state.flight is not None]
    graph = wait_graph(records) if records else None
    verdict = judge(states, graph)
    suspect = verdict.suspect
    if suspect is None:
        message = f"{what}. No rank stands out, {verdict.why}: look at the network between the nodes. The ranks: "
    elif verdict.certain:
        message = f"{what}. Late is {describe(suspect)} ({verdict.why})"
    else:
        message = f"{what}. Suspected, but not certain, is {describe(suspect)} ({verdict.why})"
    others = [describe(state) for state in states if state is not suspect]
    if others:
        more = ["..."] if len(others) > _SHOWN_RANKS else []
        message += ("" if suspect is None else ". The others: ") + "; ".join(others[:_SHOWN_RANKS] + more)
    if graph is not None and graph.text:
        message += f". By NCCL's flight recorders: {graph.text}"
    named = {} if suspect is None else {"rank": suspect.rank, "node": suspect.node}
    ranks = [asdict(replace(state, flight=None)) for state in states]
    return Failure.of(HungRankError(message, **named, certain=verdict.certain, ranks=ranks))


def _busy(pids: Sequence[int]) -> dict[int, float]:
    """
    The share of their time in which processes compute, of the time in which they could.

    By the time on a processor alone, one that computes beside many others would seem to wait; by how often it was found
    ready to run, one that wakes up now and then, for it stands in line each time.
    """
    ready = dict.fromkeys(pids, 0)
    begin, before = time.monotonic(), {pid: _threads(pid)[1] for pid in pids}
    for _ in range(_LOOKS):
        time.sleep(_LOOK_SECONDS)
        for pid in pids:
            ready[pid] += _threads(pid)[0]
    seconds = time.monotonic() - begin
    found = {}
    for pid in pids:
        computed = max(0.0, _threads(pid)[1] - before[pid]) / seconds
        asleep = 1 - (ready[pid] - 0.5) / _LOOKS  # at least half a look
        found[pid] = computed / (computed + asleep)
    return found


def _threads(pid: int) -> tuple[bool, float]:
    """Whether one of a process's threads runs or waits for a processor only, and their seconds on one; see proc(5)."""
    ready, seconds = False, 0.0
    with suppress(FileNotFoundError, ProcessLookupError):  # it, or one of its threads, has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            state, *fields = (task / "stat").read_text().rpartition(")")[2].split()
            ready |= state == "R"
            seconds += (int(fields[10]) + int(fields[11])) / _TICKS
    return ready, seconds


def _process_state(pid: int) -> str:
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return ENDED
    return _STATES.get(status, str(status))
