"""The worker processes of one node: started, read, watched and ended together."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from mlops.fork_server import ForkServer

PRELOAD = "mlops.elastic.preload"
_POLL_SECONDS = 0.02
_TAIL_LINES = 10


@functools.cache
def prepare() -> ForkServer:
    """Begin the imports that all workers share, while this process does its own; a process that has them is copied."""
    return ForkServer([PRELOAD], copy=PRELOAD in sys.modules and threading.active_count() == 1)


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
        """Last lines of the worker's output."""
        output, its_end = os.pipe()
        try:
            self._process = prepare().fork(program, environment, its_end)
        finally:
            os.close(its_end)
        self._reader = threading.Thread(target=self._forward, args=(output, prefix), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that killed it."""
        return self._process.exit_code

    def signal(self, number: signal.Signals) -> None:
        """To the process and all that it started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def drain(self) -> None:
        """Wait for its last lines; not for a daemon that it left behind and that holds the pipe."""
        self._reader.join(timeout=0.5)

    def _forward(self, output: int, prefix: str) -> None:
        with open(output, errors="replace") as lines:
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
        worker._process.wait(grace_seconds + 1)  # in vain where it hangs in the kernel: go on without it
        worker.drain()
