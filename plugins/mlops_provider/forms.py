"""
Make the form of an approval anew when a task asks another question.

Airflow 3.3 keeps the human-in-the-loop form of an earlier try: where a task asks again, about another version, people
see the text, options and assignees of then (``execution_api/routes/hitl.py``). This middleware of the API server
watches such requests and, once Airflow has accepted one from the task, writes its question into the form. Where it
is not installed, as in a server that Airflow starts with ``--apps execution`` and without ``core``,
:class:`mlops_provider.operators.approve.ApproveOperator` notices and fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final
from uuid import UUID

from starlette.concurrency import run_in_threadpool

from mlops_provider.airflow_pages import route_of

_PATH: Final = re.compile(r"/execution/hitlDetails/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""The whole of it, from its root: a task writes XComs under keys of its choice, which stand at the end of a path and
may look like this one."""
_OPTION: Final = re.compile(r"Approve version \S+ \([0-9a-f]{16}\)")
"""The first option of our questions; other people's forms are left as Airflow has them."""
_FIELDS: Final = ("subject", "body", "options", "defaults", "assigned_users")
CREATED: Final = 201

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class FreshForms:
    """
    An ASGI middleware; every other request passes through untouched.

    :param app: what it wraps
    :param replace: writes a question into the form of a task instance
    """

    def __init__(self, app: App, replace: Callable[[UUID, Mapping[str, Any]], None] | None = None) -> None:
        self.app = app
        self.replace = replace or replace_question

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        is_question = scope["type"] == "http" and scope["method"] == "POST"
        found = _PATH.fullmatch(route_of(scope)) if is_question else None
        if found is None:
            await self.app(scope, receive, send)
            return
        request, answered = bytearray(), []

        async def listen() -> Message:
            message = await receive()
            request.extend(message.get("body", b""))
            return message

        async def hold(message: Message) -> None:
            answered.append(message)

        await self.app(scope, listen, hold)
        for message in await self._corrected(UUID(found[1]), bytes(request), answered):
            await send(message)

    async def _corrected(self, ti_id: UUID, request: bytes, answered: list[Message]) -> list[Message]:
        """The answer, with the form as it is then."""
        if not answered or answered[0].get("status") != CREATED:
            return answered
        asked = json.loads(request)
        shown = json.loads(b"".join(message.get("body", b"") for message in answered[1:]))
        options = asked.get("options") or [""]
        if (
            shown.get("ti_id") != str(ti_id)
            or not _OPTION.fullmatch(options[0])
            or all(asked.get(name) == shown.get(name) for name in _FIELDS)
        ):
            return answered
        await run_in_threadpool(self.replace, ti_id, asked)
        body = json.dumps({**shown, **{name: asked.get(name) for name in _FIELDS}}).encode()
        kept = [pair for pair in answered[0]["headers"] if pair[0].lower() != b"content-length"]
        start = {**answered[0], "headers": [*kept, (b"content-length", str(len(body)).encode())]}
        return [start, {"type": "http.response.body", "body": body}]


def replace_question(ti_id: UUID, asked: Mapping[str, Any]) -> None:
    """Write a question into the form of a task instance, unless somebody has answered it just now."""
    from airflow.models.hitl import HITLDetail
    from airflow.sdk.timezone import utcnow
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(HITLDetail).where(HITLDetail.ti_id == ti_id).with_for_update(of=HITLDetail)
        form = session.scalar(query)
        if form is None or form.response_received:
            return
        form.subject, form.body = asked["subject"], asked.get("body")
        form.options, form.defaults = asked["options"], asked.get("defaults")
        form.assignees = asked.get("assigned_users") or []
        form.created_at = utcnow()
