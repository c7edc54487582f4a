"""Airflow's REST API, as far as following a run needs it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import httpx

from mlops.client.calls import REQUEST_SECONDS
from mlops.contract.rest import FINISHED, RunProgress, TrainingProgress, Verdict

FOLDS: Final = ("::group::", "::endgroup::")
"""Begin lines of a log by which Airflow's pages fold the others."""
HERE: Final = ("127.0.0.1", "localhost")
"""This machine, to which no proxy leads."""
PAGE = 100
"""Airflow gives no more at once."""
_PROGRESS_SECONDS = 5.0
"""Who asks why waits no longer for what is beside the question."""


class AirflowClient:
    """
    :param url: root of the API server, e.g. ``http://127.0.0.1:8080``
    :param login: user name and password; None where everybody is admin
    """

    def __init__(self, url: str, login: tuple[str, str] | None = None) -> None:
        self.url = url
        # httpx would take a proxy that the environment names for this machine, too.
        is_here = httpx.URL(url).host in HERE
        self._http = httpx.Client(base_url=url, timeout=REQUEST_SECONDS, trust_env=not is_here)
        if login is None:
            response = self._http.get("/auth/token")
        else:
            response = self._http.post("/auth/token", json={"username": login[0], "password": login[1]})
        token = response.raise_for_status().json()["access_token"]
        self.authorization = f"Bearer {token}"
        """Value of the HTTP header of that name."""
        self._http.headers["Authorization"] = self.authorization

    def request(self, method: str, path: str, **kwargs: Any) -> Any:
        """:raises httpx.HTTPStatusError: with Airflow's own words"""
        response = self._http.request(method, f"/api/v2{path}", **kwargs)
        if response.is_error:
            raise httpx.HTTPStatusError(
                f"{method} {path}: {response.status_code} {response.text[:500]}",
                request=response.request,
                response=response,
            )
        return response.json() if response.content else None

    def every(self, path: str, kind: str, **params: Any) -> list[dict[str, Any]]:
        """
        Return all items of a collection that Airflow gives by pages.

        :param kind: name of the list in an answer
        """
        found: list[dict[str, Any]] = []
        while True:
            page = self.request("GET", path, params={**params, "limit": PAGE, "offset": len(found)})
            found += page[kind]
            if not page[kind] or len(found) >= page["total_entries"]:
                return found

    def wait_for_dag(self, dag_id: str, timeout_seconds: float = 600) -> None:
        """Until the DAG processor has read it."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                self.request("GET", f"/dags/{dag_id}")
                return
            except httpx.HTTPStatusError:
                if time.monotonic() > deadline:
                    errors = self.request("GET", "/importErrors")["import_errors"]
                    raise TimeoutError(f"Airflow has no DAG {dag_id!r}; import errors: {errors}") from None
                time.sleep(0.3)

    def unpause(self, dag_id: str) -> None:
        self.request("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def trigger(
        self, dag_id: str, run_id: str, logical_date: datetime | None, conf: Mapping[str, Any] | None = None
    ) -> None:
        """Start a run as the trigger form does; ``conf`` holds the parameters that differ from their defaults."""
        body = {
            "dag_run_id": run_id,
            "logical_date": logical_date.isoformat() if logical_date else None,
            "conf": dict(conf or {}),
        }
        self.request("POST", f"/dags/{dag_id}/dagRuns", json=body)

    def run(self, dag_id: str, run_id: str) -> dict[str, Any] | None:
        """The run, or None where there is none of that id."""
        try:
            found: dict[str, Any] = self.request("GET", run_place(dag_id, run_id))
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:
                return None
            raise
        return found

    def verdict(self, dag_id: str, run_id: str) -> Verdict | None:
        """What came of a pipeline's own run, and what to do; None where the run is another's, or may not be read."""
        found = self._told(dag_id, run_id, "verdict")
        return None if found is None else Verdict.model_validate(found)

    def progress(self, dag_id: str, run_id: str) -> list[TrainingProgress]:
        """
        How far the trainings of a run are that go on.

        :raises httpx.HTTPError: where MLflow cannot be asked, or does not answer soon
        :raises ValueError: where something else answers
        """
        found = self._told(dag_id, run_id, "progress", timeout=_PROGRESS_SECONDS)
        return [] if found is None else RunProgress.model_validate(found).trainings

    def _told(self, dag_id: str, run_id: str, what: str, **options: Any) -> Any:
        """What our own REST tells of a run; None where there is nothing, or nothing that may be read."""
        run = quote(f"{dag_id}@{run_id}", safe="@")
        response = self._http.get(f"/mlops/api/v1/runs/{run}/{what}", **options)
        return None if response.status_code == httpx.codes.NOT_FOUND else response.raise_for_status().json()

    def run_of(self, dag_id: str, logical_date: datetime) -> dict[str, Any] | None:
        """The run of that logical date: Airflow has at most one."""
        limits = {"logical_date_gte": logical_date.isoformat(), "logical_date_lte": logical_date.isoformat()}
        runs = self.request("GET", f"/dags/{dag_id}/dagRuns", params=limits)["dag_runs"]
        return runs[0] if runs else None

    def clear_run(self, dag_id: str, run_id: str) -> None:
        """Have every task of the run executed again."""
        self.request("POST", f"{run_place(dag_id, run_id)}/clear", json={"dry_run": False})

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Have one task of a run executed again, also while it is running."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.request("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """The task instances of a run by task id; of a mapped task any one."""
        return {task["task_id"]: task for task in self.task_instances(dag_id, run_id)}

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """All of a run; of a mapped task each by its ``map_index``."""
        return self.every(f"{run_place(dag_id, run_id)}/taskInstances", "task_instances")

    def question(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """The form of a task that waits for a person's answer."""
        return dict(self.request("GET", _form(dag_id, run_id, task_id)))

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str, fields: Mapping[str, Any]) -> None:
        """
        Press a button of that form.

        :param option: the button's first word: ``Approve`` or ``Reject``; what it is about follows
        :param fields: what is filled in
        """
        options = self.question(dag_id, run_id, task_id)["options"]
        chosen = next((found for found in options if found.split()[0] == option), option)
        body = {"chosen_options": [chosen], "params_input": dict(fields)}
        self.request("PATCH", _form(dag_id, run_id, task_id), json=body)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """The value, or None."""
        path = f"{run_place(dag_id, run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        try:
            return self.request("GET", path, params={"deserialize": "true", "map_index": map_index})["value"]
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:
                return None
            raise

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1) -> str:
        """The task's log as text."""
        entries = self.log_entries(dag_id, run_id, task_id, try_number, map_index)
        return "\n".join(str(entry.get("event", "")) for entry in entries)

    def log_entries(
        self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1
    ) -> list[dict[str, Any]]:
        """The lines of the task's log, each with its ``event`` and what else was noted with it."""
        path = f"{run_place(dag_id, run_id)}/taskInstances/{task_id}/logs/{try_number}"
        content = self.request("GET", path, params={"full_content": "true", "map_index": map_index})["content"]
        return [{"event": line} if isinstance(line, str) else line for line in content]

    def variable(self, key: str) -> str | None:
        """The value of a variable, or None where there is none of that name."""
        try:
            return str(self.request("GET", f"/variables/{key}")["value"])
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:
                return None
            raise

    def set_variable(self, key: str, value: str, description: str) -> None:
        """Make a variable, or change it."""
        body = {"key": key, "value": value, "description": description}
        if self.variable(key) is None:
            self.request("POST", "/variables", json=body)
        else:
            self.request("PATCH", f"/variables/{key}", json=body)

    def wait(self, dag_id: str, run_id: str, timeout_seconds: float) -> str:
        """Until the run ended; its state."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            run = self.run(dag_id, run_id)
            if run and run["state"] in FINISHED:
                return str(run["state"])
            time.sleep(0.3)
        states = {name: task["state"] for name, task in self.tasks(dag_id, run_id).items()}
        raise TimeoutError(f"{dag_id} {run_id} is not finished after {timeout_seconds:.0f} s: {states}")


def without_proxy(environment: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """
    Return the variables that keep a proxy of an environment away from this machine.

    :param hosts: more names that it has
    """
    known = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    named = known if known == "*" else ",".join(dict.fromkeys([*filter(None, [known]), *HERE, *hosts]))
    return {"NO_PROXY": named, "no_proxy": named}


def run_place(dag_id: str, run_id: str) -> str:
    """Where Airflow's API has a run, below ``/api/v2``."""
    return f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"


def _form(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{run_place(dag_id, run_id)}/taskInstances/{task_id}/-1/hitlDetails"
