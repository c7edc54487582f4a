"""What a run of the tests left behind, which should be nothing."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
PATIENCE_SECONDS = 20.0
"""For processes that are just ending."""
OF_PYTEST = "pytest-of-"
CACHES = ("mlops-shards-", "mlops-metrics-", "torchinductor_", "hsperfdata_")
"""Kept on purpose from run to run: of shards, of a model's metrics in the outbox, of compiled kernels, of Java."""


def adopt_orphans() -> None:
    """Have processes whose parent ended become children of this one, so that they are found."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap(known: Iterable[int]) -> None:
    """Collect the adopted processes that have ended."""
    known = set(known)
    for child in psutil.Process().children():
        try:
            if child.pid not in known and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue


def left_processes() -> list[str]:
    """End what still runs below this process, and say what it was and which test started it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        reap(())
        running = psutil.Process().children(recursive=True)
        if not running or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    said = []
    for process in running:
        try:
            test = process.environ().get("PYTEST_CURRENT_TEST", "no test")
            said.append(f"process {process.pid} of {test}: {' '.join(process.cmdline())[:200]}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return said


def left_files(scratch: Path) -> list[str]:
    """What lies in a session's temporary folder beside pytest's own folders and what is a cache."""
    names = sorted(each.name for each in scratch.iterdir()) if scratch.exists() else []
    return [str(scratch / name) for name in names if not name.startswith((OF_PYTEST, *CACHES))]
