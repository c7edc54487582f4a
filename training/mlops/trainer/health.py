"""What a rank tells about itself while it works: its heartbeat, and its stacks when it is asked for them."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DIRECTORY_VARIABLE: Final = "MLOPS_HEARTBEAT_DIR"
"""Folder of the heartbeats of one node's ranks. Where it is not set, nobody listens."""
REST: Final = "at rest"
"""Phase in which silence is a sign of a hang only after a longer time, e.g. while a checkpoint is uploaded."""
DATA: Final = "data"
"""Phase in which a rank waits for its next batch."""
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
"""Phase of the backward pass, in which replicas also wait for each other's gradients."""
EXCHANGE: Final = "gradient exchange"
"""Phase in which ranks wait for each other's gradients, buffers or norms."""
OPTIMIZER: Final = "optimizer"
TALK: Final = "talk"
"""Phase in which ranks wait for each other's numbers."""
PIPELINE: Final = "pipeline"
"""Phase of the forward and backward passes of a stage, in which it also waits for its neighbours."""
VALIDATION: Final = "validation"
WAITS: Final = frozenset({EXCHANGE, TALK})
"""Phases in which a rank does nothing but wait for other ranks."""
OWN: Final = frozenset({DATA, FORWARD, OPTIMIZER})
"""Phases whose time is a rank's own: in the others it may wait for other ranks."""
STACKS_SIGNAL: Final = signal.SIGUSR1

# Step, the first step of this process, beats within the step, CLOCK_MONOTONIC in nanoseconds, those of own work, phase.
_RECORD = struct.Struct("<qqqqq24s")
_NO_STEP = -1
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, -1  # <linux/prctl.h>


class Heartbeat:
    """
    A record in a file mapped to memory, which the node's agent reads every second.

    Opened once by each rank. From then on the rank also writes the stacks of its threads to a file when it gets
    ``STACKS_SIGNAL``: in C, so also where Python stands still.

    :param folder: where the agent looks; None: every call does nothing
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._memory: mmap.mmap | None = None
        self._first = self._step = _NO_STEP
        self._beats = 0
        self._names: dict[str, tuple[bytes, bool]] = {}
        self._since, self._counts = 0, False
        self.own_nanoseconds = 0
        """Time spent in the phases of :data:`OWN`, since the start."""
        if folder is None:
            return
        with heartbeat_path(folder, rank).open("w+b") as file:
            file.truncate(_RECORD.size)
            self._memory = mmap.mmap(file.fileno(), _RECORD.size)
        self.beat(_NO_STEP, "start")
        self._stacks = stacks_path(folder, rank).open("w")  # faulthandler keeps its descriptor only
        faulthandler.enable(self._stacks)
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True, chain=False)
        if sys.platform == "linux":
            # The agent's py-spy is not our ancestor, which Yama asks of whoever reads another's memory.
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)

    @classmethod
    def from_environment(cls) -> Heartbeat:
        folder = os.environ.get(DIRECTORY_VARIABLE)
        return cls(Path(folder) if folder else None, int(os.environ.get("RANK", "0")))

    def beat(self, step: int, phase: str) -> None:
        """
        Say that something is about to begin. Costs less than a microsecond.

        :param step: optimizer steps done since the start of the training
        :param phase: e.g. ``forward``; 24 bytes of it are kept
        """
        if step != self._step:
            if self._first < 0:
                self._first = step
            self._step, self._beats = step, 0
        self.enter(phase)

    def enter(self, phase: str) -> None:
        """Say that a phase of the current step is about to begin. Costs about as much."""
        if self._memory is None:
            return
        known = self._names.get(phase)
        if known is None:
            known = self._names[phase] = (phase.encode()[:24], phase in OWN)
        now = time.monotonic_ns()
        if self._counts:
            self.own_nanoseconds += now - self._since
        self._since = now
        name, self._counts = known
        self._beats += 1
        _RECORD.pack_into(self._memory, 0, self._step, self._first, self._beats, now, self.own_nanoseconds, name)


_current = Heartbeat(None, 0)


def use(heartbeat: Heartbeat) -> None:
    """Have :func:`enter` speak for this process by this heartbeat."""
    global _current  # noqa: PLW0603
    _current = heartbeat


def enter(phase: str) -> None:
    """Say that a phase of the current step is about to begin, by the heartbeat of this process, if it has one."""
    _current.enter(phase)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    """The last heartbeat of a rank."""

    step: int
    """-1 before the first."""
    beats: int
    """Within the step. Ranks do the same in the same order, so the one of fewer is behind."""
    phase: str
    at: float
    """Seconds of CLOCK_MONOTONIC, which all processes of a node share."""
    under_way: bool
    """Whether a whole step is done: the first may compile for minutes."""
    own_seconds: float
    """Time spent since the start in the phases of :data:`OWN`."""


def read_pulse(folder: Path, rank: int) -> Pulse | None:
    """None where the rank has not opened its heartbeat (yet)."""
    path = heartbeat_path(folder, rank)
    data = path.read_bytes() if path.exists() else b""
    if len(data) < _RECORD.size:
        return None
    step, first, beats, nanoseconds, own, name = _RECORD.unpack(data)
    if nanoseconds == 0:
        return None
    phase = name.rstrip(b"\0").decode(errors="ignore")
    return Pulse(
        step=step,
        beats=beats,
        phase=phase,
        at=nanoseconds / 1e9,
        under_way=step > first >= 0,
        own_seconds=own / 1e9,
    )


def heartbeat_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}"


def stacks_path(folder: Path, rank: int) -> Path:
    return folder / f"stacks-{rank}.txt"
