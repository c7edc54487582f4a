"""Waiting for a step's Job without a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from mlops.contract.section import SpecError
from mlops_provider.connections import secret_environment
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch
from mlops_provider.launchers.kubernetes.job import PodTask, StepJobRun, discard

REFUSED = "refused"
"""In an event: why a Job could not be made."""
_GIVEN_UP = (None, "success", "failed", "removed", "skipped", "upstream_failed")
_RESUMED_SECONDS, _POLL_SECONDS = 30.0, 0.25


class JobTrigger(BaseTrigger):
    """
    Runs a step's Kubernetes Job, and fires when it has ended, with its :class:`Ending`. What its pods write goes to the
    task's log.

    Where the triggerer is lost, another one finds the Job and goes on.

    :param pod_task: as :meth:`PodTask.to_json` gives it
    :param launch: as :meth:`Launch.to_json` gives it
    :param connections: see :func:`secret_environment`. Resolved here: Airflow shows a trigger's arguments.
    """

    def __init__(self, pod_task: Mapping[str, Any], launch: Mapping[str, Any], connections: Mapping[str, str]) -> None:
        super().__init__()
        # Not looked at here: what fails in a trigger's making takes the whole triggerer down.
        self.pod_task, self.launch, self.connections = pod_task, launch, connections
        self._made: StepJobRun | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "mlops_provider.launchers.kubernetes.trigger.JobTrigger", {
            "pod_task": dict(self.pod_task),
            "launch": dict(self.launch),
            "connections": dict(self.connections),
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            job = self._job()
        except ValueError as error:  # settings of another release
            yield TriggerEvent({REFUSED: str(error)})
            return
        try:
            ending = await job.work(Launch.from_json(self.launch, {}), self.log.info, self._environment)
        except SpecError as error:
            yield TriggerEvent({REFUSED: str(error)})
            return
        yield TriggerEvent(ending.to_event())
        # The task that is resumed removes the Job. One that was marked failed just now never is.
        deadline = time.monotonic() + _RESUMED_SECONDS
        while (state := await self._state()) == "deferred" and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        if state in _GIVEN_UP:
            await discard(job.deployment, ending)

    async def on_kill(self) -> None:
        """
        The task was cleared, marked, or deleted, by a person.

        Airflow also calls this in a triggerer that had been taken for dead and lost its triggers to another one.
        """
        if await self._state() == "deferred":
            return
        self.log.info("[kubernetes] removing the Job")
        await self._job().remove()

    def _job(self) -> StepJobRun:
        if self._made is None:
            task = PodTask.from_json(self.pod_task)
            self._made = task.job(Deployment.load(task.team))
        return self._made

    async def _environment(self) -> Mapping[str, str]:
        launch = Launch.from_json(self.launch, {})
        deployment = self._job().deployment
        return await sync_to_async(secret_environment)(launch.input.step, self.connections, deployment)

    async def _state(self) -> str | None:
        """Return the task's state; None where the task is gone."""
        task = self.task_instance
        assert task is not None, "set by the triggerer"
        index = -1 if task.map_index is None else task.map_index
        found = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=index
        )
        states = found.get(task.run_id, {})
        state: str | None = states.get(f"{task.task_id}_{index}" if index >= 0 else task.task_id)
        return state
