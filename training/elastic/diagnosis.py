"""Why a gang stands still: which rank is late, where, and what each was doing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

import psutil

from mlops_provider.step import Failure, StepError
from training.trainer.health import REST, STACKS_SIGNAL, Pulse, read_pulse, stacks_path

START_FACTOR = 4
"""Before its first whole step a gang has this many times as long: it loads, compiles, warms caches."""
STACKS_SECONDS = 3.0
"""Within this time a process writes its stacks, or cannot."""
PY_SPY_SECONDS = 60.0

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
_STATES = {psutil.STATUS_STOPPED: "stopped by a signal", psutil.STATUS_DISK_SLEEP: "stuck in the kernel (state D)"}
_TOP_FRAMES = 12
_SHOWN_RANKS = 7
_OUR_FRAMES = "<frozen runpy>"  # from here outwards it is how the program was started


class HungRankError(StepError):
    """No rank made progress any more. A retry goes on from the last checkpoint."""


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
    """Of its process."""
    doing: str
    """Innermost function, and the innermost of the user's code."""


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

    def furthest(self) -> int:
        """The highest step of any rank; -1 where there is none."""
        return max((pulse.step for rank in self._pids if (pulse := self.pulse(rank))), default=-1)

    def silent(self, running: Sequence[int]) -> bool:
        """
        Whether no rank made progress for ``hang_seconds``. Ranks wait for each other, so one that hangs silences all.

        False where no rank has a heartbeat (a script that knows nothing of them), or one is at rest.
        """
        pulses = {rank: self.pulse(rank) for rank in running}
        known = [pulse for pulse in pulses.values() if pulse is not None]
        if not known or any(pulse.phase == REST for pulse in known):
            return False
        allowed = self._hang_seconds
        if len(known) < len(pulses) or not any(pulse.under_way for pulse in known):
            allowed *= START_FACTOR
        return time.monotonic() - max(pulse.at for pulse in known) > allowed

    def examine(self, running: Sequence[int]) -> list[RankState]:
        """Have every rank write its stacks. The ranks may do anything afterwards: they must be ended."""
        states = []
        now = time.monotonic()
        for rank in running:
            pulse = self.pulse(rank)
            state = _process_state(self._pids[rank])
            stacks = write_stacks(self._folder, rank, self._pids[rank])
            states.append(
                RankState(
                    rank=rank,
                    node=self._node,
                    step=pulse.step if pulse else -1,
                    beats=pulse.beats if pulse else 0,
                    phase=pulse.phase if pulse else "before its first heartbeat",
                    seconds=now - (pulse.at if pulse else self._started),
                    state=state,
                    doing=_doing(_main_thread(stacks)),
                )
            )
        return states


def late_rank(states: Sequence[RankState]) -> RankState:
    """The one the others wait for: a stopped one, else the one that is least far, else that of the oldest heartbeat."""
    return min(states, key=lambda state: (state.state not in _STATES.values(), state.step, state.beats, -state.seconds))


def describe(state: RankState) -> str:
    """One rank, in a line."""
    return (
        f"rank {state.rank} on {state.node}: step {state.step}, {state.phase}, silent for {state.seconds:.0f} s, "
        f"{state.state}; {state.doing}"
    )


def hung(states: Sequence[RankState], hang_seconds: float) -> Failure:
    """The error of a gang whose ranks are all silent."""
    states = sorted(states, key=lambda state: state.rank)
    late = late_rank(states)
    message = f"the gang hangs: no rank made progress for {hang_seconds:.0f} s. Late is {describe(late)}"
    others = [describe(state) for state in states if state is not late]
    if others:
        more = ["..."] if len(others) > _SHOWN_RANKS else []
        message += ". The others: " + "; ".join(others[:_SHOWN_RANKS] + more)
    ranks = [asdict(state) for state in states]
    return Failure.of(HungRankError(message, rank=late.rank, node=late.node, ranks=ranks))


def top_frames(folder: Path, rank: int) -> list[str]:
    """The innermost frames of a rank's main thread, as written by the last call of :func:`write_stacks`."""
    path = stacks_path(folder, rank)
    text = _main_thread(path.read_text(errors="replace")) if path.exists() else ""
    return [frame[0].strip() for frame in _frames(text)][:_TOP_FRAMES]


def write_stacks(folder: Path, rank: int, pid: int) -> str:
    """
    Write the stacks of all threads of a rank to its file.

    :return: the text; empty where the process could not be made to tell, and py-spy is not there or not allowed
    """
    path = stacks_path(folder, rank)
    if path.exists():  # else the signal would kill it
        before = path.stat().st_size
        try:
            os.kill(pid, STACKS_SIGNAL)
            os.kill(pid, signal.SIGCONT)  # a stopped process writes its stacks as the first thing when it goes on
        except ProcessLookupError:  # it has just ended
            return ""
        if _grown(path, before):
            return path.read_text(errors="replace")[before:]
    if (program := shutil.which("py-spy")) is None:
        return ""
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        seen = subprocess.run(command, capture_output=True, text=True, timeout=PY_SPY_SECONDS, check=False)
    except subprocess.TimeoutExpired:  # as where the process is stuck in the kernel
        return ""
    if seen.returncode == 0:
        path.write_text(seen.stdout)
    return ""


def _grown(path: Path, size: int) -> bool:
    deadline = time.monotonic() + STACKS_SECONDS
    while time.monotonic() < deadline:
        last = size
        time.sleep(0.1)
        size = path.stat().st_size
        if size == last and _FRAME.search(path.read_text(errors="replace")):
            return True
    return False


def _process_state(pid: int) -> str:
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "ended"
    return _STATES.get(status, str(status))


def _main_thread(stacks: str) -> str:
    # Signals go to the main thread, which faulthandler then calls the current one.
    blocks = re.split(r"^(?=(?:Current thread|Thread) 0x)", stacks, flags=re.MULTILINE)
    current = [block for block in blocks if block.startswith("Current thread")]
    return current[-1] if current else blocks[-1]


def _frames(stack: str) -> list[re.Match[str]]:
    """Innermost first."""
    return list(takewhile(lambda frame: frame["file"] != _OUR_FRAMES, _FRAME.finditer(stack)))


def _doing(stack: str) -> str:
    frames = _frames(stack)
    if not frames:
        return "its stack could not be read"
    libraries = (sys.base_prefix, "<frozen")
    own = [
        frame for frame in frames if "site-packages" not in frame["file"] and not frame["file"].startswith(libraries)
    ]
    shown = [frames[0], *own[:1]] if own and own[0] is not frames[0] else frames[:1]
    return "in " + ", called by ".join(
        f"{frame['name']} ({Path(frame['file']).name}:{frame['line']})" for frame in shown
    )
