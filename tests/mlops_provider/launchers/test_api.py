"""The calls to the Kubernetes API, of a server that answers what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from mlops_provider.launchers.kubernetes.api import EVENTS, JOBS, Api, ApiError, open_api

NUM_PODS = 120
"""More than the connections that the client has by its default."""
JOB = {"kind": "Job", "metadata": {"name": "step"}}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Use = Callable[[Api], Awaitable[None]]
Asked = Callable[[Handler, Use], None]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Serves by a handler while a coroutine uses the API."""
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def serve(handler: Handler, use: Use) -> None:
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

    return lambda handler, use: asyncio.run(serve(handler, use))


def refusal(status: int, reason: str, message: str = "no") -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status}
    return web.json_response(body, status=status)


def test_the_logs_of_many_pods_leave_connections_for_the_watches(asked: Asked) -> None:
    """Broken: of a gang of a hundred pods nobody sees the end, since each log that is followed is a connection."""
    num_open = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal num_open
        if not request.path.endswith("/log"):
            return web.json_response({"items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"2024-01-15T00:00:00Z at work\n")
        num_open += 1
        await asyncio.sleep(3600)
        return response

    async def use(api: Api) -> None:
        async def follow(number: int) -> None:
            async for _ in api.log(f"pod-{number}", "step", None, follow=True):
                pass

        logs = [asyncio.create_task(follow(number)) for number in range(NUM_PODS)]
        try:
            async with asyncio.timeout(8):  # the client itself waits 10 s for a connection
                while num_open < NUM_PODS:
                    await asyncio.sleep(0.05)
                await api.list(JOBS)
        finally:
            for log in logs:
                log.cancel()
            await asyncio.gather(*logs, return_exceptions=True)

    asked(answer, use)


@pytest.mark.parametrize(
    "call",
    [
        lambda api: api.workloads_ahead("queue", "uid"),
        lambda api: api.list(EVENTS, once=True),
        lambda api: api.patch(JOBS, "step", {}, once=True),
    ],
    ids=["place in the queue", "events", "note"],
)
def test_what_a_job_can_be_followed_without_is_asked_once(
    asked: Asked, call: Callable[[Api], Awaitable[object]]
) -> None:
    """Broken: the end of a Job is not seen for hours, since Kueue's visibility server, or a webhook, is away."""
    num_asked = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal num_asked
        num_asked += 1
        return refusal(503, "ServiceUnavailable")

    async def use(api: Api) -> None:
        with pytest.raises(ApiError, match="503"):
            await asyncio.wait_for(call(api), 10)

    asked(answer, use)
    assert num_asked == 1


def test_objects_that_others_make_at_the_same_moment_do_not_end_a_step(asked: Asked) -> None:
    """Broken: of a night's Jobs that start together one fails, whose quota others changed while it was reckoned."""
    answers = [
        refusal(409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "team"'),
        web.json_response(JOB, status=201),
        refusal(409, "AlreadyExists"),
    ]

    async def answer(request: web.Request) -> web.StreamResponse:
        return answers.pop(0)

    async def use(api: Api) -> None:
        assert await api.create(JOB) == JOB
        assert await api.create(JOB) is None

    asked(answer, use)
    assert answers == []


def test_a_conflict_of_what_is_deleted_is_not_tried_again(asked: Asked) -> None:
    """It has another uid: what was to be deleted is gone."""
    num_asked = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal num_asked
        num_asked += 1
        return refusal(409, "Conflict", "Precondition failed: UID in precondition")

    async def use(api: Api) -> None:
        await asyncio.wait_for(api.delete(JOBS, "step", "uid"), 10)

    asked(answer, use)
    assert num_asked == 1
