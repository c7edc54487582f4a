"""Why a run of Airflow failed, waits, or put nothing into production: in sentences, with the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from mlops.contract.refs import ModelVersionRef, ReportRef
from mlops.contract.rest import FINISHED, cancelled_by
from mlops_provider.exceptions import is_lost
from mlops_provider.links import report_url
from mlops_provider.local.client import FOLDS, AirflowClient
from mlops_provider.local.stack import StackError
from mlops_provider.operator_keys import EVALUATES, FAILURE_KEY, NEWS, NEWS_KEY, PROMOTES
from mlops_provider.progress import how_far
from mlops_provider.verdicts.happened import is_of_tasks

_AT_WORK = frozenset({"running", "queued", "scheduled", "deferred", "restarting"})
_MOST_LINES = 20
"""Of a log, where a task left no other word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    dag_id: str
    run_id: str
    state: str
    sentences: list[str]


def explain(client: AirflowClient, dag_id: str, run_id: str | None) -> Explained:
    """
    :param run_id: the run; the newest where None
    :raises StackError: where there is no such DAG or run
    """
    try:
        dag = client.request("GET", f"/dags/{dag_id}")
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.NOT_FOUND:
            raise
        raise StackError(
            f"Airflow at {client.url} has no DAG {dag_id!r}: see its import errors, or mlops lint"
        ) from error
    if run_id is None:
        newest = client.request("GET", f"/dags/{dag_id}/dagRuns", params={"order_by": "-id", "limit": 1})
        found = newest["dag_runs"]
        run = found[0] if found else None
    else:
        run = client.run(dag_id, run_id)
    if run is None:
        paused = "; it is paused: unpause it" if dag["is_paused"] else ""
        raise StackError(f"{dag_id} has no run{f' {run_id!r}' if run_id else ' yet'}{paused}")
    sentences = list(_Run(client, dag, run).sentences())
    if run["state"] == "running":
        sentences += _progress(client, dag_id, run["dag_run_id"])
    verdict = client.verdict(dag_id, run["dag_run_id"]) if run["state"] in FINISHED else None
    if verdict is not None:
        # That a run took too long, or that somebody ended it, no task of it says.
        is_said = run["state"] != "failed" or is_of_tasks(verdict.happened) or verdict.happened in sentences
        sentences = [*([] if is_said else [verdict.happened]), *sentences, *verdict.sentences]
    return Explained(dag_id=dag_id, run_id=run["dag_run_id"], state=run["state"], sentences=sentences)


def _progress(client: AirflowClient, dag_id: str, run_id: str) -> list[str]:
    try:
        return [f"{how_far(each)}." for each in client.progress(dag_id, run_id)]
    except (httpx.HTTPError, ValueError) as error:  # the rest of what is known is to be said
        return [f"How far its trainings are cannot be read: {error}"]


class _Run:
    def __init__(self, client: AirflowClient, dag: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        self._client, self._dag, self._run = client, dag, run
        self._ids = dag["dag_id"], run["dag_run_id"]
        instances = client.task_instances(*self._ids)
        self._tasks = sorted(instances, key=lambda task: (task["start_date"] is None, task["start_date"] or ""))

    def sentences(self) -> Iterator[str]:
        if self._run["state"] == "queued" and not any(task["state"] for task in self._tasks):
            is_paused = self._dag["is_paused"]
            why = "the DAG is paused: unpause it" if is_paused else "another run of the DAG may be under way"
            yield f"It has not begun: {why}."
            return
        cancelled = cancelled_by(self._run["note"]) if self._run["state"] == "failed" else None
        if cancelled is not None:
            yield f"It was {cancelled}."
        for task in self._tasks:
            match task["state"]:
                case "failed" if cancelled is None or not is_lost(self._failure(task)):
                    yield from self._failed(task)
                case "up_for_retry":
                    message, _ = self._said(task)
                    yield f"{_name(task)} failed at try {task['try_number']} and is tried again: {message}"
                case "awaiting_input":
                    question = self._client.question(*self._ids, task["task_id"])
                    yield f"{_name(task)} waits for a person's answer: {question['subject']}"
                case state if state in _AT_WORK:
                    yield f"{_name(task)} is {state}, try {task['try_number']}."
        yield from self._verdict()

    def _failed(self, task: Mapping[str, Any]) -> Iterator[str]:
        tries = "" if task["try_number"] <= 1 else f" at try {task['try_number']}"
        message, report = self._said(task)
        if report is not None:
            message = message.replace(report, self._address(report))
        yield f"{_name(task)} failed{tries}: {message}"

    def _failure(self, task: Mapping[str, Any]) -> Any:
        """What a task has said of why it failed; None where it has not."""
        return self._client.xcom(*self._ids, task["task_id"], FAILURE_KEY, task["map_index"])

    def _said(self, task: Mapping[str, Any]) -> tuple[str, str | None]:
        """
        Why a task failed, in the step's own words, or else by the end of its log.

        :return: the message, and the report's key where there is one
        """
        failure = self._failure(task)
        if failure is not None:
            return failure["message"], failure["details"].get("report")
        events = (str(entry.get("event", "")) for entry in self._log(task))
        lines = [event for event in events if event.strip() and not event.startswith(FOLDS)]
        return "\n".join(lines[-_MOST_LINES:]) or "its log is empty", None

    def _verdict(self) -> Iterator[str]:
        """What became of the model."""
        for task in self._tasks:
            operator, state = task["operator_name"], task["state"]
            if operator == EVALUATES and state == "success":
                report = ReportRef.from_wire(self._client.xcom(*self._ids, task["task_id"]))
                yield f"The evaluation {'passed' if report.passed else 'did not pass'}: {report.reason}"
                if (page := report.artifacts.get("report")) is not None:
                    yield f"Report: {self._address(page.key)}"
            elif operator == PROMOTES and state == "success":
                version = ModelVersionRef.from_wire(self._client.xcom(*self._ids, task["task_id"]))
                yield f"Version {version.version} of {version.name} was put into production."
            elif state == "skipped" and (reason := self._news(task)):
                yield f"{_name(task)} was skipped, and what follows it: {reason}"

    def _news(self, task: Mapping[str, Any]) -> Any:
        """Why a task skipped itself; None where an earlier one did, and Airflow skipped it with that."""
        said = self._client.xcom(*self._ids, task["task_id"], NEWS_KEY)
        return said.get(NEWS) if isinstance(said, dict) else None

    def _log(self, task: Mapping[str, Any]) -> list[dict[str, Any]]:
        return self._client.log_entries(*self._ids, task["task_id"], task["try_number"], task["map_index"])

    def _address(self, report: str) -> str:
        return f"{self._client.url}{report_url(report)}"


def _name(task: Mapping[str, Any]) -> str:
    return str(task["task_id"]) + (f"[{task['map_index']}]" if task["map_index"] != -1 else "")
