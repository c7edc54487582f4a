"""A Kubernetes API server that answers what the test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import yaml
from aiohttp import web

from mlops_provider.launchers.kubernetes.api import Api, open_api

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Use = Callable[[Api], Awaitable[None]]
Asked = Callable[[Handler, Use], None]


async def serve(kubeconfig: Path, handler: Handler, use: Use) -> None:
    """
    Serve by a handler while a coroutine uses the API.

    :param kubeconfig: written for the client, which must know that it is there
    """
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        async with open_api(None, "team", try_seconds=30.0) as api:
            await use(api)
    finally:
        await runner.cleanup()


def refusal(status: int, reason: str, message: str = "no") -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status}
    return web.json_response(body, status=status)
