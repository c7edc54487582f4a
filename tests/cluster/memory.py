"""A container's memory limit: beyond it the container is killed, as by the kernel."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from cluster.pod_status import Container

_INTERVAL_SECONDS = 0.1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OWN = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
_watching: set[asyncio.Task[None]] = set()


def watch_memory(container: Container, limit_bytes: int) -> None:
    """Watch a running container until it ends."""
    task = asyncio.create_task(_watch(container, limit_bytes))
    _watching.add(task)
    task.add_done_callback(_watching.discard)


async def _watch(container: Container, limit_bytes: int) -> None:
    process = container.process
    while process is not None and not process.exited.done():
        pids = _tree(process.pid)
        # The resident sets are quick to read, and counted twice where they are shared: only a suspicion.
        if _resident(pids) > limit_bytes and _owned(pids) > limit_bytes:
            container.out_of_memory = True
            process.signal(signal.SIGKILL)
            return
        await asyncio.sleep(_INTERVAL_SECONDS)


def _tree(pid: int) -> list[int]:
    try:
        root = psutil.Process(pid)
        return [pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def _resident(pids: list[int]) -> int:
    texts = [_read(f"/proc/{pid}/statm") for pid in pids]
    return sum(int(text.split()[1]) for text in texts if text) * _PAGE_BYTES


def _owned(pids: list[int]) -> int:
    """Memory that the kernel cannot take back: anonymous and shared memory, shared pages by halves and thirds."""
    return sum(int(amount) << 10 for pid in pids for amount in _OWN.findall(_read(f"/proc/{pid}/smaps_rollup")))


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
