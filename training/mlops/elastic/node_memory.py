"""Memory of a node for the state of its ranks, held by its agent: it outlives the ranks, and ends with the agent."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mlops.elastic.workers import Worker
from mlops.trainer.memory.seats import MEMORY_VARIABLE, NUM_SLOTS, ORDER_PREFIX

_PATIENCE_SECONDS: Final = 3.0
"""For ranks that were asked to keep their state, while nothing more of it arrives."""
_POLL_SECONDS: Final = 0.01


class NodeMemory:
    """
    Empty files without a name, that processes of this node may open: a seat's slots and its notes.

    :param processes: of this node
    """

    def __init__(self, processes: int) -> None:
        self._files: list[list[int]] = []
        if hasattr(os, "memfd_create"):  # Linux
            names = [*(f"slot-{number}" for number in range(NUM_SLOTS)), "notes"]
            self._files = [[os.memfd_create(f"rank-{seat}-{name}") for name in names] for seat in range(processes)]

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a worker."""
        return {MEMORY_VARIABLE: json.dumps({"pid": os.getpid(), "seats": self._files})} if self._files else {}

    def fill(self, folder: Path, workers: Sequence[Worker]) -> None:
        """
        Have the ranks of a gang that is broken keep their state, and end.

        :param folder: of their heartbeats
        """
        asked = [worker for worker in workers if worker.exit_code is None and _ask(folder, worker.rank)]
        known, deadline = -1, time.monotonic() + _PATIENCE_SECONDS
        while any(worker.exit_code is None for worker in asked) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            if (size := self._size()) != known:
                known, deadline = size, time.monotonic() + _PATIENCE_SECONDS

    def _size(self) -> int:
        return sum(os.fstat(file).st_blocks for seat in self._files for file in seat)


def _ask(folder: Path, rank: int) -> bool:
    """:return: False where it is not there to hear, before its training or after it"""
    with suppress(OSError):
        pipe = os.open(folder / f"{ORDER_PREFIX}{rank}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            return os.write(pipe, b"1") == 1
        finally:
            os.close(pipe)
    return False
