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
OTHER = UUID("0198d2a4-6b0e-7c3f-8a51-2f9d3c4b5e6f")
"""A task instance."""
KEYS = ("xcoms/{d}/{r}/{t}", "variables", "hitlDetails")
"""What Airflow takes paths below."""


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


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(f"/execution/xcoms/d/r/t/x/execution/hitlDetails/{OTHER}", id="key of an XCom"),
        pytest.param(f"/execution/variables/execution/hitlDetails/{OTHER}", id="key of a variable"),
        pytest.param(f"/execution/hitlDetails/{OTHER}", id="an answer about another task"),
    ],
)
async def test_a_task_rewrites_no_form_but_its_own(written: Any, path: str) -> None:
    """Broken: any task that may write XComs shows the approvers of another pipeline a question of its choice."""

    async def accept(request: Request) -> JSONResponse:
        assert await request.json() == SECOND
        return JSONResponse({**FIRST, "ti_id": str(uuid4())}, 201)

    routes = [Route(f"/execution/{each}/{{key:path}}", accept, methods=["POST"]) for each in KEYS]
    assert await _post(Starlette(routes=routes), written, path) == 201
    assert not written


@pytest.mark.anyio
@pytest.mark.parametrize("prefix", ["", "/airflow"], ids=["taken off by a proxy", "in the path"])
async def test_below_a_prefix_of_airflows_address_the_form_is_made_anew(written: Any, prefix: str) -> None:
    """Broken: where Airflow's base_url has a path, an approval whose question changes fails for good."""

    async def upsert(request: Request) -> JSONResponse:
        assert await request.json() == SECOND
        return JSONResponse({**FIRST, "ti_id": request.path_params["ti"]}, 201)

    routes = [Route("/execution/hitlDetails/{ti}", upsert, methods=["POST"])]
    path = f"{prefix}/execution/hitlDetails/{OTHER}"
    assert await _post(Starlette(routes=routes), written, path, root_path="/airflow") == 201
    assert written == [(OTHER, SECOND)]


async def _post(airflow: Starlette, written: Any, path: str, root_path: str = "") -> int:
    """Ask another question; the status of the answer."""
    app: Any = FreshForms(airflow, lambda ti, question: written.append((ti, question)))
    transport = httpx.ASGITransport(app, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
        return (await client.post(path, json=SECOND)).status_code
