"""A Job and its pods as the API tells of them, over whatever it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from mlops_provider.launchers.kubernetes.api import JOBS, PODS, Api, ApiError, Kind, Manifest, UnreachableError
from mlops_provider.launchers.kubernetes.status import is_over


class Viewer(Protocol):
    """Who is told of what changes."""

    def begun(self, job: Manifest) -> None:
        """The Job is seen for the first time."""

    def gone(self, uid: str, pod: Manifest) -> None:
        """A pod was removed that was not over."""

    def changed(self) -> None:
        """The Job or its pods may be new."""

    def returned(self, seconds: float) -> None:
        """The API answers again, after so many seconds. What nodes did meanwhile they have yet to tell it."""


class JobView:
    """
    :param uid: of the Job; another one of its name is not seen
    :param say: is told in words when the API is away, and when it is back
    """

    def __init__(self, api: Api, name: str, uid: str, viewer: Viewer, say: Callable[[str], None]) -> None:
        self._api, self._uid, self._viewer, self._say = api, uid, viewer, say
        self._of_job = {"fieldSelector": f"metadata.name={name}"}
        self._of_pods = {"labelSelector": f"batch.kubernetes.io/controller-uid={uid}"}
        self._troubles: dict[Kind, str] = {}
        """What cannot be asked for now, and why."""
        self._troubled_since = 0.0
        self._num_told = 0
        self._seen: set[Kind] = set()
        self.job: Manifest | None = None
        """None where it is gone, or not seen yet."""
        self.pods: dict[str, Manifest] = {}
        """By uid; with those that were removed when they were over."""

    @property
    def is_whole(self) -> bool:
        """Whether the Job and its pods have been seen."""
        return self._seen == {JOBS, PODS}

    async def watch_job(self) -> None:
        async for jobs in self._api.watch(JOBS, partial(self._on_trouble, JOBS), **self._of_job):
            self._see_job(jobs)

    async def watch_pods(self) -> None:
        async for pods in self._api.watch(PODS, partial(self._on_trouble, PODS), **self._of_pods):
            self._see_pods(pods)

    async def refresh(self) -> bool:
        """
        Ask once, before something is given up: a watch knows old things only where its server is away, and that of the
        Job may be behind that of its pods.

        :return: whether there was an answer, and nothing newer came meanwhile
        """
        num_told, asked = self._num_told, JOBS
        try:
            jobs = (await self._api.list(JOBS, once=True, **self._of_job))["items"]
            asked = PODS
            pods = (await self._api.list(PODS, once=True, **self._of_pods))["items"]
        except (ApiError, UnreachableError) as error:
            if isinstance(error, ApiError) and not error.may_pass:
                raise
            self._on_trouble(asked, error)
            return False
        if self._num_told != num_told:
            return False
        self._see_job({job["metadata"]["uid"]: job for job in jobs})
        self._see_pods({pod["metadata"]["uid"]: pod for pod in pods})
        return True

    def _see_job(self, jobs: Mapping[str, Manifest]) -> None:
        self.job = jobs.get(self._uid)
        if self.job is not None and JOBS not in self._seen:
            self._viewer.begun(self.job)
        self._answered(JOBS)

    def _see_pods(self, pods: Mapping[str, Manifest]) -> None:
        # One that is removed before the Job's end (evicted, say) has still something to tell.
        self.pods.update(pods)
        gone = [uid for uid in self.pods if uid not in pods]
        for uid in gone:
            if not is_over(self.pods[uid]):
                self._viewer.gone(uid, self.pods.pop(uid))
        self._answered(PODS)

    def _answered(self, kind: Kind) -> None:
        self._seen.add(kind)
        self._num_told += 1
        if (why := self._troubles.pop(kind, None)) is not None and not self._troubles:
            self._say(f"the Kubernetes API answers again (it did not: {why})")
            self._viewer.returned(time.monotonic() - self._troubled_since)
        self._viewer.changed()

    def _on_trouble(self, kind: Kind, error: Exception) -> None:
        if not self._troubles:
            self._say(f"the Kubernetes API is in trouble, waiting: {error}")
            self._troubled_since = time.monotonic()
        self._troubles.setdefault(kind, str(error))
