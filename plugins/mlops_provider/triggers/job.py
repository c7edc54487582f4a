from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from mlops_provider.launchers.kubernetes.follow import Followed
from mlops_provider.launchers.pod import delete, follow


class JobTrigger(BaseTrigger):
    """
    Fires when a step's Kubernetes Job has ended, with its :class:`Ending`. What its pods write goes to the task's log.

    Where the triggerer is lost, another one goes on.

    :param connection: Airflow connection id of the cluster
    :param namespace: of the Job
    :param followed: fields of a :class:`Followed`
    """

    def __init__(self, connection: str | None, namespace: str, followed: Mapping[str, Any]) -> None:
        super().__init__()
        self.connection = connection
        self.namespace = namespace
        self.followed = Followed(**followed)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "mlops_provider.triggers.job.JobTrigger", {
            "connection": self.connection,
            "namespace": self.namespace,
            "followed": asdict(self.followed),
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        ending = await follow(self.connection, self.namespace, self.followed, self.log.info)
        yield TriggerEvent(ending.to_event())

    async def on_kill(self) -> None:
        """
        The task was cleared, marked, or deleted, by a person.

        Airflow also calls this in a triggerer that had been taken for dead and lost its triggers to another one.
        """
        task = self.task_instance
        assert task is not None, "set by the triggerer"
        state = sync_to_async(task_state)
        if await state(task.dag_id, task.run_id, task.task_id, task.map_index) == "deferred":
            return
        self.log.info("[kubernetes] removing Job %s", self.followed.name)
        await delete(self.connection, self.namespace, self.followed.name, self.followed.uid)


def task_state(dag_id: str, run_id: str, task_id: str, map_index: int | None) -> str | None:
    """What Airflow takes a task instance to be in; None where it has none such."""
    index = -1 if map_index is None else map_index
    found = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=index)
    state: str | None = found.get(run_id, {}).get(f"{task_id}_{index}" if index >= 0 else task_id)
    return state
