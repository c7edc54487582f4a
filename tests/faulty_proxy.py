"""A proxy in front of a Kubernetes API server, that does to its clients what networks and busy servers do."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from kubernetes import config


@dataclass
class FaultyProxy:
    """``fault`` is one of ``""``, ``"500"``, ``"429"``, ``"silence"``, ``"refuse"``; ``cut`` ends what streams."""

    server: str
    tls: ssl.SSLContext | None = None
    """With the client's certificate, where the server wants one."""
    fault: str = ""
    refuses: Callable[[str, str, bytes], tuple[int, str, str] | None] = lambda method, path, body: None
    """Status, reason and message of the answer to a method, a path and a body; None: the server answers."""
    num_calls: int = 0
    kubeconfig: Path = field(init=False)
    _open: set[web.StreamResponse] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop | None = None

    def cut(self) -> None:
        """Every connection, in the middle of what it sends."""

        def close() -> None:
            for response in self._open:
                with suppress(Exception):
                    response._req.transport.abort()  # type: ignore[union-attr]

        assert self._loop is not None
        self._loop.call_soon_threadsafe(close)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.num_calls += 1
        if self.fault in ("500", "429"):
            status = {"kind": "Status", "reason": "ServiceUnavailable", "message": "busy", "code": int(self.fault)}
            return web.json_response(status, status=int(self.fault))
        if self.fault == "refuse":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if self.fault == "silence":
            await asyncio.sleep(3600)
        if refused := self.refuses(request.method, request.path, await request.read()):
            code, reason, message = refused
            status = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
            return web.json_response(status, status=code)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(
                timeout=timeout, auto_decompress=False, connector=aiohttp.TCPConnector(ssl=self.tls or True)
            ) as session,
            session.request(
                request.method, self.server + str(request.rel_url), headers=headers, data=await request.read()
            ) as answer,
        ):
            passed = ("Content-Type", "Content-Encoding")
            kept = {name: answer.headers[name] for name in passed if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            self._open.add(response)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            finally:
                self._open.discard(response)
            return response


@contextmanager
def faulty_proxy(kubeconfig: Path, folder: Path) -> Iterator[FaultyProxy]:
    """Between the cluster of a kubeconfig and whoever uses ``proxy.kubeconfig``."""
    settings: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    place = settings["clusters"][0]["cluster"]
    proxy = FaultyProxy(server=place["server"], tls=_tls(kubeconfig) if place["server"].startswith("https") else None)
    place.pop("certificate-authority-data", None)
    started = threading.Event()
    ports: list[int] = []
    ending: asyncio.Event = asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        ports.append(site._server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]
        proxy._loop = asyncio.get_running_loop()
        started.set()
        await ending.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(60)
    place["server"] = f"http://127.0.0.1:{ports[0]}"
    proxy.kubeconfig = folder / "proxy.kubeconfig"
    proxy.kubeconfig.write_text(yaml.safe_dump(settings))
    try:
        yield proxy
    finally:
        assert proxy._loop is not None
        proxy._loop.call_soon_threadsafe(ending.set)
        thread.join(60)


def _tls(kubeconfig: Path) -> ssl.SSLContext:
    """As the kubeconfig's user."""
    found = config.new_client_from_config(str(kubeconfig)).configuration
    context = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    return context
