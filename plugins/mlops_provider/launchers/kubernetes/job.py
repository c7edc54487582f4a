"""
The Job of a step: one pod, or one for each node of a gang.

The Job's name follows from the task instance. Whoever starts the same step again, a retry after the worker, the
scheduler or the triggerer was lost, finds the Job, follows it, and reads its outcome where it has ended meanwhile.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from obstore.store import ObjectStore

from mlops.contract.refs import Ref
from mlops.contract.section import SpecError
from mlops.contract.sections.train import node_range
from mlops.contract.step import Failure, failure_key
from mlops_provider.committed import lacking, read_committed, read_json
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch, Outcome
from mlops_provider.launchers.kubernetes.api import JOBS, PODS, Api, ApiError, Manifest, open_api
from mlops_provider.launchers.kubernetes.follow import STUCK_SECONDS, Followed, Follower
from mlops_provider.launchers.kubernetes.manifests import RUN_KEY, SUFFIX, WHOLE, StepJob, Task
from mlops_provider.launchers.kubernetes.status import Ending
from mlops_provider.pod_spec import Pods

_GONE_SECONDS = 600.0
"""Beyond the grace period, for an earlier Job to be gone."""
_LOGIN_SECONDS = 60.0
"""A login that is refused sooner is wrong, and not old."""
_GONE_POLL_SECONDS = 1.0
_QUOTA_POLL_SECONDS = 5.0
Environment = Callable[[], Awaitable[Mapping[str, str]]]
_ON_ITS_WAY_SECONDS = 1.0
"""Seconds that a request may still take after nobody waits for it any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodTask:
    """A task instance whose step runs as a Job."""

    task: Task
    pods: Pods
    deadline_seconds: float | None = None
    """The cluster ends the step then; None: ``pods.max_hours``."""
    avoided_nodes: Sequence[str] = ()
    """On which pods are placed last."""
    team: str | None = None
    """Whose deployment it is."""
    patience_seconds: float | None = None
    """How long the Kubernetes API may be away; None: as long as the deployment says."""

    def to_json(self) -> dict[str, Any]:
        return {
            "task": asdict(self.task),
            "pods": self.pods.model_dump(mode="json"),
            "deadline_seconds": self.deadline_seconds,
            "avoided_nodes": list(self.avoided_nodes),
            "patience_seconds": self.patience_seconds,
            "team": self.team,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> PodTask:
        return cls(**{**fields, "task": Task(**fields["task"]), "pods": Pods.model_validate(fields["pods"])})

    def job(self, deployment: Deployment) -> StepJobRun:
        if self.patience_seconds is not None:
            patience = timedelta(seconds=self.patience_seconds)
            deployment = dataclasses.replace(deployment, infrastructure_patience=patience)
        return StepJobRun(deployment, self)


class StepJobRun:
    """
    Makes a step's Job, follows it and removes it, in whichever process waits for it: a task's worker, or the triggerer.

    Who waits calls :meth:`work`, or :meth:`remove` where the step is to end; then :func:`finish`.
    """

    def __init__(self, deployment: Deployment, pod_task: PodTask) -> None:
        self.deployment = deployment
        self._task, self._pods, self._avoided_nodes = pod_task.task, pod_task.pods, pod_task.avoided_nodes
        self._deadline_seconds = min(pod_task.deadline_seconds or float("inf"), self._pods.max_hours * 3600)
        self._begun_at = time.monotonic()
        self._cancelled = self._creating = False

    def end(self) -> None:
        """Make no Job any more."""
        self._cancelled = True

    async def work(
        self, launch: Launch, on_line: Callable[[str], None], environment: Environment | None = None
    ) -> Ending:
        """
        Start the Job, or find it, and follow it to its end.

        :param environment: gives the launch's, where it has none: asked only when a Job is made
        :raises SpecError: where it cannot be made of the settings
        """
        self._begun_at = time.monotonic()
        ending = None
        while ending is None:
            followed = await self.start(launch, on_line, environment)
            ending = await follow(self.deployment, followed, on_line)
        return ending

    async def start(
        self, launch: Launch, on_line: Callable[[str], None], environment: Environment | None = None
    ) -> Followed:
        """:raises SpecError: where it cannot be made of the settings"""
        async with _api(self.deployment) as api:
            job = await self._find(api, launch)
            if job is not None:
                on_line(f"[kubernetes] found Job {self._task.job_name}: following it")
            else:
                if environment is not None:
                    launch = dataclasses.replace(launch, environment=await environment())
                job = await self._start(api, launch, on_line)
        return Followed(
            name=self._task.job_name,
            uid=job["metadata"]["uid"],
            place=launch.input.place,
            fewest=node_range(launch.nodes)[0],
            start_timeout_seconds=self._pods.start_timeout_seconds,
        )

    async def _find(self, api: Api, launch: Launch) -> Manifest | None:
        """A Job of this work that has all it needs. It is followed also where settings or secrets are gone by now."""
        job = await api.get(JOBS, self._task.job_name)
        if job is None or job["metadata"].get("deletionTimestamp"):
            return None
        annotations = job["metadata"].get("annotations", {})
        return job if WHOLE in annotations and annotations.get(RUN_KEY) == launch.input.run.run_key else None

    async def remove(self) -> None:
        """The Job, with all that belongs to it; waits for one that is just being made."""
        async with _api(self.deployment) as api:
            while True:
                being_made = self._creating
                job = await api.get(JOBS, self._task.job_name)
                if job is not None:
                    await api.delete(JOBS, self._task.job_name, job["metadata"]["uid"])
                if job is not None or not being_made:
                    return
                self._creating = False
                await asyncio.sleep(_ON_ITS_WAY_SECONDS)

    async def _start(self, api: Api, launch: Launch, say: Callable[[str], None]) -> Manifest:
        step_job = self._step_job(launch)
        run_key = launch.input.run.run_key
        while True:
            if self._cancelled:
                raise RuntimeError(f"asked to end before Job {step_job.name} was started")
            self._creating = True
            try:
                job = await self._create(api, step_job.job(), say)
            except ApiError as error:
                raise _refusal(error) from error
            if job is not None and self._cancelled:
                await api.delete(JOBS, step_job.name, job["metadata"]["uid"])
            elif job is not None:
                say(f"[kubernetes] started Job {step_job.name} in namespace {api.namespace}")
                break
            job = await api.get(JOBS, step_job.name)
            if job is None:
                continue
            suffix = job["metadata"].get("annotations", {}).get(SUFFIX)
            if job["metadata"].get("deletionTimestamp"):
                await self._wait_until_gone(api, job, say)
            elif job["metadata"].get("annotations", {}).get(RUN_KEY) != run_key:
                say(f"[kubernetes] Job {step_job.name} does other work (settings, code or input have changed): removed")
                await api.delete(JOBS, step_job.name, job["metadata"]["uid"])
            else:
                say(f"[kubernetes] found Job {step_job.name}, half made: going on with it")
                step_job = dataclasses.replace(step_job, suffix=suffix)
                break
        uid = job["metadata"]["uid"]
        go: dict[str, Any] = {"metadata": {"annotations": {WHOLE: "true"}}}
        if not self._pods.queue:
            go["spec"] = {"suspend": False}
        try:
            for manifest in step_job.owned(uid):
                await self._create(api, manifest, say)
            await api.patch(JOBS, step_job.name, go)
        except ApiError as error:
            await api.delete(JOBS, step_job.name, uid)
            raise _refusal(error) from error
        return job

    async def _create(self, api: Api, manifest: Manifest, say: Callable[[str], None]) -> Manifest | None:
        """
        Make an object; where the namespace's ResourceQuota has no room for it, wait within
        ``pods.start_timeout_seconds`` for others to end: a try of the task would be used for nothing.

        :return: None where there is one of that name already
        """
        deadline = time.monotonic() + self._pods.start_timeout_seconds
        is_told = False
        while True:
            try:
                return await api.create(manifest)
            except ApiError as error:
                if not error.is_over_quota or self._cancelled or time.monotonic() > deadline:
                    raise
                if not is_told:
                    say(
                        f"[kubernetes] waiting for room in a quota of namespace {api.namespace}, up to "
                        f"{self._pods.start_timeout_seconds:.0f} s (pods.start_timeout_seconds): {error.message}"
                    )
                is_told = True
            await asyncio.sleep(_QUOTA_POLL_SECONDS)

    async def _wait_until_gone(self, api: Api, job: Manifest, say: Callable[[str], None]) -> None:
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        say(f"[kubernetes] waiting for an earlier Job {name} to be gone")
        patience = time.monotonic() + STUCK_SECONDS + self._pods.grace_seconds
        deadline = time.monotonic() + _GONE_SECONDS + self._pods.grace_seconds
        while (found := await api.get(JOBS, name)) is not None and found["metadata"]["uid"] == uid:
            if time.monotonic() > patience:
                # A pod on a node that is gone does not end. Its Job's name is free without it.
                await api.delete(JOBS, name, uid, at_once=True)
            if time.monotonic() > deadline:
                pods = (await api.list(PODS, labelSelector=f"batch.kubernetes.io/controller-uid={uid}"))["items"]
                left = ", ".join(f"{pod['metadata']['name']} on {pod['spec'].get('nodeName')}" for pod in pods)
                raise TimeoutError(f"an earlier Job {name} does not end; its pods: {left}. Is their node alive?")
            if self._cancelled:
                return
            await asyncio.sleep(_GONE_POLL_SECONDS)

    def _step_job(self, launch: Launch) -> StepJob:
        image = self._pods.image or self.deployment.images.get(launch.runtime)
        if not image:
            raise SpecError(
                f"there is no image for the {launch.runtime} runtime: set [mlops] {launch.runtime}_image in Airflow's "
                "configuration, or pods.image"
            )
        return StepJob(
            task=self._task,
            launch=launch,
            pods=self._pods,
            image=image,
            namespace=self.deployment.kubernetes_namespace,
            store=self.deployment.store,
            tracking_uri=self.deployment.tracking_uri,
            deadline_seconds=self._deadline_seconds - (time.monotonic() - self._begun_at),
            template=load_template(self.deployment.home, self._pods.template),
            avoided_nodes=self._avoided_nodes,
            suffix=secrets.token_hex(3),
        )


def _refusal(error: ApiError) -> ApiError | SpecError:
    if error.status not in (400, 413, 422):
        return error
    return SpecError(f"Kubernetes does not take the Job, look at pods and its template: {error}")


def _api(deployment: Deployment) -> AbstractAsyncContextManager[Api]:
    patience = deployment.infrastructure_patience.total_seconds()
    return open_api(deployment.kubernetes_connection, deployment.kubernetes_namespace, patience)


async def follow(deployment: Deployment, followed: Followed, on_line: Callable[[str], None]) -> Ending | None:
    """A Job, to its end; None where it was removed to be made anew."""
    while True:
        opened = time.monotonic()
        try:
            async with _api(deployment) as api:
                return await Follower(api, followed, on_line).run()
        except ApiError as error:
            # Some logins, of cloud providers, hold for minutes.
            if error.status != 401 or time.monotonic() - opened < _LOGIN_SECONDS:
                raise


def finish(deployment: Deployment, ending: Ending) -> Outcome:
    """Read what came out of a Job, then remove it."""
    return asyncio.run(_finish(deployment, store_of(deployment), ending))


async def _finish(deployment: Deployment, store: ObjectStore, ending: Ending) -> Outcome:
    result = await read_result_of(store, ending)
    # Not before the outcome is known: a retry would otherwise do the work again.
    await discard(deployment, ending)
    return Outcome(result=result, status=ending.status, failed_nodes=ending.failed_nodes)


async def read_result_of(store: ObjectStore, ending: Ending) -> Ref | Failure | None:
    """
    What came out of a Job: what is committed at its place counts, whoever committed it and however the Job ended.

    Unless the Job failed and something of it is gone from the store: it was committed long ago, and not made again.
    """
    ref = await read_committed(store, ending.place)
    if ref is not None and (ending.succeeded or not await lacking(store, ref)):
        return ref
    failure = await read_json(store, failure_key(ending.place, ending.uid)) or ending.failure
    return Failure(**failure) if failure else None


async def discard(deployment: Deployment, ending: Ending) -> None:
    """Remove a Job that has ended."""
    async with _api(deployment) as api:
        await api.delete(JOBS, ending.job, ending.uid)


def load_template(home: Path, path: str | None) -> Mapping[str, Any]:
    """:raises SpecError: where the file is missing, or holds no pod"""
    if path is None:
        return {}
    try:
        template = yaml.safe_load((home / path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SpecError(f"pods.template {path}: {error}") from error
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        raise SpecError(f"pods.template {path}: not a pod's manifest, it has no spec")
    return {name: template[name] for name in ("metadata", "spec") if name in template}
