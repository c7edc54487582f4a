"""Airflow's LocalExecutor, for a scheduler that may be killed alone: its tasks go on and are not run a second time."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from functools import cached_property
from multiprocessing.queues import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from airflow.executors import local_executor, workloads
from airflow.utils.state import TaskInstanceState
from sqlalchemy.orm import object_session

from mlops_provider import processes

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance

_LOOK_SECONDS: Final = 1.0
"""How often an idle process looks whether its scheduler is still there."""


class LastingExecutor(local_executor.LocalExecutor):
    """
    Airflow's own one cannot adopt: where a scheduler was killed and started again, it runs each task again that an
    executor's process of the former scheduler is still at. This one leaves those tasks to that process, which reports
    to the API server, and takes over what no process has begun; neither uses a try.
    """

    def try_adopt_task_instances(self, tis: Sequence[TaskInstance]) -> list[TaskInstance]:
        """
        :return: those whose process is gone too: the scheduler runs them again
        """
        titles = [" ".join(process.cmdline()) for process in processes.of_executors()]
        orphaned = [ti for ti in tis if not any(str(ti.id) in title for title in titles)]
        for ti in orphaned:
            if ti.state == TaskInstanceState.QUEUED:
                session = object_session(ti)
                assert session is not None, "the scheduler's own, which must stay open"
                self.queue_workload(workloads.ExecuteTask.make(ti, generator=self.jwt_generator), session)
        return [ti for ti in orphaned if ti.key not in self.queued_tasks]

    @cached_property
    def _input(self) -> _OfScheduler:
        """One for all processes: only one of them may look at the queue at a time."""
        return _OfScheduler(self.activity_queue)

    def _spawn_worker(self) -> None:
        # As Airflow does it, but for the queue.
        worker = multiprocessing.Process(
            target=local_executor._run_worker,
            kwargs={
                "logger_name": self.log.name,
                "input": self._input,
                "output": self.result_queue,
                "unread_messages": self._unread_messages,
                "team_conf": self.conf,
            },
        )
        worker.start()
        assert worker.pid, "it was started"
        self.workers[worker.pid] = worker


class _OfScheduler:
    """
    The executor's queue, as its processes read it: it ends with the scheduler, so that they end when they have nothing
    to do, and none takes a task that another scheduler has taken over.
    """

    def __init__(self, queue: SimpleQueue[Any]) -> None:
        self._queue, self._scheduler = queue, os.getpid()
        # A file's lock ends with who holds it; multiprocessing's would be held for ever by one that was killed.
        self._turn = tempfile.TemporaryFile()  # noqa: SIM115

    def get(self) -> Any:
        """:raises EOFError: where the scheduler is gone"""
        fcntl.lockf(self._turn, fcntl.LOCK_EX)
        try:
            while not self._queue._poll(_LOOK_SECONDS):  # type: ignore[attr-defined]
                self._check()
            self._check()
            return self._queue.get()
        finally:
            fcntl.lockf(self._turn, fcntl.LOCK_UN)

    def _check(self) -> None:
        if os.getppid() != self._scheduler:
            raise EOFError
