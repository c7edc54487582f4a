"""The whole REST API before an Airflow of dictionaries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from project import REPOSITORY

from mlops_provider.api.app import app
from mlops_provider.experiments.dags import _shown

NAME = "flight_ranking"
NIGHT = "scheduled__2013-02-09"


class World:
    """An Airflow that has the pipelines of this repository, and a night of one of them."""

    def __init__(self) -> None:
        self.state = "success"
        self.tasks = [self.task("evaluate", "EvaluateOperator"), self.task("approve", "ApproveOperator", "skipped")]
        self.xcoms: dict[str, Any] = {}
        self.triggered: list[dict[str, Any]] = []
        self.waiting: list[dict[str, Any]] = []
        """Experiments, as Airflow has them."""
        self.runs: dict[tuple[str, str], Any] = {(NAME, NIGHT): {}}
        """Their ``conf`` by DAG and run."""

    @staticmethod
    def task(task_id: str, operator: str, state: str = "success") -> dict[str, Any]:
        return {"task_id": task_id, "operator_name": operator, "state": state, "map_index": -1, "try_number": 1}

    def run(self, dag_id: str, run_id: str, state: str, conf: Any) -> dict[str, Any]:
        return {
            "dag_id": dag_id, "dag_run_id": run_id, "state": state, "conf": conf, "note": None,
            "triggering_user_name": "ana", **dict.fromkeys(("queued_at", "start_date", "end_date")),
        }  # fmt: skip

    @staticmethod
    def page(kind: str, every: list[dict[str, Any]], request: httpx.Request) -> dict[str, Any]:
        """Part of a collection: Airflow gives a hundred at most."""
        asked = request.url.params
        start, limit = int(asked.get("offset", 0)), min(int(asked.get("limit", 50)), 100)
        return {kind: every[start : start + limit], "total_entries": len(every)}

    def answer(self, request: httpx.Request) -> httpx.Response:
        found: Any = None
        match request.method, *request.url.path.removeprefix("/api/v2/").split("/"):
            case "GET", "dags", dag_id, "dagRuns" if dag_id in ("~", f"{NAME}.experiments"):
                if request.url.params.get("cursor"):
                    return httpx.Response(400, json={"detail": "Invalid cursor token"})
                found = self.page("dag_runs", self.waiting, request) | {"next_cursor": None}
            case "POST", "dags", dag_id, "dagRuns":
                self.triggered.append(json.loads(request.content))
                found = self.run(dag_id, self.triggered[-1]["dag_run_id"], "queued", self.triggered[-1]["conf"])
            case "GET", "dags", dag_id, "dagRuns", run_id if (dag_id, run_id) in self.runs:
                found = self.run(dag_id, run_id, self.state, self.runs[dag_id, run_id])
            case "GET", "dags", _, "dagRuns", _, "taskInstances":
                found = self.page("task_instances", self.tasks, request)
            case "GET", "dags", _, "dagRuns", _, "taskInstances", task_id, "xcomEntries", "return_value":
                found = {"value": self.xcoms[task_id]} if task_id in self.xcoms else None
            case "GET", "dags", dag_id, "tasks", _ if (file := self.file(dag_id)).exists():
                found = {"doc_md": _shown(file.read_text())}
            case "GET", "dags":
                found = {"dags": [{"dag_id": NAME}, {"dag_id": f"{NAME}.experiments"}], "total_entries": 2}
        return httpx.Response(404, json={"detail": "Not Found"}) if found is None else httpx.Response(200, json=found)

    @staticmethod
    def file(dag_id: str) -> Path:
        return REPOSITORY / "dags" / f"{dag_id.removesuffix('.experiments')}.pipeline.yaml"

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        """:return: status and answer; of an error its words"""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
                return await client.request(method, path, **({} if body is None else {"json": body}), **more)

        answer = asyncio.run(ask())
        return answer.status_code, answer.json() if answer.is_success else answer.json()["detail"]
