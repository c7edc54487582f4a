"""The Job controller: pods for each Job, their ends counted, policies applied, conditions set, as 1.34 does it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from cluster import deletion
from cluster.admission import Admission
from cluster.events import Recorder
from cluster.job_policies import Verdict, counts_as_failed, ending, index_of, success, verdict_on
from cluster.job_rules import indexes_of, text_of
from cluster.objects import (
    RESOURCES,
    TERMINAL,
    Object,
    being_deleted,
    condition_of,
    controller_of,
    copied,
    has_condition,
    name_of,
    namespace_of,
    phase_of,
    random_suffix,
    set_condition,
    timestamp,
    uid_of,
)
from cluster.store import Change, Inbox, Store

_LONGEST_BACKOFF_SECONDS = 600.0
_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass
class Progress:
    """What the controller remembers of a Job beside its status."""

    counted: set[str] = field(default_factory=set)
    """Pods that were counted, or that it took away itself."""
    removed: dict[str, Object] = field(default_factory=dict)
    """Pods that are gone, and not counted yet."""
    failures: dict[int, int] = field(default_factory=dict)
    """Counted failures since the last success; by index where each has its own limit, else all under -1."""
    last_failure: dict[int, float] = field(default_factory=dict)
    index_failures: dict[int, int] = field(default_factory=dict)
    """Failures of an index that count against its own limit."""


class JobController:
    """Looks at a Job whenever it or one of its pods changes, and when a time it waits for has come."""

    def __init__(self, store: Store, admission: Admission, events: Recorder, backoff_seconds: float) -> None:
        self._store, self._admission, self._events = store, admission, events
        self._backoff_seconds = backoff_seconds
        self._inbox = Inbox(store, "jobs", "pods")
        self._progress: dict[str, Progress] = {}
        self._due: set[tuple[str, str]] = set()
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Control until cancelled."""
        asyncio.get_running_loop().create_task(self._collect())
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._due:
                namespace, name = self._due.pop()
                job = self._store.find("jobs", namespace, name)
                if job is not None and not being_deleted(job):
                    self._sync(job)

    async def _collect(self) -> None:
        while True:
            for change in await self._inbox.next():
                self._note(change)

    def _note(self, change: Change) -> None:
        value = change.new
        if change.plural == "jobs":
            if change.kind == "DELETED":
                self._progress.pop(uid_of(value), None)
            self._wake(namespace_of(value), name_of(value))
            return
        owner = controller_of(value)
        if owner is None or owner["kind"] != "Job":
            return
        if change.kind == "DELETED" and owner["uid"] in self._progress:
            self._progress[owner["uid"]].removed[uid_of(value)] = value
        self._wake(namespace_of(value), owner["name"])

    def _wake(self, namespace: str, name: str) -> None:
        self._due.add((namespace, name))
        self._woken.set()

    def _wake_after(self, seconds: float, job: Object) -> None:
        asyncio.get_running_loop().call_later(max(0.0, seconds), self._wake, namespace_of(job), name_of(job))

    def _sync(self, job: Object) -> None:
        progress = self._progress.setdefault(uid_of(job), Progress())
        if has_condition(job, "Complete") or has_condition(job, "Failed"):
            progress.removed.clear()
            return
        pods = self._pods(job)
        status = copied(job["status"])
        if not job["spec"]["suspend"] and "startTime" not in status:
            status["startTime"] = timestamp()
        verdict = self._count(job, status, pods, progress)
        self._tally(job, status)
        self._judge(job, status, pods, verdict)
        deadline = job["spec"].get("activeDeadlineSeconds")
        if deadline is not None and status.get("startTime") != job["status"].get("startTime"):
            self._wake_after(deadline, job)
        if any(has_condition({"status": status}, each) for each in ("FailureTarget", "SuccessCriteriaMet")):
            self._stop(job, [pod for pod in pods if _active(pod)], release=False)
            self._count(job, status, self._pods(job), progress)
            self._conclude(job, status)
        else:
            self._manage(job, status, pods, progress)
        self._tally(job, status)
        if self._store.current("jobs", job) is not None:
            self._store.modify("jobs", job, lambda new: new.update(status=status))

    def _pods(self, job: Object) -> list[Object]:
        uid = uid_of(job)
        pods = self._store.all("pods", namespace_of(job))
        return [pod for pod in pods if (owner := controller_of(pod)) is not None and owner["uid"] == uid]

    def _count(self, job: Object, status: Object, pods: list[Object], progress: Progress) -> Verdict | None:
        """Count the pods that ended since the last time; the verdict of the failure policy that ends the Job."""
        spec, fatal = job["spec"], None
        indexed = spec["completionMode"] == "Indexed"
        completed = indexes_of(status.get("completedIndexes", ""))
        failed_indexes = indexes_of(status.get("failedIndexes", ""))
        gone = list(progress.removed.values())
        progress.removed.clear()
        for pod in [*gone, *pods]:
            if uid_of(pod) in progress.counted:
                continue
            index = index_of(pod) if indexed else -1
            where = index if "backoffLimitPerIndex" in spec else -1
            if phase_of(pod) == "Succeeded":
                progress.counted.add(uid_of(pod))
                progress.failures.pop(where, None)
                if not indexed:
                    status["succeeded"] = status.get("succeeded", 0) + 1
                elif index < spec["completions"]:
                    completed.add(index)
            elif pod in gone or counts_as_failed(pod, spec):
                progress.counted.add(uid_of(pod))
                verdict = verdict_on(pod, spec)
                # The next one waits longer for those that are ignored, too.
                progress.failures[where] = progress.failures.get(where, 0) + 1
                progress.last_failure[where] = time.time()
                if verdict is not None and verdict.action == "Ignore":
                    continue
                status["failed"] = status.get("failed", 0) + 1
                if verdict is not None and verdict.action == "FailJob":
                    fatal = fatal or verdict
                if "backoffLimitPerIndex" in spec:
                    failures = progress.index_failures[index] = progress.index_failures.get(index, 0) + 1
                    told = verdict is not None and verdict.action == "FailIndex"
                    if told or failures > spec["backoffLimitPerIndex"]:
                        failed_indexes.add(index)
        if indexed:
            status["completedIndexes"] = text_of(completed)
            status["succeeded"] = len(completed)
            if not completed:
                del status["completedIndexes"]
            if "backoffLimitPerIndex" in spec:
                status["failedIndexes"] = text_of(failed_indexes - completed)
        return fatal

    def _judge(self, job: Object, status: Object, pods: list[Object], verdict: Verdict | None) -> None:
        whole = {"status": status}
        if has_condition(whole, "FailureTarget") or has_condition(whole, "SuccessCriteriaMet"):
            return
        met = success(job, status)
        if met is not None:
            set_condition(status, "SuccessCriteriaMet", True, *met)
            return
        found = ("PodFailurePolicy", verdict.message) if verdict is not None else ending(job, status, pods, time.time())
        if found is not None:
            set_condition(status, "FailureTarget", True, *found)
            return
        suspended = condition_of(status, "Suspended")
        if job["spec"]["suspend"] and not has_condition(whole, "Suspended"):
            set_condition(status, "Suspended", True, "JobSuspended", "Job suspended")
            status.pop("startTime", None)
            self._events.normal(job, "Suspended", "Job suspended", "job-controller")
        elif not job["spec"]["suspend"] and suspended is not None and suspended["status"] == "True":
            set_condition(status, "Suspended", False, "JobResumed", "Job resumed")
            status["startTime"] = timestamp()
            self._events.normal(job, "Resumed", "Job resumed", "job-controller")

    def _conclude(self, job: Object, status: Object) -> None:
        """The last condition comes when no pod runs any more."""
        if any(phase_of(pod) not in TERMINAL for pod in self._pods(job)):
            return
        if has_condition({"status": status}, "SuccessCriteriaMet"):
            cause = condition_of(status, "SuccessCriteriaMet") or {}
            set_condition(status, "Complete", True, cause["reason"], cause["message"])
            status["completionTime"] = timestamp()
            self._events.normal(job, "Completed", "Job completed", "job-controller")
        else:
            cause = condition_of(status, "FailureTarget") or {}
            set_condition(status, "Failed", True, cause["reason"], cause["message"])
            self._events.warning(job, cause["reason"], cause["message"], "job-controller")

    def _manage(self, job: Object, status: Object, pods: list[Object], progress: Progress) -> None:
        """Make and take away pods until there are as many as there should be."""
        spec = job["spec"]
        active = [pod for pod in pods if _active(pod)]
        if spec["suspend"]:
            self._stop(job, active, release=True)
            return
        ending_pods = [pod for pod in pods if being_deleted(pod) and phase_of(pod) not in TERMINAL]
        held = ending_pods if spec["podReplacementPolicy"] == "Failed" else []
        if spec["completionMode"] == "Indexed":
            self._manage_indexes(job, status, active, held, progress)
            return
        wanted = spec["parallelism"]
        if "completions" in spec:
            wanted = min(wanted, spec["completions"] - status.get("succeeded", 0))
        elif status.get("succeeded", 0):
            wanted = min(wanted, len(active))
        if len(active) > wanted:
            self._stop(
                job, sorted(active, key=lambda pod: phase_of(pod) == "Running")[: len(active) - wanted], release=True
            )
            return
        missing = wanted - len(active) - len(held)
        if missing > 0 and self._ready(job, progress, -1):
            for _ in range(missing):
                self._create(job, None, progress)

    def _manage_indexes(
        self, job: Object, status: Object, active: list[Object], held: list[Object], progress: Progress
    ) -> None:
        spec = job["spec"]
        finished = indexes_of(status.get("completedIndexes", "")) | indexes_of(status.get("failedIndexes", ""))
        taken: set[int] = set()
        surplus: list[Object] = []
        for pod in active:
            index = index_of(pod)
            if index in taken or index in finished or index >= spec["completions"]:
                surplus.append(pod)
            else:
                taken.add(index)
        over = len(taken) - spec["parallelism"]
        if over > 0:
            last = set(sorted(taken)[-over:])
            surplus += [pod for pod in active if index_of(pod) in last and pod not in surplus]
        self._stop(job, surplus, release=True)
        room = spec["parallelism"] - len(taken) - len(held)
        kept = taken | {index_of(pod) for pod in held} | finished
        for index in [each for each in range(spec["completions"]) if each not in kept]:
            if room <= 0:
                return
            if self._ready(job, progress, index if "backoffLimitPerIndex" in spec else -1):
                self._create(job, index, progress)
                room -= 1

    def _ready(self, job: Object, progress: Progress, where: int) -> bool:
        """Whether a pod may be made now: after failures there is a pause."""
        failures = progress.failures.get(where, 0)
        if not failures:
            return True
        pause = min(self._backoff_seconds * 2 ** (failures - 1), _LONGEST_BACKOFF_SECONDS)
        left = progress.last_failure[where] + pause - time.time()
        if left <= 0:
            return True
        self._wake_after(left + 0.01, job)
        return False

    def _create(self, job: Object, index: int | None, progress: Progress) -> None:
        template = copied(job["spec"]["template"])
        metadata = template.setdefault("metadata", {})
        prefix = f"{name_of(job)}-" if index is None else f"{name_of(job)}-{index}-"
        metadata["name"] = prefix[:58] + random_suffix()
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name_of(job), "uid": uid_of(job)}
        metadata["ownerReferences"] = [owner | {"controller": True, "blockOwnerDeletion": True}]
        if index is not None:
            _give_index(template, f"{name_of(job)}-{index}", index)
            if "backoffLimitPerIndex" in job["spec"]:
                count = str(progress.index_failures.get(index, 0))
                metadata["annotations"]["batch.kubernetes.io/job-index-failure-count"] = count
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        try:
            created = self._admission.create(RESOURCES["pods"], pod, namespace_of(job))
        except Exception as error:
            self._events.warning(job, "FailedCreate", f"Error creating: {error}", "job-controller")
            self._wake_after(1.0, job)
            return
        self._events.normal(job, "SuccessfulCreate", f"Created pod: {name_of(created)}", "job-controller")

    def _stop(self, job: Object, pods: list[Object], *, release: bool) -> None:
        progress = self._progress[uid_of(job)]
        for pod in pods:
            if release:
                progress.counted.add(uid_of(pod))  # taken away, not failed
            deletion.delete(self._store, RESOURCES["pods"], pod, {})
            self._events.normal(job, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}", "job-controller")

    def _tally(self, job: Object, status: Object) -> None:
        pods = self._pods(job)
        active = [pod for pod in pods if _active(pod)]
        terminating = [pod for pod in pods if being_deleted(pod) and phase_of(pod) not in TERMINAL]
        for name, count in (("active", len(active)), ("succeeded", status.get("succeeded", 0))):
            status.pop(name, None)
            if count:
                status[name] = count
        status["ready"] = sum(has_condition(pod, "Ready") for pod in active)
        status["terminating"] = len(terminating)
        status.setdefault("uncountedTerminatedPods", {})


def _active(pod: Object) -> bool:
    return phase_of(pod) not in TERMINAL and not being_deleted(pod)


def _give_index(template: Object, hostname: str, index: int) -> None:
    metadata, spec = template["metadata"], template["spec"]
    metadata["labels"] = metadata.get("labels", {}) | {_INDEX: str(index)}
    metadata["annotations"] = metadata.get("annotations", {}) | {_INDEX: str(index)}
    spec["hostname"] = hostname
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{_INDEX}']"}}
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        variables = container.setdefault("env", [])
        if all(variable["name"] != "JOB_COMPLETION_INDEX" for variable in variables):
            variables.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
