"""Following a Job to its end: what it waits for, its pods' logs, and how it ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from mlops_provider.launchers.kubernetes.api import EVENTS, JOBS, PODS, Api, ApiError, Manifest, UnreachableError
from mlops_provider.launchers.kubernetes.logs import PodLog
from mlops_provider.launchers.kubernetes.manifests import LOGGED_UNTIL, QUEUE
from mlops_provider.launchers.kubernetes.status import (
    DECIDED,
    Ending,
    condition,
    goes_on,
    has_started,
    has_succeeded,
    how_it_died,
    index_of,
    is_over,
    is_own_failure,
    is_running,
    last_words,
    node_of,
    waiting_for,
    was_taken_away,
)

TICK_SECONDS: Final = 5.0
HINT_SECONDS: Final = 15.0
"""Between two looks at events, while something is waited for."""
NOTE_SECONDS: Final = 30.0
"""Between two notes of how far the logs were handed on."""
LOG_END_SECONDS: Final = 10.0
"""Seconds to wait for the log streams after the Job has ended."""
SUCCEEDED_SECONDS: Final = 10.0
FAILED_SECONDS: Final = 60.0
"""After the decision about a Job, and after the grace period, that its pods may take to end."""
MOST_TAKEN: Final = 3
"""
Pods of one Job that may be taken away. The cluster waits before it replaces one, 10 s at first and twice as long each
time, up to ten minutes, also for those that do not count as failures (kubernetes/kubernetes#130881). A new Job begins
anew.
"""
STUCK_SECONDS: Final = 60.0
"""
After the grace period: a pod that has not ended then is on a node that is gone, and is not replaced while it is there.
"""
_LOG_DELAY: Final = timedelta(seconds=5)
_MAX_HINTS: Final = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """A Job that was started."""

    name: str
    uid: str
    place: str
    """Place of the step that the Job runs."""
    fewest: int
    """Pods without which the gang does not work."""
    start_timeout_seconds: float


class Follower:
    """
    Hands on what a Job's pods say, and says what they wait for, once per change.

    :param on_line: called with one line of a log, or of our own
    """

    def __init__(self, api: Api, followed: Followed, on_line: Callable[[str], None]) -> None:
        self._api, self._followed, self._on_line = api, followed, on_line
        self._job: Manifest | None = None
        self._job_seen = False
        self._pods: dict[str, Manifest] = {}
        self._pods_listed = False
        self._changed = asyncio.Event()
        self._logs: dict[str, PodLog] = {}
        self._log_tasks: dict[str, asyncio.Task[None]] = {}
        self._over: dict[str, asyncio.Event] = {}
        """Set when a pod is over, for the pods whose logs are followed."""
        self._hints: dict[str, str] = {}
        self._may_read_events = self._may_read_queue = True
        self._waiting: str | None = None
        self._waited_for: set[str] = set()
        self._trouble: str | None = None
        self._told: set[str] = set()
        self._taken: set[str] = set()
        self._leaving: dict[str, float] = {}
        """Since when a pod is asked to end."""
        self._renewed_at: float | None = None
        self._grace_seconds = 30.0
        self._since: str | None = None
        self._waiting_since: float | None = None
        self._decided_at: float | None = None
        self._noted: str | None = None
        self._next_hint = time.monotonic() + HINT_SECONDS
        self._next_note = time.monotonic() + NOTE_SECONDS

    async def run(self) -> Ending | None:
        """
        Until the Job has ended, or is gone, or its pods do not come to run in time.

        :return: None where the Job was removed to be made anew
        """
        name = self._followed.name
        watches = [
            asyncio.create_task(self._watch_job(), name=f"job {name}"),
            asyncio.create_task(self._watch_pods(), name=f"pods {name}"),
        ]
        try:
            while (ending := self._ending()) is None and not self._is_removed():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), TICK_SECONDS)
                self._changed.clear()
                for watch in watches:
                    if watch.done():
                        if self._renewed_at is not None:
                            return None
                        watch.result()
                await self._look()
            await self._finish_logs()
            if ending is not None and not ending.is_over:
                # It has nothing more to say, and the task that is told may be given up before it can remove it.
                await self._api.delete(JOBS, self._followed.name, self._followed.uid)
            return ending
        finally:
            tasks = [*watches, *self._log_tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _is_removed(self) -> bool:
        """Whether what is left of a Job that is made anew has nothing more to say."""
        if self._renewed_at is None:
            return False
        is_late = time.monotonic() > self._renewed_at + self._grace_seconds + STUCK_SECONDS
        return is_late or all(is_over(pod) or uid in self._stuck() for uid, pod in self._pods.items())

    def _stuck(self) -> dict[str, Manifest]:
        """Pods that do not end when they are asked to."""
        patience = self._grace_seconds + STUCK_SECONDS
        return {uid: self._pods[uid] for uid, since in self._leaving.items() if time.monotonic() > since + patience}

    async def _renew(self, job: Manifest) -> None:
        """Remove a Job that the cluster would keep from going on for long."""
        if job["spec"].get("suspend"):
            self._taken.clear()  # by Kueue, which starts all of them again together
            return
        if self._renewed_at is not None or not goes_on(job):
            return
        if stuck := self._stuck():
            places = ", ".join(f"{pod['metadata']['name']} on {node_of(pod)}" for pod in stuck.values())
            why = f"{places} does not end, its node may be gone"
        elif len(self._taken) >= MOST_TAKEN:
            why = f"{len(self._taken)} of its pods were taken away, and the cluster waits longer each time"
        else:
            return
        # The watch of the Job may be behind that of its pods.
        now = await self._api.get(JOBS, self._followed.name)
        if now is None or now["metadata"]["uid"] != self._followed.uid or not goes_on(now):
            return
        self._say(f"Job {self._followed.name} is made anew: {why}")
        await self._api.delete(JOBS, self._followed.name, self._followed.uid, at_once=bool(stuck))
        self._renewed_at = time.monotonic()

    async def _watch_job(self) -> None:
        async for jobs in self._api.watch(JOBS, self._on_trouble, fieldSelector=f"metadata.name={self._followed.name}"):
            self._job = jobs.get(self._followed.uid)
            if self._job is not None and not self._job_seen:
                pod = self._job["spec"]["template"]["spec"]
                self._grace_seconds = pod.get("terminationGracePeriodSeconds", self._grace_seconds)
                self._since = self._job["metadata"].get("annotations", {}).get(LOGGED_UNTIL)
            self._job_seen = True
            self._answered()

    async def _watch_pods(self) -> None:
        selector = f"batch.kubernetes.io/controller-uid={self._followed.uid}"
        async for pods in self._api.watch(PODS, self._on_trouble, labelSelector=selector):
            # One that is removed before the Job's end (evicted, say) has still something to tell.
            self._pods.update(pods)
            gone = [key for key in self._pods if key not in pods]
            for key in gone:
                if not is_over(self._pods[key]):
                    self._tell(key, self._pods[key])
                    del self._pods[key]
                    self._leaving.pop(key, None)
            for uid, over in self._over.items():
                if uid not in self._pods or is_over(self._pods[uid]):
                    over.set()
            self._pods_listed = True
            self._answered()

    def _answered(self) -> None:
        if self._trouble is not None:
            self._say(f"the Kubernetes API answers again (it did not: {self._trouble})")
            self._trouble = None
        self._changed.set()

    def _on_trouble(self, error: Exception) -> None:
        if self._trouble is None:
            self._say(f"the Kubernetes API is in trouble, waiting: {error}")
            self._trouble = str(error)

    async def _look(self) -> None:
        job = self._job  # while this waits for an answer, the watch may find that it is gone
        if job is None or not self._pods_listed:
            return
        for uid, pod in self._pods.items():
            if has_started(pod) and uid not in self._logs:
                self._follow_log(uid, pod)
            if is_over(pod):
                self._tell(uid, pod)
                self._leaving.pop(uid, None)
            elif pod["metadata"].get("deletionTimestamp"):
                self._leaving.setdefault(uid, time.monotonic())
        await self._renew(job)
        now = time.monotonic()
        waiting = waiting_for(job, self._pods.values(), self._hints)
        if waiting is None:
            self._hints.clear()
        elif now >= self._next_hint:
            self._next_hint = now + HINT_SECONDS
            await self._look_at_events()
            await self._look_at_queue(job)
            waiting = waiting_for(job, self._pods.values(), self._hints)
        if waiting != self._waiting and not condition(job, "Complete"):
            self._waiting = waiting
            if waiting is None:
                self._waited_for.clear()
                if nodes := sorted({node_of(pod) for pod in self._running()}):
                    self._say(f"running on {', '.join(nodes)}")
            elif waiting not in self._waited_for:  # some states alternate
                self._waited_for.add(waiting)
                self._say(waiting)
        if now >= self._next_note:
            self._next_note = now + NOTE_SECONDS
            await self._note()

    def _running(self) -> list[Manifest]:
        return [pod for pod in self._pods.values() if is_running(pod)]

    def _tell(self, uid: str, pod: Manifest) -> None:
        died = how_it_died(pod)
        if died is not None and uid not in self._told:
            self._told.add(uid)
            if was_taken_away(pod):
                self._taken.add(uid)
            self._say(died)

    async def _look_at_events(self) -> None:
        """What keeps a pod from starting, or the Job from making pods, is often in an event only."""
        if not self._may_read_events:
            return
        about = {"": self._followed.uid}
        for uid, pod in self._pods.items():
            if not has_started(pod) and len(about) <= _MAX_HINTS:
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
                self._hints[name] = f"{newest.get('reason')}: {newest.get('message')}"

    async def _look_at_queue(self, job: Manifest) -> None:
        queue = job["metadata"].get("labels", {}).get(QUEUE)
        if not self._may_read_queue or queue is None or not job["spec"].get("suspend"):
            return
        try:
            ahead = await self._api.workloads_ahead(queue, self._followed.uid)
        except (ApiError, UnreachableError) as error:
            # 503: so the API answers for Kueue's server where that is away, perhaps for good.
            if isinstance(error, ApiError) and (not error.may_pass or error.status == 503):
                self._may_read_queue = False
                self._say(f"the place in the queue cannot be read: {error}")
            return
        if ahead is not None:
            self._hints[""] = f"{ahead} ahead of it" if ahead else "the next one"

    async def _note(self) -> None:
        """How far the logs were handed on: another follower goes on there."""
        newest = [log.newest for log in self._logs.values() if log.newest is not None]
        if not newest or any(log.is_broken for log in self._logs.values()):
            return
        until = f"{max(newest) - _LOG_DELAY:%Y-%m-%dT%H:%M:%SZ}"
        if until == self._noted:
            return
        note = {"metadata": {"annotations": {LOGGED_UNTIL: until}}}
        with suppress(ApiError, UnreachableError):  # then lines are repeated, or the next note says it
            await self._api.patch(JOBS, self._followed.name, note, once=True)
            self._noted = until

    def _ending(self) -> Ending | None:
        if not (self._job_seen and self._pods_listed) or self._renewed_at is not None:
            return None
        job, followed = self._job, self._followed
        if job is None or job["metadata"].get("deletionTimestamp"):
            return self._ended(f"Job {followed.name} was deleted", is_over=True)
        if condition(job, "Complete"):
            return self._ended(f"Job {followed.name} is complete", succeeded=True, is_over=True)
        if failed := condition(job, "Failed"):
            died = [said for pod in self._pods.values() if (said := how_it_died(pod))]
            words = [f"Job {followed.name} failed ({failed.get('reason')}: {failed.get('message')})", *died[-8:]]
            return self._ended("; ".join(words), is_over=True)
        if met := condition(job, DECIDED[0]) or condition(job, DECIDED[1]):
            return self._decided(met)
        if any(map(has_succeeded, self._pods.values())):
            return self._decided({"type": DECIDED[0], "reason": "what it was to do is done"})
        return self._too_late(job)

    def _decided(self, met: Manifest) -> Ending | None:
        """The Job waits for pods to end, of which some may lie on a node that is gone, or wait for one."""
        self._decided_at = self._decided_at or time.monotonic()
        succeeded = met["type"] == "SuccessCriteriaMet"
        patience = SUCCEEDED_SECONDS if succeeded else self._grace_seconds + FAILED_SECONDS
        if time.monotonic() - self._decided_at < patience:
            return None
        return self._ended(
            f"Job {self._followed.name}: {met.get('reason')} {met.get('message', '')}; some of its pods do not end",
            succeeded=succeeded,
        )

    def _too_late(self, job: Manifest) -> Ending | None:
        alive = [pod for pod in self._pods.values() if is_running(pod) or has_succeeded(pod)]
        # The first of a gang holds the rendezvous.
        is_led = job["spec"]["completions"] == 1 or any(index_of(pod) == "0" for pod in alive)
        if job["spec"].get("suspend") or (len(alive) >= self._followed.fewest and is_led):
            self._waiting_since = None
            return None
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < self._followed.start_timeout_seconds:
            return None
        waiting = waiting_for(job, self._pods.values(), self._hints)
        return self._ended(
            f"{max(self._followed.fewest - len(alive), 1)} of {self._followed.fewest} pods did not come to run within "
            f"{self._followed.start_timeout_seconds:.0f} s (pods.start_timeout_seconds): {waiting}"
        )

    def _ended(self, status: str, *, succeeded: bool = False, is_over: bool = False) -> Ending:
        return Ending(
            is_over=is_over,
            succeeded=succeeded,
            status=status,
            job=self._followed.name,
            uid=self._followed.uid,
            place=self._followed.place,
            failure=last_words(self._pods.values()),
            failed_nodes=[node_of(pod) for pod in self._pods.values() if is_own_failure(pod)],
        )

    def _follow_log(self, uid: str, pod: Manifest) -> None:
        assert self._job is not None
        prefix = f"[{index_of(pod)}] " if self._job["spec"].get("completions", 1) > 1 else ""
        log = PodLog(self._api, pod["metadata"]["name"], prefix, self._since, self._on_line)
        over = asyncio.Event()
        if is_over(pod):
            over.set()
        self._logs[uid], self._over[uid] = log, over
        self._log_tasks[uid] = asyncio.create_task(log.follow(over))

    async def _finish_logs(self) -> None:
        """The last lines are those that matter most."""
        if not self._log_tasks:
            return
        await asyncio.wait(self._log_tasks.values(), timeout=LOG_END_SECONDS)
        for uid, task in self._log_tasks.items():
            if not task.done():
                task.cancel()
                with suppress(TimeoutError, asyncio.CancelledError):
                    await task
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._logs[uid].finish(), LOG_END_SECONDS)

    def _say(self, text: str) -> None:
        self._on_line(f"[kubernetes] {text}")
