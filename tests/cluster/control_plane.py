"""Everything a cluster is, in one event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from cluster.admission import Admission
from cluster.config import Configuration
from cluster.events import Recorder
from cluster.garbage import Garbage
from cluster.jobs import JobController
from cluster.kubelet import Kubelet
from cluster.objects import RESOURCES
from cluster.queues import Queues
from cluster.scheduler import Scheduler
from cluster.server import TOKEN, Server
from cluster.store import Store


class ControlPlane:
    """The store, the API in front of it, and the controllers behind it."""

    def __init__(self, folder: Path, configuration: Configuration) -> None:
        self._folder = folder
        self._configuration = configuration
        self._runner: web.AppRunner | None = None
        self._server: Server | None = None
        self._controllers: list[asyncio.Future[None]] = []

    async def start(self) -> int:
        """Listen on a free port, write the kubeconfig, start the controllers; the port."""
        store = Store(self._configuration.history)
        queues = Queues(store, self._configuration.queues)
        admission = Admission(store, self._configuration, queues)
        events = Recorder(store)
        listener = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port: int = listener.sockets[0].getsockname()[1]
        listener.close()
        kubelet = Kubelet(store, events, self._configuration, self._folder, ("127.0.0.1", port))
        self._server = Server(store, admission, kubelet, queues)
        jobs = JobController(store, admission, events, self._configuration.job_backoff_seconds)
        parts = [kubelet.run(), Scheduler(store, events).run(), jobs.run(), queues.run(), Garbage(store).run()]
        running = [asyncio.create_task(part) for part in parts]
        self._controllers = [*running, kubelet.failed, self._server.failed]
        for name in self._configuration.namespaces:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            admission.create(RESOURCES["namespaces"], namespace, "")
        for node in self._configuration.nodes:
            admission.create(RESOURCES["nodes"], node.object(), "")
        self._runner = web.AppRunner(self._server.application(), access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        (self._folder / "kubeconfig").write_text(yaml.safe_dump(_kubeconfig(port)))
        return port

    async def run_until(self, stopped: asyncio.Event) -> None:
        """
        Run until told to stop. What runs in pods ends with this process.

        :raises BaseException: a controller failed
        """
        stopping = asyncio.create_task(stopped.wait())
        waited: list[asyncio.Future[Any]] = [stopping, *self._controllers]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        assert self._server is not None
        self._server.closing.set()
        for controller in self._controllers:
            if controller.done():
                controller.result()


def _kubeconfig(port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "stand-in",
        "clusters": [{"name": "stand-in", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
        "contexts": [{"name": "stand-in", "context": {"cluster": "stand-in", "user": "test", "namespace": "default"}}],
    }
