"""What a Job's policies say: is a pod's failure the Job's, has the Job succeeded, has it failed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.job_rules import indexes_of
from cluster.objects import Object, being_deleted, name_of, namespace_of, phase_of, seconds_of

Ending = tuple[str, str]
"""A condition's reason and message."""


@dataclass(frozen=True)
class Verdict:
    """What the failure policy makes of a failed pod."""

    action: str
    message: str


def verdict_on(pod: Object, spec: Object) -> Verdict | None:
    """The first rule of the failure policy that matches; None where there is no such rule."""
    for number, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", [])):
        place = f"{namespace_of(pod)}/{name_of(pod)}"
        end = f"matching {rule['action']} rule at index {number}"
        if codes := rule.get("onExitCodes"):
            matched = _by_exit_code(pod, codes)
            if matched is not None:
                name, code = matched
                return Verdict(rule["action"], f"Container {name} for pod {place} failed with exit code {code} {end}")
        for pattern in rule.get("onPodConditions", []):
            for condition in pod["status"].get("conditions", []):
                if (condition["type"], condition["status"]) == (pattern["type"], pattern["status"]):
                    return Verdict(rule["action"], f"Pod {place} has condition {pattern['type']} {end}")
    return None


def counts_as_failed(pod: Object, spec: Object) -> bool:
    """Whether a pod that has not succeeded has failed: one that is being deleted has, unless its end is waited for."""
    if phase_of(pod) == "Failed":
        return True
    return spec["podReplacementPolicy"] != "Failed" and being_deleted(pod) and phase_of(pod) != "Succeeded"


def index_of(pod: Object) -> int:
    """The pod's completion index."""
    return int(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])


def success(job: Object, status: Object) -> Ending | None:
    """Whether the Job has succeeded."""
    spec, succeeded = job["spec"], status.get("succeeded", 0)
    completed = indexes_of(status.get("completedIndexes", ""))
    for number, rule in enumerate(spec.get("successPolicy", {}).get("rules", [])):
        chosen = indexes_of(rule["succeededIndexes"]) if "succeededIndexes" in rule else None
        done = completed if chosen is None else completed & chosen
        needed = rule.get("succeededCount", len(chosen or ()))
        if len(done) >= needed:
            return "SuccessPolicy", f"Matched rules at index {number}"
    if "completions" in spec:
        reached = succeeded >= spec["completions"]
    else:
        reached = succeeded > 0 and not status.get("active", 0)
    return ("CompletionsReached", "Reached expected number of succeeded pods") if reached else None


def ending(job: Object, status: Object, pods: Sequence[Object], now: float) -> Ending | None:
    """Whether the Job has failed, other than by the failure policy."""
    spec, failed = job["spec"], status.get("failed", 0)
    if failed > spec["backoffLimit"] or _restarts(spec, pods) > 0:
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    deadline = spec.get("activeDeadlineSeconds")
    # A suspended Job's time does not run.
    running = not spec["suspend"] and "startTime" in status
    if deadline is not None and running and now >= seconds_of(status["startTime"]) + deadline:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    failed_indexes = indexes_of(status.get("failedIndexes", ""))
    if failed_indexes:
        if len(failed_indexes) > spec.get("maxFailedIndexes", spec["completions"]):
            return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
        if len(failed_indexes | indexes_of(status.get("completedIndexes", ""))) >= spec["completions"]:
            return "FailedIndexes", "Job has failed indexes"
    return None


def _restarts(spec: Object, pods: Sequence[Object]) -> int:
    """By how much the restarts in place exceed the backoff limit; with ``OnFailure`` they are the failures."""
    if spec["template"]["spec"]["restartPolicy"] != "OnFailure":
        return 0
    count = 0
    for pod in pods:
        if phase_of(pod) in ("Running", "Pending"):
            status = pod["status"]
            for each in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
                count += each["restartCount"]
    limit: int = spec["backoffLimit"]
    return count if limit == 0 else max(0, count - limit + 1)


def _by_exit_code(pod: Object, codes: Object) -> tuple[str, int] | None:
    status = pod["status"]
    for each in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        ended = each.get("state", {}).get("terminated")
        if ended is None or ended["exitCode"] == 0 or codes.get("containerName", each["name"]) != each["name"]:
            continue
        if (ended["exitCode"] in codes["values"]) == (codes["operator"] == "In"):
            return each["name"], ended["exitCode"]
    return None
