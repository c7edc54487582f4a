"""Airflow's API server on SQLite: its requests write one after the other."""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlops.contract.addresses import API_PREFIX
from mlops_provider.airflow_pages import route_of

READS = frozenset({"GET", "HEAD", "OPTIONS"})


class OneWriter:
    """
    ASGI middleware: of the requests that may write, one at a time.

    Airflow notes an action on the event loop, and commits there. While another request's transaction is open, which
    this very loop would have to end, SQLite lets the loop wait until its timeout is over: no page, no heartbeat and
    no task's word gets through, and then a request fails with "database is locked". SQLite has one writer at a time in
    any case.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READS or _asks_airflow(scope):
            await self._app(scope, receive, send)
            return
        # Whole before its turn: a sender that stops in the middle keeps nobody waiting.
        body = deque([await receive()])
        while body[-1].get("more_body"):
            body.append(await receive())

        async def receive_again() -> Message:
            return body.popleft() if body else await receive()

        async with self._turn:
            await self._app(scope, receive_again, send)


def _asks_airflow(scope: Scope) -> bool:
    """Tell a request of our own API: what it writes are requests to this same app, which have turns of their own."""
    return route_of(scope).startswith(f"{API_PREFIX}/")
