"""Processes, and trees of them: find, end, and wait for them. A zombie counts as ended: nobody may reap it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Iterable
from typing import Final, NoReturn

import psutil

EXECUTOR: Final = "airflow worker -- LocalExecutor"
"""Begins the command line of the processes of Airflow's LocalExecutor, which supervise tasks."""
_POLL_SECONDS = 0.02


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty where it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_ended(processes: Iterable[psutil.Process], timeout_seconds: float) -> list[psutil.Process]:
    """
    Wait until all have ended.

    :return: those that have not when the time is over
    """
    deadline = time.monotonic() + timeout_seconds
    left = [process for process in processes if alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        left = [process for process in left if alive(process)]
    return left


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each that is still there."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def of_executors() -> list[psutil.Process]:
    """
    This user's processes of Airflow's LocalExecutor, of whichever scheduler: the command line of one that has a task
    ends with the id of the task instance.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid() and " ".join(process.cmdline()).startswith(EXECUTOR):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # ended since, or not ours
            continue
    return found


def leave(code: int) -> NoReturn:
    """
    End this process, as :func:`sys.exit` does, but without taking the interpreter apart.

    A thread of the store's client (obstore) that has handed over its last answer a moment ago may still hold objects of
    Python. It meets an interpreter that ends, and aborts the process: of 150 that ended at once, 120 did.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it may have closed it
            stream.flush()
    os._exit(code)
