"""Run a step as pods: one, or one for each node of a gang."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from mlops.contract.section import SpecError, check_section
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch, Outcome, StepTask
from mlops_provider.launchers.kubernetes.api import NoClusterError
from mlops_provider.launchers.kubernetes.job import PodTask, finish
from mlops_provider.launchers.kubernetes.manifests import Task, deployment_id
from mlops_provider.launchers.kubernetes.status import Ending
from mlops_provider.launchers.kubernetes.trigger import REFUSED, JobTrigger
from mlops_provider.pod_spec import Pods, merged, platform_pods

CANCEL_SECONDS = 4.0
"""Below the 5 s after which Airflow's supervisor kills the task itself."""
FAILURES_OF_A_BAD_NODE = 2


class PodLauncher:
    """
    Implements :class:`mlops_provider.launchers.base.DeferrableLauncher`.

    The trigger starts the Job, not the task before it is deferred: Airflow may take no deferral of a task that was
    marked failed meanwhile, or drop its trigger before it runs, and nobody would know of the Job.
    """

    section: ClassVar[None] = None
    """Pods have settings under a name of their own."""

    def __init__(self, deployment: Deployment, pod_task: PodTask) -> None:
        self.deployment, self.pod_task = deployment, pod_task
        self._job = pod_task.job(deployment)

    @classmethod
    def of(cls, task: StepTask, deployment: Deployment) -> PodLauncher:
        return cls(deployment, pod_task_of(task, deployment))

    def run(self, launch: Launch, on_line: Callable[[str], None]) -> Outcome:
        try:
            return finish(self.deployment, asyncio.run(self._job.work(launch, on_line)))
        except BaseException:
            # A timeout, say: nothing of the step outlives its task.
            self.cancel()
            raise

    def cancel(self) -> None:
        """Waits a few seconds at most: the cluster does the rest."""
        self._job.end()
        # Called from a signal handler, perhaps, of a thread whose event loop runs.
        thread = threading.Thread(target=self._remove, daemon=True)
        thread.start()
        thread.join(CANCEL_SECONDS)

    def _remove(self) -> None:
        with contextlib.suppress(NoClusterError):  # nothing was started there
            asyncio.run(self._job.remove())

    def trigger(self, launch: Launch, connections: Mapping[str, str]) -> JobTrigger:
        return JobTrigger(self.pod_task.to_json(), launch.to_json(), connections)

    @classmethod
    def finish(cls, event: Mapping[str, Any], deployment: Deployment) -> Outcome:
        if (refusal := event.get(REFUSED)) is not None:
            raise SpecError(refusal)
        return finish(deployment, Ending.from_event(event))


def pod_task_of(task: StepTask, deployment: Deployment) -> PodTask:
    """:raises SpecError: where the pods' settings make no sense, or the team has no namespace"""
    if not deployment.kubernetes_namespace:
        raise SpecError(
            f"task {task.task_id!r}: team {task.team!r} has no kubernetes_namespace, and with launcher: pod its pods "
            "need one of its own; add it to the teams' file"
        )
    defaults = platform_pods(deployment.pod_defaults, task.pods_of)
    settings = merged(defaults, deployment.tenant.pods(), task.pods)
    return PodTask(
        task=Task(
            deployment=deployment_id(deployment.store),
            dag_id=task.dag_id,
            run_id=task.run_id,
            task_id=task.task_id,
            map_index=task.map_index,
        ),
        team=task.team,
        pods=check_section(Pods, settings, f"task {task.task_id!r}: pods"),
        deadline_seconds=task.timeout_seconds,
        patience_seconds=deployment.infrastructure_patience.total_seconds(),
        avoided_nodes=tuple(node for node, number in task.failed_nodes.items() if number >= FAILURES_OF_A_BAD_NODE),
    )
