"""Process trees: find, end, and wait for them. A zombie counts as ended: nobody may be there to reap it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Final

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
