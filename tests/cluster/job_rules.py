"""What a Job's spec is completed with, and what it may say."""

from __future__ import annotations

from cluster import errors, pod_rules
from cluster.formats import Mistakes, bad, label_name
from cluster.objects import Object, name_of, uid_of

MOST = (1 << 31) - 1
"""The backoff limit of a Job that counts per index, and so not at all."""


def complete(job: Object) -> None:
    """Fill in the defaults, in place."""
    spec = job["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", MOST if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        for pattern in rule.get("onPodConditions", []):
            pattern.setdefault("status", "True")
    pod_rules.complete(spec["template"]["spec"])


def select(job: Object) -> None:
    """Give the Job its selector and its pods the labels it selects; needs the uid."""
    ours = {"batch.kubernetes.io/controller-uid": uid_of(job), "batch.kubernetes.io/job-name": name_of(job)}
    ours |= {"controller-uid": uid_of(job), "job-name": name_of(job)}
    metadata = job["spec"]["template"].setdefault("metadata", {})
    metadata["labels"] = metadata.get("labels", {}) | ours
    job["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid_of(job)}}


def check(job: Object) -> Mistakes:
    """
    The mistakes in a Job.

    :raises ApiError: it asks for something the stand-in cannot do
    """
    spec, found = job["spec"], label_name("metadata.name", name_of(job))
    for name in ("manualSelector", "managedBy"):
        if spec.get(name):
            raise errors.unsupported(f"spec.{name}")
    if "selector" in spec and "uid" not in job["metadata"]:
        found.append(("spec.selector", "Invalid value: `selector` not auto-generated"))
    for name in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished",
                 "backoffLimitPerIndex", "maxFailedIndexes"):  # fmt: skip
        if spec.get(name, 0) < 0:
            found.append((f"spec.{name}", bad(spec[name], "must be greater than or equal to 0")))
    for name, values in (("completionMode", ("NonIndexed", "Indexed")),
                         ("podReplacementPolicy", ("Failed", "TerminatingOrFailed"))):  # fmt: skip
        if spec[name] not in values:
            found.append((f"spec.{name}", f'Unsupported value: "{spec[name]}": supported values: {values}'))
    found += _indexed(job, spec["completionMode"] == "Indexed")
    template = spec["template"]
    restarts = template["spec"]["restartPolicy"]
    if restarts not in ("OnFailure", "Never"):
        supported = 'valid values: "OnFailure", "Never"'
        found.append(("spec.template.spec.restartPolicy", f'Unsupported value: "{restarts}": {supported}'))
    if "podFailurePolicy" in spec:
        if restarts != "Never":
            text = bad(restarts, 'only "Never" is supported when podFailurePolicy is specified')
            found.append(("spec.template.spec.restartPolicy", text))
        if spec["podReplacementPolicy"] != "Failed":
            text = bad(spec["podReplacementPolicy"], "only Failed is supported when podFailurePolicy is specified")
            found.append(("spec.podReplacementPolicy", text))
        found += _failure_policy(spec)
    found += _success_policy(spec)
    return found + pod_rules.check(template.get("metadata", {}), template["spec"], "spec.template.spec")


def _indexed(job: Object, indexed: bool) -> Mistakes:
    spec, found = job["spec"], list[tuple[str, str]]()
    if indexed and "completions" not in spec:
        found.append(("spec.completions", "Required value: when completion mode is Indexed"))
    if indexed and spec.get("completions"):
        longest = f"{name_of(job)}-{spec['completions'] - 1}"
        if len(longest) > 63 or len(longest) > 63 - 6:
            text = bad(longest, "must be no more than 63 bytes: the pods' names add a random suffix of 6")
            found.append(("metadata.name", text))
    if "backoffLimitPerIndex" in spec and not indexed:
        found.append(("spec.backoffLimitPerIndex", "Invalid value: requires indexed completion mode"))
    if "backoffLimitPerIndex" in spec and spec["template"]["spec"]["restartPolicy"] != "Never":
        text = 'Invalid value: only "Never" is supported when backoffLimitPerIndex is specified'
        found.append(("spec.template.spec.restartPolicy", text))
    if "maxFailedIndexes" in spec:
        if "backoffLimitPerIndex" not in spec:
            found.append(("spec.backoffLimitPerIndex", "Required value: when maxFailedIndexes is specified"))
        elif spec["maxFailedIndexes"] > spec.get("completions", 0):
            text = bad(spec["maxFailedIndexes"], "must be less than or equal to completions")
            found.append(("spec.maxFailedIndexes", text))
    return found


def _failure_policy(spec: Object) -> Mistakes:
    found: Mistakes = []
    containers = {container["name"] for container in pod_rules.containers_of(spec["template"]["spec"])}
    for index, rule in enumerate(spec["podFailurePolicy"].get("rules", [])):
        at = f"spec.podFailurePolicy.rules[{index}]"
        if rule["action"] not in ("FailJob", "FailIndex", "Ignore", "Count"):
            found.append((f"{at}.action", f'Unsupported value: "{rule["action"]}"'))
        if rule["action"] == "FailIndex" and "backoffLimitPerIndex" not in spec:
            found.append((f"{at}.action", bad("FailIndex", "requires the backoffLimitPerIndex to be set")))
        codes, patterns = rule.get("onExitCodes"), rule.get("onPodConditions")
        if bool(codes) == bool(patterns):
            found.append(
                (at, "Invalid value: specifying one of OnExitCodes and OnPodConditions is required, and not both")
            )
        if codes:
            values = codes["values"]
            if codes["operator"] not in ("In", "NotIn"):
                found.append((f"{at}.onExitCodes.operator", f'Unsupported value: "{codes["operator"]}"'))
            if codes["operator"] == "In" and 0 in values:
                found.append((f"{at}.onExitCodes.values", bad(0, "must not be 0 for the In operator")))
            if not values or sorted(set(values)) != values:
                found.append(
                    (f"{at}.onExitCodes.values", "Invalid value: must be ordered, without duplicates, and not empty")
                )
            if codes.get("containerName", next(iter(containers))) not in containers:
                text = bad(
                    codes["containerName"], "must be one of the container or initContainer names in the pod template"
                )
                found.append((f"{at}.onExitCodes.containerName", text))
    return found


def _success_policy(spec: Object) -> Mistakes:
    if "successPolicy" not in spec:
        return []
    if spec["completionMode"] != "Indexed":
        return [("spec.successPolicy", "Invalid value: requires indexed completion mode")]
    found: Mistakes = []
    if not spec["successPolicy"]["rules"]:
        found.append(("spec.successPolicy.rules", "Required value: at least one rules must be specified"))
    for index, rule in enumerate(spec["successPolicy"]["rules"]):
        at = f"spec.successPolicy.rules[{index}]"
        if not set(rule) & {"succeededIndexes", "succeededCount"}:
            found.append((at, "Required value: at least one of succeededCount or succeededIndexes must be specified"))
        try:
            chosen = indexes_of(rule.get("succeededIndexes", ""))
        except ValueError:
            found.append((f"{at}.succeededIndexes", bad(rule["succeededIndexes"], "error parsing succeededIndexes")))
            continue
        if chosen and max(chosen) >= spec.get("completions", 0):
            found.append((f"{at}.succeededIndexes", bad(rule["succeededIndexes"], "must be less than completions")))
        if rule.get("succeededCount", 0) > (len(chosen) or spec.get("completions", 0)):
            found.append(
                (f"{at}.succeededCount", bad(rule["succeededCount"], "must be less than or equal to the indexes"))
            )
    return found


def indexes_of(text: str) -> set[int]:
    """The indexes in ``0,2-4``."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def text_of(indexes: set[int]) -> str:
    """``0,2-4``, the shortest way."""
    parts: list[str] = []
    for index in sorted(indexes):
        if index - 1 in indexes:
            continue
        last = index
        while last + 1 in indexes:
            last += 1
        parts.append(str(index) if last == index else f"{index},{last}" if last == index + 1 else f"{index}-{last}")
    return ",".join(parts)
