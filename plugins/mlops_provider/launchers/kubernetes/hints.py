"""Why a Job waits, as far as only events and the queue tell it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mlops_provider.launchers.kubernetes.api import EVENTS, Api, ApiError, Manifest, UnreachableError
from mlops_provider.launchers.kubernetes.manifests import QUEUE
from mlops_provider.launchers.kubernetes.status import has_started

_MAX_PODS: Final = 3


class Hints:
    """
    :param uid: of the Job
    :param say: is told in words what may not be read; it is not asked for again
    """

    def __init__(self, api: Api, uid: str, say: Callable[[str], None]) -> None:
        self._api, self._uid, self._say = api, uid, say
        self._may_read_events = self._may_read_queue = True
        self.found: dict[str, str] = {}
        """By a pod's name, or ``""`` for the Job."""

    async def look(self, job: Manifest, pods: Mapping[str, Manifest]) -> None:
        """:param pods: of the Job, by uid"""
        await self._look_at_events(pods)
        await self._look_at_queue(job)

    async def _look_at_events(self, pods: Mapping[str, Manifest]) -> None:
        """What keeps a pod from starting, or the Job from making pods, is often in an event only."""
        if not self._may_read_events:
            return
        about = {"": self._uid}
        for uid, pod in pods.items():
            if not has_started(pod) and len(about) <= _MAX_PODS:
                about[pod["metadata"]["name"]] = uid
        for name, uid in about.items():
            try:
                selector = f"involvedObject.uid={uid},type=Warning"
                found = await self._api.list(EVENTS, once=True, fieldSelector=selector)
            except (ApiError, UnreachableError) as error:
                if isinstance(error, ApiError) and not error.may_pass:
                    self._may_read_events = False
                    self._say(f"events cannot be read, so that not all reasons for a wait are known: {error}")
                return
            if items := found["items"]:
                newest = max(items, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
                self.found[name] = f"{newest.get('reason')}: {newest.get('message')}"

    async def _look_at_queue(self, job: Manifest) -> None:
        queue = job["metadata"].get("labels", {}).get(QUEUE)
        if not self._may_read_queue or queue is None or not job["spec"].get("suspend"):
            return
        try:
            ahead = await self._api.workloads_ahead(queue, self._uid)
        except (ApiError, UnreachableError) as error:
            # 503: so the API answers for Kueue's server where that is away, perhaps for good.
            if isinstance(error, ApiError) and (not error.may_pass or error.status == 503):
                self._may_read_queue = False
                self._say(f"the place in the queue cannot be read: {error}")
            return
        if ahead is not None:
            self.found[""] = f"{ahead} ahead of it" if ahead else "the next one"
