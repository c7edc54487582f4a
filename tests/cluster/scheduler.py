"""Which node a pod goes to, and why it goes to none, in the words of the real scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

from cluster.events import Recorder
from cluster.objects import TERMINAL, Object, being_deleted, condition_of, copied, name_of, phase_of, set_condition
from cluster.quantities import quantity, requests_of, total
from cluster.selection import matches_expression
from cluster.store import Inbox, Store


class Scheduler:
    """Binds pods to nodes; looks at all that wait whenever a pod or a node changes."""

    def __init__(self, store: Store, events: Recorder) -> None:
        self._store = store
        self._events = events
        self._inbox = Inbox(store, "pods", "nodes")

    async def run(self) -> None:
        """Schedule until cancelled."""
        while True:
            await self._inbox.next()
            waiting = [pod for pod in self._store.all("pods") if _waits(pod)]
            for pod in sorted(waiting, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
                self._schedule(pod)

    def _schedule(self, pod: Object) -> None:
        new = copied(pod)
        if "schedulingGates" in pod["spec"] and pod["spec"]["schedulingGates"]:
            text = "Scheduling is blocked due to non-empty scheduling gates"
            set_condition(new["status"], "PodScheduled", False, "SchedulingGated", text)
            self._store.replace("pods", new)
            return
        nodes, pods = self._store.all("nodes"), self._store.all("pods")
        chosen = choose(pod, nodes, pods)
        if chosen is not None:
            new["spec"]["nodeName"] = chosen
            set_condition(new["status"], "PodScheduled", True)
            self._store.replace("pods", new)
            place = f"{pod['metadata']['namespace']}/{name_of(pod)}"
            self._events.normal(pod, "Scheduled", f"Successfully assigned {place} to {chosen}", "default-scheduler")
            return
        text = explanation(pod, nodes, pods)
        known = condition_of(pod["status"], "PodScheduled")
        if known is None or known.get("message") != text:
            set_condition(new["status"], "PodScheduled", False, "Unschedulable", text)
            self._store.replace("pods", new)
            self._events.warning(pod, "FailedScheduling", text, "default-scheduler")


def choose(pod: Object, nodes: Sequence[Object], pods: Sequence[Object]) -> str | None:
    """Of the nodes that take the pod the one that it likes best, then the least loaded."""
    fitting = [node for node in nodes if not obstacles(pod, node, pods)[0]]
    if not fitting:
        return None
    return name_of(min(fitting, key=lambda node: (-_liking(pod["spec"], node), _load(node, pods), name_of(node))))


def explanation(pod: Object, nodes: Sequence[Object], pods: Sequence[Object]) -> str:
    """Why no node takes the pod."""
    if not nodes:
        return "no nodes available to schedule pods"
    found = [obstacles(pod, node, pods) for node in nodes]
    reasons = Counter(reason for texts, _ in found for reason in texts)
    unhelpful = sum(final for _, final in found)
    preemption = Counter({"Preemption is not helpful for scheduling": unhelpful})
    preemption["No preemption victims found for incoming pod"] = len(nodes) - unhelpful
    available = f"0/{len(nodes)} nodes are available"
    text = f"{available}: {_counted(reasons)}. no new claims to deallocate, "
    return text + f"preemption: {available}: {_counted(preemption)}."


def obstacles(pod: Object, node: Object, pods: Sequence[Object]) -> tuple[list[str], bool]:
    """What keeps the pod off the node, and whether room made there would not help."""
    spec = pod["spec"]
    tolerations = spec.get("tolerations", [])
    unschedulable = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if node["spec"].get("unschedulable") and not any(tolerates(each, unschedulable) for each in tolerations):
        return ["node(s) were unschedulable"], True
    for taint in node["spec"].get("taints", []):
        if taint["effect"] != "PreferNoSchedule" and not any(tolerates(each, taint) for each in tolerations):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"], True
    if not _attracted(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"], True
    wanted = requests_of(pod)
    allocatable = {name: quantity(text) for name, text in node["status"]["allocatable"].items()}
    used = _used(node, pods)
    lacking = [
        name
        for name, amount in wanted.items()
        if amount and amount > allocatable.get(name, Decimal(0)) - used.get(name, Decimal(0))
    ]
    texts = ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]
    return texts, any(wanted[name] > allocatable.get(name, Decimal(0)) for name in lacking)


def tolerates(toleration: Object, taint: Object) -> bool:
    """Whether a toleration is for a taint."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if not toleration.get("key"):
        return True
    if toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _waits(pod: Object) -> bool:
    return "nodeName" not in pod["spec"] and not being_deleted(pod) and phase_of(pod) == "Pending"


def _attracted(spec: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_matches(term, node) for term in required["nodeSelectorTerms"])


def _liking(spec: Object, node: Object) -> int:
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    return sum(term["weight"] for term in terms if _matches(term["preference"], node))


def _matches(term: Object, node: Object) -> bool:
    labels, names = node["metadata"].get("labels", {}), {"metadata.name": name_of(node)}
    return (
        bool(term.get("matchExpressions") or term.get("matchFields"))
        and all(matches_expression(labels, each) for each in term.get("matchExpressions", []))
        and all(matches_expression(names, each) for each in term.get("matchFields", []))
    )


def _used(node: Object, pods: Sequence[Object]) -> dict[str, Decimal]:
    there = [pod for pod in pods if pod["spec"].get("nodeName") == name_of(node) and phase_of(pod) not in TERMINAL]
    return total([requests_of(pod) for pod in there])


def _load(node: Object, pods: Sequence[Object]) -> Decimal:
    used = _used(node, pods)
    shares = [
        used.get(name, Decimal(0)) / quantity(text)
        for name, text in node["status"]["allocatable"].items()
        if quantity(text)
    ]
    return max(shares, default=Decimal(0))


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items() if count))
