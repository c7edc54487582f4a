"""Why a run of Airflow failed, waits, or put nothing into production: in sentences, with the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from mlops.contract.refs import ModelVersionRef, RefError, ReportRef, ref_from_wire
from mlops_provider.links import report_url
from mlops_provider.local.client import AirflowClient
from mlops_provider.local.stack import StackError
from mlops_provider.operators.base import FAILURE_KEY

_AT_WORK = frozenset({"running", "queued", "scheduled", "deferred", "restarting"})
_MOST_LINES = 20
"""Of a log, where a task left no other word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    dag_id: str
    run_id: str
    state: str
    sentences: list[str]


def explain(client: AirflowClient, url: str, dag_id: str, run_id: str | None) -> Explained:
    """
    :param url: of Airflow, for addresses of reports
    :param run_id: the run; the newest where None
    :raises StackError: where there is no such DAG or run
    """
    try:
        dag = client.request("GET", f"/dags/{dag_id}")
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.NOT_FOUND:
            raise
        raise StackError(f"Airflow at {url} has no DAG {dag_id!r}: see its import errors, or mlops lint") from error
    if run_id is None:
        newest = client.request("GET", f"/dags/{dag_id}/dagRuns", params={"order_by": "-run_after", "limit": 1})
        found = newest["dag_runs"]
        run = found[0] if found else None
    else:
        run = client.run(dag_id, run_id)
    if run is None:
        paused = "; it is paused: unpause it" if dag["is_paused"] else ""
        raise StackError(f"{dag_id} has no run{f' {run_id!r}' if run_id else ' yet'}{paused}")
    return Explained(
        dag_id=dag_id,
        run_id=run["dag_run_id"],
        state=run["state"],
        sentences=list(_Run(client, url, dag, run).sentences()),
    )


class _Run:
    def __init__(self, client: AirflowClient, url: str, dag: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        self._client, self._url, self._dag, self._run = client, url, dag, run
        self._ids = dag["dag_id"], run["dag_run_id"]
        instances = client.task_instances(*self._ids)
        self._tasks = sorted(instances, key=lambda task: (task["start_date"] is None, task["start_date"] or ""))

    def sentences(self) -> Iterator[str]:
        if self._run["state"] == "queued" and not any(task["state"] for task in self._tasks):
            paused = ", for the DAG is paused: unpause it" if self._dag["is_paused"] else ""
            yield (
                f"It has not begun{paused}." if paused else "It has not begun: another run of the DAG may be under way."
            )
            return
        for task in self._tasks:
            match task["state"]:
                case "failed":
                    yield from self._failed(task)
                case "up_for_retry" | "up_for_reschedule":
                    yield f"{_name(task)} failed at try {task['try_number']} and is tried again: {self._message(task)}"
                case "awaiting_input":
                    question = self._client.question(*self._ids, task["task_id"])
                    yield f"{_name(task)} waits for a person's answer: {question['subject']}"
                case state if state in _AT_WORK:
                    yield f"{_name(task)} is {state}, try {task['try_number']}."
        yield from self._verdict()

    def _failed(self, task: Mapping[str, Any]) -> Iterator[str]:
        tries = "" if task["try_number"] <= 1 else f" at try {task['try_number']}"
        yield f"{_name(task)} failed{tries}: {self._message(task)}"
        failure = self._failure(task)
        if failure is not None and (report := failure["details"].get("report")) is not None:
            yield f"Report: {self._url}{report_url(report)}"

    def _failure(self, task: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the step said; None where it said nothing, and of a mapped task, whose messages are in its logs."""
        if task["map_index"] != -1:
            return None
        found: Mapping[str, Any] | None = self._client.xcom(*self._ids, task["task_id"], FAILURE_KEY)
        return found

    def _message(self, task: Mapping[str, Any]) -> str:
        failure = self._failure(task)
        if failure is not None:
            return str(failure["message"])
        log = self._client.log(*self._ids, task["task_id"], task["try_number"], task["map_index"])
        lines = [line for line in log.splitlines() if line.strip() and not line.startswith("::")]
        return "\n".join(lines[-_MOST_LINES:]) or "its log is empty"

    def _verdict(self) -> Iterator[str]:
        """What became of the model."""
        for task in self._tasks:
            if task["map_index"] != -1 or task["state"] not in ("success", "skipped"):
                continue
            wire = self._client.xcom(*self._ids, task["task_id"]) if task["state"] == "success" else None
            try:
                ref = ref_from_wire(wire) if isinstance(wire, Mapping) else None
            except (RefError, KeyError, TypeError):  # another task's own XCom
                continue
            if isinstance(ref, ReportRef):
                yield f"The evaluation {'passed' if ref.passed else 'did not pass'}: {ref.reason}"
                if (report := ref.artifacts.get("report")) is not None:
                    yield f"Report: {self._url}{report_url(report.key)}"
            elif isinstance(ref, ModelVersionRef) and task["operator_name"] == "PromoteOperator":
                yield f"Version {ref.version} of {ref.name} was put into production."
            elif task["state"] == "skipped" and task["operator_name"] in ("RegisterOperator", "ApproveOperator"):
                yield f"{_name(task)} was skipped, and what follows it: {self._last_line(task)}"
                return

    def _last_line(self, task: Mapping[str, Any]) -> str:
        return self._message(task).splitlines()[-1]


def _name(task: Mapping[str, Any]) -> str:
    return str(task["task_id"]) + (f"[{task['map_index']}]" if task["map_index"] != -1 else "")
