"""The kubelets of all nodes: a worker for each bound pod, addresses, and the name service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path

from cluster import sandbox, volumes
from cluster.config import Configuration
from cluster.events import Recorder
from cluster.objects import TERMINAL, Object, being_deleted, phase_of, uid_of
from cluster.pod_worker import PodWorker
from cluster.store import Change, Inbox, Store


class Kubelet:
    """Starts a worker where a pod is bound, ends it where one is deleted."""

    def __init__(
        self, store: Store, events: Recorder, configuration: Configuration, folder: Path, api: tuple[str, int]
    ) -> None:
        self._store, self._events, self._configuration = store, events, configuration
        self._folder, self._api = folder, api
        self._inbox = Inbox(store, "pods", "services", "nodes")
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """A mistake of ours in a pod's worker: the cluster stops with it."""
        self._carried = sandbox.carried_mounts()
        # Addresses of this machine's loopback network, apart from those of any other cluster that runs on it.
        self._prefix = f"127.{api[1] >> 8}.{api[1] & 255}"
        self._last_address = 0
        self._pulls: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        while True:
            for change in await self._inbox.next():
                if change.plural == "pods":
                    self._follow(change)
                elif change.plural == "nodes" and change.kind == "DELETED":
                    self._lose(change.new)
            self._publish_names()

    def worker(self, pod: Object) -> PodWorker | None:
        """The pod's worker, as long as the pod's object is there."""
        return self._workers.get(uid_of(pod))

    def _follow(self, change: Change) -> None:
        pod = change.new
        worker = self._workers.get(uid_of(pod))
        if change.kind == "DELETED":
            if worker is not None:
                worker.end(0)
                worker.kill()
                del self._workers[uid_of(pod)]
                if worker.done:
                    self._spawn(asyncio.to_thread(volumes.discard, volumes.folder_of(self._folder, pod)))
            return
        if worker is None:
            found = self._store.current("pods", pod)
            if found is not None and "nodeName" in found["spec"] and phase_of(found) not in TERMINAL:
                self._start(found)
            return
        if being_deleted(pod):
            if worker.done and (found := self._store.current("pods", pod)) is not None:
                worker.remove(found)
            else:
                worker.end(pod["metadata"]["deletionGracePeriodSeconds"])

    def _start(self, pod: Object) -> None:
        worker = PodWorker(
            self._store, self._events, self._configuration, pod, volumes.folder_of(self._folder, pod),
            self._next_address(), self._api, self._carried, self._pull,
        )  # fmt: skip
        self._workers[uid_of(pod)] = worker
        self._spawn(self._run(worker))
        if being_deleted(pod):
            worker.end(pod["metadata"]["deletionGracePeriodSeconds"])

    async def _run(self, worker: PodWorker) -> None:
        await worker.run()
        if self._workers.get(uid_of(worker.pod)) is not worker:
            await asyncio.to_thread(volumes.discard, volumes.folder_of(self._folder, worker.pod))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    def _lose(self, node: Object) -> None:
        for worker in list(self._workers.values()):
            if worker.pod["spec"]["nodeName"] == node["metadata"]["name"]:
                worker.end(0)
                worker.kill()

    async def _pull(self, pod: Object, name: str) -> None:
        node = pod["spec"]["nodeName"]
        key = (node, name)
        if key not in self._pulls:
            self._events.normal(pod, "Pulling", f'Pulling image "{name}"', "kubelet")
            seconds = self._configuration.images[name].pull_seconds
            self._pulls[key] = asyncio.create_task(asyncio.sleep(seconds))
            await asyncio.shield(self._pulls[key])
            self._events.normal(pod, "Pulled", f'Successfully pulled image "{name}" in {seconds:g}s', "kubelet")
            return
        await asyncio.shield(self._pulls[key])
        self._events.normal(pod, "Pulled", f'Container image "{name}" already present on machine', "kubelet")

    def _next_address(self) -> str:
        taken = {worker.address for worker in self._workers.values() if not worker.done}
        for _ in range(254):
            self._last_address = self._last_address % 254 + 1
            address = f"{self._prefix}.{self._last_address}"
            if address not in taken:
                return address
        raise RuntimeError("more than 254 pods run at once: the cluster is out of addresses")

    def _publish_names(self) -> None:
        pods, services = self._store.all("pods"), self._store.all("services")
        for worker in self._workers.values():
            if not worker.done and worker.hosts_file.exists():
                text = volumes.hosts_text(worker.pod, worker.address, pods, services)
                _rewrite(worker.hosts_file, text.encode())


def _rewrite(file: Path, content: bytes) -> None:
    """In place, for it is mounted; in one write and never shorter, for it is being read."""
    old = file.read_bytes()
    if old.rstrip(b"\n") == content.rstrip(b"\n"):
        return
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.pwrite(descriptor, content.ljust(len(old), b"\n"), 0)
    finally:
        os.close(descriptor)
