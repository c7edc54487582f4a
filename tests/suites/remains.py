"""What a run of the tests left behind, which should be nothing."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
PATIENCE_SECONDS = 20.0
"""For processes that are just ending."""
WARM_RUNTIME = "mlops: warm runtime"
"""It waits for further steps for a while, whoever started it."""
OF_PYTEST = "pytest-of-"
_USER = os.getuid()
KEPT = {f"mlops-shards-{_USER}", f"mlops-metrics-{_USER}", f"mlops-{_USER}"}
"""Of one user each and kept on purpose: shards, metrics on their way to MLflow, sockets of warm runtimes."""
KEPT_BY_OTHERS = ("torchinductor_", "hsperfdata_", "uv-setuptools-")
"""Compiled kernels, Java's, uv's locks."""


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
        waited_for = [each for each in running if not _title(each).startswith(WARM_RUNTIME)]
        if not waited_for or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    said = []
    for process in running:
        try:
            command = _title(process)
            if not command.startswith(WARM_RUNTIME):
                test = process.environ().get("PYTEST_CURRENT_TEST", "no test")
                said.append(f"process {process.pid} of {test}: {command[:200]}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return said


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def left_files(scratch: Path) -> list[Path]:
    """What lies in a session's temporary folder beside pytest's own folders and what is kept on purpose."""
    found = sorted(scratch.iterdir()) if scratch.exists() else []
    return [each for each in found if each.name not in KEPT and not each.name.startswith((OF_PYTEST, *KEPT_BY_OTHERS))]


def made_at(path: Path) -> int:
    """When a file was made, in whole seconds since 1970; 0 where its file system does not tell."""
    done = subprocess.run(["stat", "--format=%W", str(path)], capture_output=True, text=True, check=False)
    return int(done.stdout or 0)  # Python has no field for it
