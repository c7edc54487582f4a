"""The stacks of a rank's threads: written on request, and what they say about whom the rank waits for."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from mlops.trainer.health import STACKS_SIGNAL, stacks_path

STACKS_SECONDS = 3.0
"""Within this time a process writes its stacks, or cannot."""
PY_SPY_SECONDS = 60.0

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
_BLOCK = re.compile(r"^(?=(?:Current thread|Thread) 0x)", re.MULTILINE)
# A main thread's outermost frame, or what faulthandler writes in place of those beyond the hundredth.
_OUTERMOST = re.compile(r"(?: in (?:<module>|_run_module_as_main)|^  \.\.\.)\n\Z", re.MULTILINE)
_TOP_FRAMES = 12
_OUR_FRAMES = "<frozen runpy>"  # from here outwards it is how the program was started

# What stands between a call that waits and whoever made it, and says nothing about either.
_WRAPPERS = re.compile(
    r"torch/distributed/c10d_logger\.py$|torch/_ops\.py$|torch/utils/_contextlib\.py$|/contextlib\.py$"
)
_COLLECTIVE_FILES = re.compile(
    r"torch/distributed/(?!tensor/|checkpoint/)|mlops/trainer/checkpoint/reports\.py$|torch/nn/parallel/distributed\.py$"
)
_STORE_FILES = re.compile(r"mlops/store\.py$|mlops/trainer/checkpoint/files\.py$|/obstore/")
_LOADER_FILES = re.compile(r"mlops/data/shards/loader\.py$")
_CHECKPOINT_WRITER = re.compile(r"mlops/trainer/checkpoint/writing\.py$")

OTHERS, STORE, DATA, GRADIENTS = "other ranks", "the store", "data", "the backward pass"
"""What a rank can wait for; the backward pass of replicas may compute, or wait for other ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    file: str
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({Path(self.file).name}:{self.line})"

    @property
    def own(self) -> bool:
        """Whether it is neither Python's nor a package's."""
        return "site-packages" not in self.file and not self.file.startswith((sys.base_prefix, "<frozen"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Doing:
    """What a rank does, by its stacks."""

    text: str
    """Innermost function, and the innermost of the user's code."""
    waits_for: str
    """One of :data:`OTHERS` and so on; empty where it computes, or its stacks could not be read."""
    known: bool


def doing(stacks: str) -> Doing:
    """
    Interpret the stacks of all threads, as :mod:`faulthandler` writes them.

    A main thread that only waits for one of our threads is judged by what that one does.
    """
    threads = [list(_frames(block)) for block in _BLOCK.split(stacks)]
    main = list(_frames(main_thread(stacks)))
    if not main:
        return Doing(text="its stack could not be read", waits_for="", known=False)
    waits_for = _waits_for(main)
    shown: Sequence[Frame] = main
    if not waits_for and (writer := _at_work(threads, main, _CHECKPOINT_WRITER, "_settle")):
        waits_for, shown = _waits_for(writer), writer
    elif not waits_for and _LOADER_FILES.search(_first_own(main).file):
        waits_for = DATA
        shown = _at_work(threads, main, _LOADER_FILES, "_ahead") or main
    own = _first_own(shown)
    named = [shown[0], own] if own is not shown[0] else [own]
    return Doing(text="in " + ", called by ".join(map(str, named)), waits_for=waits_for, known=True)


def _waits_for(frames: Sequence[Frame]) -> str:
    first = next((frame for frame in frames if not _WRAPPERS.search(frame.file)), frames[-1])
    if first.name == "_engine_run_backward":
        return GRADIENTS
    if _COLLECTIVE_FILES.search(first.file):
        return OTHERS
    if any(_STORE_FILES.search(frame.file) for frame in frames):
        return STORE
    return ""


def _at_work(
    threads: Sequence[Sequence[Frame]], main: Sequence[Frame], file: re.Pattern[str], waits_in: str
) -> Sequence[Frame] | None:
    """The thread for which the main one waits in a function of ours."""
    if not any(frame.name == waits_in for frame in main):
        return None
    return next((each for each in threads if each != main and any(file.search(frame.file) for frame in each)), None)


def _first_own(frames: Sequence[Frame]) -> Frame:
    return next((frame for frame in frames if frame.own), frames[0])


def top_frames(folder: Path, rank: int) -> list[str]:
    """The innermost frames of a rank's main thread, as written by the last call of :func:`write_stacks`."""
    path = stacks_path(folder, rank)
    text = main_thread(path.read_text(errors="replace")) if path.exists() else ""
    return [match[0].strip() for match in _FRAME.finditer(text)][:_TOP_FRAMES]


def last_stacks(folder: Path, rank: int) -> str:
    """What a rank wrote last, e.g. as a signal killed it; empty where it wrote nothing."""
    path = stacks_path(folder, rank)
    return path.read_text(errors="replace") if path.exists() else ""


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
        if _FRAME.search(text := _written(path, before)):
            return text
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


def _written(path: Path, start: int) -> str:
    """What is written from a place on, once the main thread, which is listed last, is whole or the time is over."""
    deadline = time.monotonic() + STACKS_SECONDS
    while True:
        text = path.read_bytes()[start:].decode(errors="replace")
        if _OUTERMOST.search(text) or time.monotonic() > deadline:
            return text
        time.sleep(0.02)


def main_thread(stacks: str) -> str:
    """The part that is the main thread's: the last one to be listed, for it is the oldest."""
    return _BLOCK.split(stacks)[-1]


def _frames(stack: str) -> Iterator[Frame]:
    """Innermost first."""
    found = (Frame(**match.groupdict()) for match in _FRAME.finditer(stack))
    return takewhile(lambda frame: frame.file != _OUR_FRAMES, found)
