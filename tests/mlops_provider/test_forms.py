"""The form of an approval shows the question that its task asks, whatever it showed before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mlops_provider.forms import FreshForms

FIRST = {
    "subject": "Put version 1 of events into production?",
    "body": "Good.",
    "options": ["Approve version 1 (0123456789abcdef)", "Reject version 1 (0123456789abcdef)"],
    "defaults": ["Reject version 1 (0123456789abcdef)"],
    "assigned_users": [{"id": "vera", "name": "vera"}],
}
SECOND = json.loads(json.dumps(FIRST).replace("version 1", "version 2").replace("vera", "otto"))
OTHERS = {**FIRST, "options": ["Yes", "No"]}


@pytest.fixture
def written() -> list[tuple[UUID, Mapping[str, Any]]]:
    return []


@pytest.fixture
def ask(written: list[tuple[UUID, Mapping[str, Any]]]) -> Any:
    """Asks a question where Airflow has the form of an earlier one; what the task is answered."""

    async def run(
        shown: Mapping[str, Any], asked: Mapping[str, Any], status: int = 201, path: str = "hitlDetails"
    ) -> Any:
        async def upsert(request: Request) -> JSONResponse:
            assert await request.json() == asked, "Airflow gets the whole request"
            return JSONResponse({**shown, "ti_id": request.path_params["ti"]}, status)

        route = Route(f"/execution/{path}/{{ti}}", upsert, methods=["POST"])
        app = FreshForms(Starlette(routes=[route]), lambda ti, question: written.append((ti, question)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://airflow") as client:  # type: ignore[arg-type]
            return (await client.post(f"/execution/{path}/{uuid4()}", json=asked)).json()

    return run


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_another_question_replaces_the_form(ask: Any, written: Any) -> None:
    answer = await ask(FIRST, SECOND)
    assert {name: answer[name] for name in SECOND} == SECOND
    assert written == [(UUID(answer["ti_id"]), SECOND)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("shown", "asked", "status", "path"),
    [
        pytest.param(SECOND, SECOND, 201, "hitlDetails", id="the same question"),
        pytest.param(FIRST, OTHERS, 201, "hitlDetails", id="another operator's"),
        pytest.param(FIRST, SECOND, 403, "hitlDetails", id="refused by Airflow"),
        pytest.param(FIRST, SECOND, 201, "xcoms", id="another request"),
    ],
)
async def test_all_else_passes(ask: Any, written: Any, shown: Any, asked: Any, status: int, path: str) -> None:
    """Broken: who may not ask could change what approvers see."""
    answer = await ask(shown, asked, status, path)
    assert {name: answer[name] for name in shown} == shown
    assert not written
