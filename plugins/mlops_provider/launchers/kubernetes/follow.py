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

from mlops_provider.launchers.kubernetes.api import JOBS, Api, ApiError, Manifest, UnreachableError
from mlops_provider.launchers.kubernetes.evictions import Evictions
from mlops_provider.launchers.kubernetes.hints import Hints
from mlops_provider.launchers.kubernetes.logs import PodLog
from mlops_provider.launchers.kubernetes.manifests import LOGGED_UNTIL
from mlops_provider.launchers.kubernetes.status import (
    DECIDED,
    Ending,
    condition,
    goes_on,
    has_ended,
    has_failed,
    has_started,
    has_succeeded,
    how_it_died,
    index_of,
    is_over,
    is_own_failure,
    is_running,
    is_the_last_word,
    last_words,
    node_of,
    other_containers,
    waiting_for,
    was_taken_away,
)
from mlops_provider.launchers.kubernetes.view import JobView

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
Pods of one Job that may be taken away, or evicted for what they take. The cluster waits before it replaces one, 10 s at
first and twice as long each time, up to ten minutes, also for those that do not count as failures
(kubernetes/kubernetes#130881). A new Job begins anew.
"""
REPORT_SECONDS: Final = 60.0
"""What nodes may take, after the API was away, to tell it what their pods have done."""
STUCK_SECONDS: Final = 60.0
"""
After the grace period: a pod that has not ended then is on a node that is gone, and is not replaced while it is there.
"""
_LOG_DELAY: Final = timedelta(seconds=5)

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
        self._changed = asyncio.Event()
        self._view = JobView(api, followed.name, followed.uid, self, self._say)
        self._logs: dict[str, PodLog] = {}
        self._log_tasks: dict[str, asyncio.Task[None]] = {}
        self._over: dict[str, asyncio.Event] = {}
        """Set when the step's container of a pod has ended, or the pod is gone; of the pods whose logs are followed."""
        self._hints = Hints(api, followed.uid, self._say)
        self._waiting: str | None = None
        self._waited_for: set[str] = set()
        self._told: set[str] = set()
        self._taken: set[str] = set()
        self._evictions = Evictions()
        self._leaving: dict[str, float] = {}
        """Since when a pod is asked to end."""
        self._renewed_at: float | None = None
        self._grace_seconds = 30.0
        self._since: str | None = None
        self._waiting_since: float | None = None
        self._decided: tuple[str, float] | None = None
        """What the Job was found to have come to, and since when."""
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
            asyncio.create_task(self._view.watch_job(), name=f"job {name}"),
            asyncio.create_task(self._view.watch_pods(), name=f"pods {name}"),
        ]
        try:
            while (ending := await self._ending_for_sure()) is None and not self._is_removed():
                # Not wait_for: up to Python 3.11 it passes over a cancellation that comes with the change.
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_SECONDS):
                        await self._changed.wait()
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
        stuck = self._stuck()
        return is_late or all(is_over(pod) or uid in stuck for uid, pod in self._view.pods.items())

    def _stuck(self) -> dict[str, Manifest]:
        """Pods that do not end when they are asked to."""
        late = time.monotonic() - self._grace_seconds - STUCK_SECONDS
        return {
            uid: pod for uid, pod in self._view.pods.items() if self._leaving.get(uid, late) < late and not is_over(pod)
        }

    async def _renew(self, job: Manifest) -> None:
        """Remove a Job that the cluster would keep from going on for long."""
        if job["spec"].get("suspend"):
            # By Kueue, which starts all of them again together.
            self._taken.clear()
            self._evictions = Evictions()
            return
        if self._why_anew(job) is None or not await self._view.refresh():
            return
        if (job_now := self._view.job) is None or (why := self._why_anew(job_now)) is None:
            return
        self._say(f"Job {self._followed.name} is made anew: {why}")
        await self._api.delete(JOBS, self._followed.name, self._followed.uid, at_once=bool(self._stuck()))
        self._renewed_at = time.monotonic()

    def _why_anew(self, job: Manifest) -> str | None:
        if self._renewed_at is not None or not goes_on(job):
            return None
        if stuck := self._stuck():
            places = ", ".join(f"{pod['metadata']['name']} on {node_of(pod)}" for pod in stuck.values())
            return f"{places} does not end, its node may be gone"
        if len(self._taken) >= MOST_TAKEN and self._no_room(job) is None:
            return f"{len(self._taken)} of its pods were taken away, and the cluster waits longer each time"
        return None

    def begun(self, job: Manifest) -> None:
        pod = job["spec"]["template"]["spec"]
        self._grace_seconds = pod.get("terminationGracePeriodSeconds", self._grace_seconds)
        self._since = job["metadata"].get("annotations", {}).get(LOGGED_UNTIL)

    def gone(self, uid: str, pod: Manifest) -> None:
        self._tell(uid, pod)
        self._leaving.pop(uid, None)

    def changed(self) -> None:
        for uid, over in self._over.items():
            if uid not in self._view.pods or has_ended(self._view.pods[uid]):
                over.set()
        self._changed.set()

    def returned(self, seconds: float) -> None:
        """What could not be seen does not count; after long, nor does what nodes take to tell it."""
        late = seconds + REPORT_SECONDS if seconds > REPORT_SECONDS else seconds
        now = time.monotonic()
        self._leaving = {uid: min(now, since + late) for uid, since in self._leaving.items()}
        if self._waiting_since is not None:
            self._waiting_since = min(now, self._waiting_since + late)
        if self._decided is not None:
            kind, since = self._decided
            self._decided = kind, min(now, since + late)

    async def _look(self) -> None:
        job = self._view.job  # while this waits for an answer, the watch may find that it is gone
        if job is None or not self._view.is_whole:
            return
        for uid, pod in self._view.pods.items():
            if has_started(pod) and uid not in self._logs:
                self._follow_log(uid, pod)
            if is_over(pod):
                self._tell(uid, pod)
                self._leaving.pop(uid, None)
            elif pod["metadata"].get("deletionTimestamp"):
                self._leaving.setdefault(uid, time.monotonic())
        await self._renew(job)
        now = time.monotonic()
        waiting = waiting_for(job, self._view.pods.values(), self._hints.found)
        if waiting is None:
            self._hints.found.clear()
        elif now >= self._next_hint:
            self._next_hint = now + HINT_SECONDS
            await self._hints.look(job, self._view.pods)
            waiting = waiting_for(job, self._view.pods.values(), self._hints.found)
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
        return [pod for pod in self._view.pods.values() if is_running(pod)]

    def _tell(self, uid: str, pod: Manifest) -> None:
        died = how_it_died(pod)
        if died is not None and uid not in self._told:
            self._told.add(uid)
            if was_taken_away(pod):
                self._taken.add(uid)
            self._evictions.note(pod, died)
            self._say(died)

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

    async def _ending_for_sure(self) -> Ending | None:
        ending = self._ending()
        if ending is None or ending.is_over:
            return ending
        return self._ending() if await self._view.refresh() else None

    def _ending(self) -> Ending | None:
        if not self._view.is_whole or self._renewed_at is not None:
            return None
        job, followed = self._view.job, self._followed
        if job is None or job["metadata"].get("deletionTimestamp"):
            return self._ended(f"Job {followed.name} was deleted", is_over=True)
        if condition(job, "Complete"):
            return self._ended(f"Job {followed.name} is complete", succeeded=True, is_over=True)
        if failed := condition(job, "Failed"):
            died = [said for pod in self._view.pods.values() if (said := how_it_died(pod))]
            words = [f"Job {followed.name} failed ({failed.get('reason')}: {failed.get('message')})", *died[-8:]]
            return self._ended("; ".join(words), is_over=True)
        if met := condition(job, DECIDED[0]) or condition(job, DECIDED[1]) or self._decision(job):
            return self._at_last(met)
        self._decided = None
        if (no_room := self._no_room(job)) is not None:
            return self._ended(no_room)
        return self._too_late(job)

    def _decision(self, job: Manifest) -> Manifest | None:
        """What the cluster has not decided: a pod whose container has ended is not over while others of it run."""
        if any(map(has_succeeded, self._view.pods.values())):
            return {"type": DECIDED[0], "reason": "what it was to do is done"}
        for pod in self._view.pods.values():
            if (
                (others := other_containers(pod))
                and has_failed(pod)
                and (is_the_last_word(pod) or not self._works(job))
            ):
                why = (
                    f"and its pod does not end while {', '.join(others)} runs: make that a native sidecar, an init "
                    "container with restartPolicy: Always"
                )
                return {"type": DECIDED[1], "reason": how_it_died(pod), "message": why}
        return None

    def _no_room(self, job: Manifest) -> str | None:
        """Why no other pod would fare better, where nodes had not what each of several in a row took."""
        return None if self._works(job) else self._evictions.why(MOST_TAKEN)

    def _at_last(self, met: Manifest) -> Ending | None:
        """The Job waits for pods to end, of which some may lie on a node that is gone, or wait for one."""
        if self._decided is None or self._decided[0] != met["type"]:
            self._decided = met["type"], time.monotonic()
        succeeded = met["type"] == "SuccessCriteriaMet"
        patience = SUCCEEDED_SECONDS if succeeded else self._grace_seconds + FAILED_SECONDS
        if time.monotonic() - self._decided[1] < patience:
            return None
        return self._ended(
            f"Job {self._followed.name}: {met.get('reason')} {met.get('message', '')}; some of its pods do not end",
            succeeded=succeeded,
        )

    def _alive(self) -> list[Manifest]:
        return [pod for pod in self._view.pods.values() if is_running(pod) or has_succeeded(pod)]

    def _works(self, job: Manifest) -> bool:
        """Whether there are pods enough, and the first of a gang, which holds the rendezvous."""
        alive = self._alive()
        is_led = job["spec"]["completions"] == 1 or any(index_of(pod) == "0" for pod in alive)
        return len(alive) >= self._followed.fewest and is_led

    def _too_late(self, job: Manifest) -> Ending | None:
        if job["spec"].get("suspend") or self._works(job):
            self._waiting_since = None
            return None
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < self._followed.start_timeout_seconds:
            return None
        waiting = waiting_for(job, self._view.pods.values(), self._hints.found)
        fewest, seconds = self._followed.fewest, self._followed.start_timeout_seconds
        return self._ended(
            f"{max(fewest - len(self._alive()), 1)} of {fewest} pods did not come to run within {seconds:.0f} s "
            f"(pods.start_timeout_seconds): {waiting}"
        )

    def _ended(self, status: str, *, succeeded: bool = False, is_over: bool = False) -> Ending:
        return Ending(
            is_over=is_over,
            succeeded=succeeded,
            status=status,
            job=self._followed.name,
            uid=self._followed.uid,
            place=self._followed.place,
            failure=last_words(self._view.pods.values()),
            failed_nodes=[node_of(pod) for pod in self._view.pods.values() if is_own_failure(pod)],
        )

    def _follow_log(self, uid: str, pod: Manifest) -> None:
        assert self._view.job is not None
        prefix = f"[{index_of(pod)}] " if self._view.job["spec"].get("completions", 1) > 1 else ""
        log = PodLog(self._api, pod["metadata"]["name"], prefix, self._since, self._on_line)
        over = asyncio.Event()
        if has_ended(pod):
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
                await asyncio.wait([task])
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOG_END_SECONDS):
                        await self._logs[uid].finish()

    def _say(self, text: str) -> None:
        self._on_line(f"[kubernetes] {text}")
