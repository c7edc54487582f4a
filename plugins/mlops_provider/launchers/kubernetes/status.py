"""What a Job and its pods tell, in sentences. Pure functions over the API's JSON."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self

from mlops.contract.step import FAILED, INTERRUPTED, Failure
from mlops_provider.launchers.kubernetes.api import Manifest
from mlops_provider.launchers.kubernetes.manifests import CONTAINER, QUEUE

_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff")
_SIGNALS = {number.value: number.name for number in signal.Signals}
_ON_THE_WAY = ("ContainerCreating", "PodInitializing")
DECIDED = ("SuccessCriteriaMet", "FailureTarget")
"""Conditions of a Job whose pods have only to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a Job ended. JSON in an event."""

    succeeded: bool
    status: str
    """For people."""
    job: str
    uid: str
    """Uid of the Job."""
    place: str
    """Place of the step."""
    is_over: bool = True
    """Whether the cluster is done with the Job, or it was given up."""
    failure: Mapping[str, Any] | None = None
    """Last words of the first pod to fail that has left some, without details; else those of the last pod to end."""
    failed_nodes: Sequence[str] = ()
    """One name for each pod that failed by itself."""

    def to_event(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Self:
        return cls(**event)


def condition(thing: Manifest, kind: str) -> Manifest | None:
    """A condition that holds."""
    found = (c for c in thing.get("status", {}).get("conditions") or () if c["type"] == kind and c["status"] == "True")
    return next(found, None)


def container_state(pod: Manifest) -> Manifest:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return next((status.get("state") or {} for status in statuses if status["name"] == CONTAINER), {})


def _terminated(pod: Manifest) -> Manifest:
    """How the step's container has ended; empty where it has not."""
    ended: Manifest = container_state(pod).get("terminated") or {}
    return ended


def has_started(pod: Manifest) -> bool:
    """Whether there is a log to read."""
    return any(kind in container_state(pod) for kind in ("running", "terminated"))


def is_running(pod: Manifest) -> bool:
    return "running" in container_state(pod) and not pod["metadata"].get("deletionTimestamp")


def has_ended(pod: Manifest) -> bool:
    """Whether the step's container has: a pod is over when all of its containers have."""
    return "terminated" in container_state(pod) or is_over(pod)


def has_succeeded(pod: Manifest) -> bool:
    """Whether the step's container has."""
    ended = _terminated(pod)
    return bool(pod.get("status", {}).get("phase") == "Succeeded" or ended.get("exitCode") == 0)


def has_failed(pod: Manifest) -> bool:
    """Whether the step's container has, without being asked to end."""
    ended = _terminated(pod)
    return bool(ended.get("exitCode")) and not pod["metadata"].get("deletionTimestamp")


def is_the_last_word(pod: Manifest) -> bool:
    """Whether the step's container has said what failed: no other pod can mend it."""
    return bool(_terminated(pod).get("exitCode") == FAILED)


def other_containers(pod: Manifest) -> list[str]:
    """Names of those that run beside the step's."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return [each["name"] for each in statuses if each["name"] != CONTAINER and "running" in (each.get("state") or {})]


def is_over(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def node_of(pod: Manifest) -> str:
    name: str = pod["spec"].get("nodeName", "")
    return name


def waiting_for(job: Manifest, pods: Iterable[Manifest], hints: Mapping[str, str]) -> str | None:
    """
    What stands between a Job and its work: the queue, the scheduler, an image; None where all pods run.

    :param hints: by a pod's name, or ``""`` for the Job: what events and the queue say
    """
    pods = list(pods)
    if any(map(has_succeeded, pods)):
        return None  # it is all done, and the others are about to end
    wanted = job["spec"].get("parallelism", 1)
    living = [pod for pod in pods if not is_over(pod)]
    if job["spec"].get("suspend"):
        queue = job["metadata"].get("labels", {}).get(QUEUE)
        return _sentence(f"waiting for admission to queue {queue}" if queue else "the Job is suspended", hints.get(""))
    if not living:
        return _sentence("waiting for the Job's pods", hints.get(""))
    running = sum(is_running(pod) for pod in living)
    reasons = Counter(_why_not(pod, hints) for pod in living if not is_running(pod))
    if not reasons:
        return None
    said = "; ".join(f"{count} {reason}" if wanted > 1 else reason for reason, count in reasons.items())
    return f"{running} of {wanted} pods run, {said}" if wanted > 1 else f"the pod is {said}"


def how_it_died(pod: Manifest) -> str | None:
    """Say how a pod failed, or what took it away; None for one that succeeded or lives."""
    name, node = pod["metadata"]["name"], node_of(pod) or "no node"
    disruption = condition(pod, "DisruptionTarget")
    if disruption is not None:
        return f"{name} on {node} was taken away ({disruption.get('reason')}: {disruption.get('message', '')})"
    ended = _terminated(pod)
    if pod.get("status", {}).get("phase") != "Failed" and not ended.get("exitCode"):
        return None
    if not ended:
        status = pod["status"]
        return f"{name} on {node} failed ({_sentence(status.get('reason', 'no reason given'), status.get('message'))})"
    # The kubelet's own reason, e.g. a full volume.
    why = pod["status"].get("reason")
    more = f" ({_sentence(why, pod['status'].get('message'))})" if why else ""
    return f"{name} on {node} ended: {_exit(ended)}{more}"


def is_own_failure(pod: Manifest) -> bool:
    """Whether the pod, or its node, failed: it was not taken away or asked to end, and did not say what is wrong."""
    ended = _terminated(pod)
    failed = pod.get("status", {}).get("phase") == "Failed" and condition(pod, "DisruptionTarget") is None
    too_big = ended.get("reason") == "OOMKilled" or pod["status"].get("reason") in ("Evicted", "DeadlineExceeded")
    return failed and not too_big and ended.get("exitCode") not in (FAILED, INTERRUPTED)


def was_taken_away(pod: Manifest) -> bool:
    """Whether the pod was evicted, preempted or deleted: it is replaced, and not counted."""
    ended = _terminated(pod)
    return condition(pod, "DisruptionTarget") is not None or ended.get("exitCode") == INTERRUPTED


def was_too_big(pod: Manifest) -> bool:
    """
    Whether the kubelet evicted the pod for its node's want of memory or disk. What the API evicts has no such reason;
    what the kubelet does not take at all, and what exceeds a limit of its own, has no such condition: it is counted.
    """
    taken = condition(pod, "DisruptionTarget") is not None
    return taken and bool(pod.get("status", {}).get("reason") == "Evicted")


def ran_seconds(pod: Manifest) -> float:
    """How long a pod that is over has run; 0 where that is not known."""
    begun = pod.get("status", {}).get("startTime")
    end = _ended_at(pod) or (condition(pod, "DisruptionTarget") or {}).get("lastTransitionTime")
    if not begun or not end:
        return 0.0
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begun)).total_seconds()


def last_words(pods: Iterable[Manifest]) -> Mapping[str, Any] | None:
    """The failure that the first pod to fail left in its termination message; else what the last one to end left."""
    over = sorted((pod for pod in pods if has_ended(pod)), key=_ended_at)
    failed = (said for pod in over if is_the_last_word(pod) and (said := _message(pod)))
    return next(failed, _message(over[-1]) if over else None)


def _ended_at(pod: Manifest) -> str:
    return _terminated(pod).get("finishedAt") or ""


def _message(pod: Manifest) -> Mapping[str, Any] | None:
    ended = _terminated(pod)
    try:
        return asdict(Failure(**json.loads(ended.get("message") or "")))
    except (json.JSONDecodeError, TypeError):  # another program's, or none
        return None


def _why_not(pod: Manifest, hints: Mapping[str, str]) -> str:
    name = pod["metadata"]["name"]
    if pod["metadata"].get("deletionTimestamp"):
        return "ending"
    if has_ended(pod):
        others = ", ".join(other_containers(pod))
        return f"ended, with {others} still running" if others else "ending"
    for found in pod.get("status", {}).get("conditions") or ():
        if found["type"] == "PodScheduled" and found["status"] == "False":
            return _sentence("not placed on a node", found.get("message"))
    statuses = pod.get("status", {})
    for status in (*(statuses.get("initContainerStatuses") or ()), *(statuses.get("containerStatuses") or ())):
        waiting = (status.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") in _NO_IMAGE:
            # The kubelet says the same in turn with and without the pause it makes.
            why = (waiting.get("message") or "").rpartition("ErrImagePull: ")[2]
            return _sentence(f"not started, its image {status.get('image')} cannot be pulled (ImagePullBackOff)", why)
        if waiting and waiting.get("reason") not in (*_ON_THE_WAY, None):
            return _sentence(f"not started: {waiting['reason']}", waiting.get("message"))
    return _sentence(f"starting on {node_of(pod)}" if node_of(pod) else "not placed yet", hints.get(name))


def _exit(ended: Mapping[str, Any]) -> str:
    code, reason = ended.get("exitCode", 0), ended.get("reason") or ""
    words = [f"killed by {_SIGNALS[code - 128]}" if code - 128 in _SIGNALS else f"exit code {code}"]
    if reason not in ("", "Error"):
        words.append(reason)
    if reason == "OOMKilled":
        words.append("it needs more than its memory limit (pods.memory)")
    return ", ".join(words)


def _sentence(what: str, more: str | None) -> str:
    return f"{what}: {' '.join(more.split())}" if more else what


def goes_on(job: Manifest) -> bool:
    """Whether it is neither decided nor suspended nor being deleted."""
    return not (
        job["metadata"].get("deletionTimestamp")
        or job["spec"].get("suspend")
        or any(condition(job, kind) for kind in (*DECIDED, "Complete", "Failed"))
    )


def index_of(pod: Manifest) -> str | None:
    index: str | None = pod["metadata"].get("annotations", {}).get("batch.kubernetes.io/job-completion-index")
    return index
