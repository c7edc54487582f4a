"""Queues of Jobs, as Kueue has them: a Job that names one is held until there is room for all of its pods at once."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.objects import Object, being_deleted, has_condition, name_of, namespace_of, uid_of
from cluster.store import Inbox, Store

QUEUE = "kueue.x-k8s.io/queue-name"
_API_VERSION = "visibility.kueue.x-k8s.io/v1beta2"


class Queues:
    """:param room: by a queue's name, how many pods it lets run"""

    def __init__(self, store: Store, room: Mapping[str, int]) -> None:
        self._store, self._room = store, room
        self._inbox = Inbox(store, "jobs")

    async def run(self) -> None:
        """Let Jobs in, first come first served, until cancelled."""
        while True:
            await self._inbox.next()
            for queue, room in self._room.items():
                members = [job for job in self._store.all("jobs") if self.queue_of(job) == queue and not _is_over(job)]
                left = room - sum(job["spec"]["parallelism"] for job in members if not job["spec"]["suspend"])
                for job in _oldest_first(members):
                    left -= job["spec"]["parallelism"]
                    if left < 0:
                        break
                    self._store.modify("jobs", job, lambda new: new["spec"].update(suspend=False))

    def hold(self, job: Object) -> None:
        """What Kueue's webhook does to a Job that is created."""
        if self.queue_of(job) is not None:
            job["spec"]["suspend"] = True

    def queue_of(self, job: Object) -> str | None:
        """None where it names none, or one that nobody looks after."""
        queue: str | None = job["metadata"].get("labels", {}).get(QUEUE)
        return queue if queue in self._room else None

    def summary(self, path: str) -> Object | None:
        """Who waits, for ``.../namespaces/NAMESPACE/localqueues/QUEUE/pendingworkloads``; None for another path."""
        match path.strip("/").split("/"):
            case ["apis", *version, "namespaces", namespace, "localqueues", queue, "pendingworkloads"]:
                if "/".join(version) != _API_VERSION or queue not in self._room:
                    return None
            case _:
                return None
        waiting = _oldest_first([job for job in self._store.all("jobs") if self.queue_of(job) == queue])
        items = [
            {
                "metadata": {
                    "name": f"job-{name_of(job)}",
                    "namespace": namespace_of(job),
                    "ownerReferences": [
                        {"apiVersion": "batch/v1", "kind": "Job", "name": name_of(job), "uid": uid_of(job)}
                    ],
                },
                "priority": 0,
                "localQueueName": queue,
                "positionInClusterQueue": position,
                "positionInLocalQueue": position,
            }
            for position, job in enumerate(waiting)
            if namespace_of(job) == namespace
        ]
        return {"kind": "PendingWorkloadsSummary", "apiVersion": _API_VERSION, "metadata": {}, "items": items}


def _oldest_first(jobs: list[Object]) -> list[Object]:
    """Of those that are held. Names tell who came first within a second: what counts is that it does not change."""
    held = [job for job in jobs if job["spec"]["suspend"] and not _is_over(job)]
    return sorted(held, key=lambda job: (job["metadata"]["creationTimestamp"], name_of(job)))


def _is_over(job: Object) -> bool:
    return being_deleted(job) or has_condition(job, "Complete") or has_condition(job, "Failed")
