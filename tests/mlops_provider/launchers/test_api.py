"""The calls to the Kubernetes API, of a server that answers what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from scripted_api import Asked, refusal

from mlops_provider.launchers.kubernetes.api import EVENTS, JOBS, Api, ApiError

NUM_PODS = 120
"""More than the connections that the client has by its default."""
JOB = {"kind": "Job", "metadata": {"name": "step"}}


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


def test_a_line_without_end_does_not_fill_the_memory(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a tensor's numbers on one line hold up everything else that the triggerer does, for minutes."""
    monkeypatch.setattr("mlops_provider.launchers.kubernetes.api._LONGEST_LINE", 1000)
    written = b"one\n\n" + b"x" * 999 + b"\n" + b"y" * 1_000_000 + b"\nlast, without an end"

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(written), 777):
            await response.write(written[start : start + 777])
        return response

    async def use(api: Api) -> None:
        lines = [line async for line in api.log("pod", "step", None, follow=True)]
        assert lines[:3] == [b"one", b"", b"x" * 999]
        assert lines[3:] == [b"y" * 1000 + b" ... (999,000 more bytes)", b"last, without an end"]

    asked(answer, use)
