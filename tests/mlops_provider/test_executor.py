"""The local stack's executor, where single processes of it are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from airflow.utils.state import TaskInstanceState

from mlops_provider import processes
from mlops_provider.local.executor import LastingExecutor

SCHEDULER = """
import os
import sys

from mlops_provider.local.executor import LastingExecutor


class Workload:
    # Says who has taken it, and cannot be run.

    key, running_state, failure_state = 1, None, "failed"

    def __init__(self, name):
        self.name = name

    @property
    def display_name(self):
        print(f"{os.getpid()} got {self.name}", file=answers, flush=True)
        return self.name


answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the log goes there
executor = LastingExecutor(parallelism=3)
executor.start()
print(*executor.workers, file=answers, flush=True)
for line in sys.stdin:
    executor.activity_queue.put(Workload(line.strip()))
    with executor._unread_messages:
        executor._unread_messages.value += 1
"""


@pytest.fixture
def scheduler() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    left = processes.tree(process.pid)
    yield process
    processes.kill([*left, *processes.tree(process.pid)])
    process.wait()


def ask(scheduler: subprocess.Popen[str], item: str) -> str:
    """:return: what the worker says that has taken it"""
    assert scheduler.stdin is not None
    assert scheduler.stdout is not None
    scheduler.stdin.write(f"{item}\n")
    scheduler.stdin.flush()
    return scheduler.stdout.readline()


def test_a_killed_process_holds_up_no_other(scheduler: subprocess.Popen[str]) -> None:
    """Broken: of Airflow's own executor one that dies while it waits keeps the lock, and no task runs any more."""
    assert scheduler.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in scheduler.stdout.readline().split()]
    for number, victim in enumerate(workers[:-1]):
        assert f"got {number}" in ask(scheduler, str(number))
        victim.kill()
        processes.wait_ended([victim], 10)
    assert ask(scheduler, "the last") == f"{workers[-1].pid} got the last\n"


def test_idle_processes_end_with_their_scheduler(scheduler: subprocess.Popen[str]) -> None:
    """Broken: each scheduler that is killed would leave four processes, and one of them take a task a second time."""
    assert scheduler.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in scheduler.stdout.readline().split()]
    for number in range(5):
        assert f"got {number}" in ask(scheduler, str(number))
    scheduler.kill()
    scheduler.wait()
    assert processes.wait_ended(workers, 30) == []


TITLED = """
import sys
import time

from setproctitle import setproctitle

setproctitle(sys.argv[1])
print("titled", flush=True)
time.sleep(60)
"""


class Task:
    """A task instance, as far as an adoption asks."""

    def __init__(self) -> None:
        self.id, self.key, self.state = uuid4(), uuid4(), TaskInstanceState.RUNNING


def test_a_task_is_left_to_the_process_that_has_it(tmp_path: Path) -> None:
    """Broken: a scheduler that is started again would run what still runs a second time, and use up a try."""
    at_work, lost = Task(), Task()
    title = f"{processes.EXECUTOR}: {at_work.id}"
    program = (
        "import sys, time, setproctitle; setproctitle.setproctitle(sys.argv[1]); print(1, flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", program, title], stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        assert LastingExecutor().try_adopt_task_instances([at_work, lost]) == [lost]  # type: ignore[list-item]
    finally:
        other.kill()
        other.wait()
