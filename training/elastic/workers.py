"""The worker processes of one node: started, read, watched and ended together."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

from training.process import die_with_parent

_POLL_SECONDS = 0.02
_TAIL_LINES = 10
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["training.elastic.preload"])


def prepare() -> None:
    """Begin the imports that all workers share, while this process does its own."""
    forkserver.ensure_running()


class Worker:
    """
    One rank's process, in a session of its own. Its output goes on to this process's, line by line.

    :param program: as after ``python``: ``-m module argument...`` or ``script.py argument...``
    :param environment: the whole of it
    :param prefix: stands before each line of its output
    """

    def __init__(self, *, rank: int, program: Sequence[str], environment: Mapping[str, str], prefix: str = "") -> None:
        self.rank = rank
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        """Its last lines."""
        output, its_end = _FORK.Pipe(duplex=False)
        # Not daemonic: those may have no children, so no loader processes.
        self._process = _FORK.Process(target=_work, args=(tuple(program), dict(environment), its_end), daemon=False)
        self._process.start()
        its_end.close()
        self._reader = threading.Thread(target=self._forward, args=(output, prefix), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that killed it."""
        return self._process.exitcode

    def signal(self, number: signal.Signals) -> None:
        """To the process and all that it started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def drain(self) -> None:
        """Wait for its last lines; not for a daemon that it left behind and that holds the pipe."""
        self._reader.join(timeout=0.5)

    def _forward(self, output: Connection, prefix: str) -> None:
        with open(output.fileno(), errors="replace", closefd=False) as lines:
            for line in lines:
                self.tail.append(line.rstrip("\n"))
                sys.stdout.write(prefix + line)
                sys.stdout.flush()


def end(workers: Sequence[Worker], number: signal.Signals, grace_seconds: float) -> None:
    """Ask all to end; SIGKILL to those that have not when the time is over."""
    running = [worker for worker in workers if worker.exit_code is None]
    for worker in running:
        worker.signal(number)
    deadline = time.monotonic() + grace_seconds
    while any(worker.exit_code is None for worker in running) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for worker in workers:
        if worker.exit_code != 0:  # also to what one that was killed left behind
            worker.signal(signal.SIGKILL)
    for worker in running:
        worker._process.join(grace_seconds + 1)  # in vain where it hangs in the kernel: go on without it
        worker.drain()


def _work(program: tuple[str, ...], environment: dict[str, str], output: Connection) -> None:
    # In the forked process: become what `python *program` would have been.
    with contextlib.suppress(PermissionError):
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    die_with_parent()
    if program[0] == "-m":
        sys.argv = list(program[1:])
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(program)
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")
