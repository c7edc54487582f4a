"""What is left behind: dependents without an owner, finished Jobs past their time, what nodes and namespaces held."""

from __future__ import annotations

import asyncio
import time

from cluster import deletion, scheduler
from cluster.objects import (
    RESOURCES,
    TERMINAL,
    Object,
    being_deleted,
    copied,
    has_condition,
    name_of,
    namespace_of,
    phase_of,
    seconds_of,
    set_condition,
)
from cluster.store import Change, Inbox, Store


class Garbage:
    """The collector: looks again at what each change may have left behind."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._inbox = Inbox(store, *RESOURCES)

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            for change in await self._inbox.next():
                self._follow(change)

    def _follow(self, change: Change) -> None:
        store, resource, value = self._store, RESOURCES[change.plural], change.new
        if change.kind == "DELETED":
            for plural, dependent in deletion.dependents_of(store, value):
                self._collect(plural, dependent)
            for owner in value["metadata"].get("ownerReferences", []):
                self._release(owner, namespace_of(value))
            if resource.kind == "Node":
                self._lose_node(name_of(value))
            home = store.find("namespaces", "", namespace_of(value)) if resource.namespaced else None
            if home is not None and being_deleted(home):
                self._empty(home)
            return
        found = store.current(change.plural, value)
        if found is None:
            return
        if resource.kind == "Namespace" and being_deleted(found):
            self._empty(found)
            return
        if being_deleted(found) and resource.kind != "Pod":
            deletion.finish(store, resource, found)
        if deletion.in_foreground(found):
            for plural, dependent in deletion.dependents_of(store, found):
                if not being_deleted(dependent):
                    deletion.delete(store, RESOURCES[plural], dependent, {"propagationPolicy": "Background"})
            if store.current(change.plural, found) is not None:
                deletion.release(store, resource, store.get(change.plural, namespace_of(found), name_of(found)))
            return
        self._collect(change.plural, found)
        match resource.kind:
            case "Job":
                self._expire(found)
            case "Node":
                self._evict_intolerant(found)
            case _:
                pass

    def _collect(self, plural: str, value: Object) -> None:
        owners = value["metadata"].get("ownerReferences", [])
        known = [(owner, plural_of(owner)) for owner in owners]
        if not owners or any(plural is None for _, plural in known) or being_deleted(value):
            return
        for owner, owner_plural in known:
            space = namespace_of(value) if RESOURCES[owner_plural or ""].namespaced else ""
            found = self._store.find(owner_plural or "", space, owner["name"])
            if found is not None and found["metadata"]["uid"] == owner["uid"]:
                return
        if self._store.current(plural, value) is not None:
            deletion.delete(self._store, RESOURCES[plural], value, {"propagationPolicy": "Background"})

    def _empty(self, namespace: Object) -> None:
        """Delete what a namespace holds, and then the namespace."""
        name = name_of(namespace)
        held = [
            (plural, each)
            for plural, kind in RESOURCES.items()
            if kind.namespaced
            for each in self._store.all(plural, name)
        ]
        for plural, each in held:
            if not being_deleted(each):
                deletion.delete(self._store, RESOURCES[plural], each, {"propagationPolicy": "Background"})
        if not any(self._store.all(plural, name) for plural, kind in RESOURCES.items() if kind.namespaced):
            found = self._store.find("namespaces", "", name)
            if found is not None:
                self._store.remove("namespaces", found)

    def _release(self, owner: Object, namespace: str) -> None:
        plural = plural_of(owner)
        found = self._store.find(plural, namespace, owner["name"]) if plural else None
        if plural and found is not None and deletion.in_foreground(found):
            deletion.release(self._store, RESOURCES[plural], found)

    def _expire(self, job: Object) -> None:
        keep = job["spec"].get("ttlSecondsAfterFinished")
        finished = [
            each for each in job.get("status", {}).get("conditions", []) if each["type"] in ("Complete", "Failed")
        ]
        if keep is None or not finished or being_deleted(job):
            return
        due = seconds_of(finished[0]["lastTransitionTime"]) + keep
        asyncio.get_running_loop().call_later(max(0.0, due - time.time()), self._delete_expired, job)

    def _delete_expired(self, job: Object) -> None:
        found = self._store.current("jobs", job)
        if found is not None and not being_deleted(found):
            deletion.delete(self._store, RESOURCES["jobs"], found, {"propagationPolicy": "Foreground"})

    def _lose_node(self, node: str) -> None:
        for pod in self._store.all("pods"):
            if pod["spec"].get("nodeName") != node:
                continue
            new = copied(pod)
            if phase_of(pod) not in TERMINAL:
                new["status"]["phase"] = "Failed"
                set_condition(
                    new["status"], "DisruptionTarget", True, "DeletionByPodGC", "PodGC: node no longer exists"
                )
            deletion.delete(self._store, RESOURCES["pods"], self._store.replace("pods", new), {"gracePeriodSeconds": 0})

    def _evict_intolerant(self, node: Object) -> None:
        taints = [taint for taint in node["spec"].get("taints", []) if taint["effect"] == "NoExecute"]
        for pod in self._store.all("pods") if taints else []:
            if pod["spec"].get("nodeName") != name_of(node) or phase_of(pod) in TERMINAL or being_deleted(pod):
                continue
            tolerations = pod["spec"].get("tolerations", [])
            if all(any(scheduler.tolerates(each, taint) for each in tolerations) for taint in taints):
                continue
            disrupt(self._store, pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")


def disrupt(store: Store, pod: Object, reason: str, message: str, options: Object | None = None) -> None:
    """Delete a pod for no fault of its own, and say so on it."""
    if phase_of(pod) not in TERMINAL and not has_condition(pod, "DisruptionTarget"):
        new = copied(pod)
        set_condition(new["status"], "DisruptionTarget", True, reason, message)
        pod = store.replace("pods", new)
    deletion.delete(store, RESOURCES["pods"], pod, options or {})


def plural_of(owner: Object) -> str | None:
    """The plural of an owner's kind, if it is one of the stand-in's."""
    for plural, resource in RESOURCES.items():
        if (resource.api_version, resource.kind) == (owner["apiVersion"], owner["kind"]):
            return plural
    return None
