"""A real Airflow and a real MLflow server over a small project, as tests drive them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import httpx

from mlops_provider.local.client import AirflowClient
from mlops_provider.local.stack import Stack

PIPELINE = "events"


class LiveAirflow:
    """What the tests ask of the deployment, as a user or a program would: by its REST APIs."""

    def __init__(self, stack: Stack, login: tuple[str, str] | None = None, prefix: str = "") -> None:
        """:param prefix: of the address that people's browsers reach it at, as behind a proxy of several services"""
        self.stack = stack
        self.prefix = prefix
        self.login = login
        self.home = stack.home
        self._client: AirflowClient | None = None

    @property
    def client(self) -> AirflowClient:
        if self._client is None:
            self._client = AirflowClient(f"{self.stack.airflow_url}{self.prefix}", self.login)
        return self._client

    def start(self) -> None:
        """Start what does not run: all of it, or what a crash has taken."""
        for _ in self.stack.start():
            pass

    @staticmethod
    def night(day: int) -> datetime:
        return datetime(2024, 1, day, tzinfo=UTC)

    def trigger(self, day: int, dag_id: str = PIPELINE, conf: dict[str, Any] | None = None) -> str:
        """Start the night of 2024-01-``day``; its window ends with the day before."""
        run_id = f"night_{day}"
        self.client.wait_for_dag(dag_id)
        self.client.unpause(dag_id)
        self.client.trigger(dag_id, run_id, self.night(day), conf)
        return run_id

    def wait_for_try(self, run_id: str, task_id: str, number: int, timeout_seconds: float = 60) -> None:
        """Until a task of the pipeline is at its n-th try."""
        deadline = time.monotonic() + timeout_seconds
        while self.client.tasks(PIPELINE, run_id).get(task_id, {}).get("try_number", 0) < number:
            assert time.monotonic() < deadline, f"{task_id} did not get to try {number}"
            time.sleep(0.1)

    def wait_for_import_errors(self, number: int, timeout_seconds: float = 90) -> list[dict[str, Any]]:
        """Until Airflow shows that many."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            errors: list[dict[str, Any]] = self.client.request("GET", "/importErrors")["import_errors"]
            if len(errors) == number:
                return errors
            assert time.monotonic() < deadline, errors
            time.sleep(0.5)

    def states(self, run_id: str, dag_id: str = PIPELINE) -> dict[str, str]:
        return {name: task["state"] for name, task in self.client.tasks(dag_id, run_id).items()}

    def links(self, run_id: str, task_id: str, dag_id: str = PIPELINE) -> dict[str, str | None]:
        """What a task instance leads to, by name, as Airflow's pages show it."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links"
        return dict(self.client.request("GET", path)["extra_links"])

    def model_versions(self, model: str = PIPELINE) -> list[dict[str, Any]]:
        response = httpx.get(
            f"{self.stack.mlflow_url}/api/2.0/mlflow/model-versions/search",
            params={"filter": f"name='{model}'"},
            auth=self.stack.mlflow_admin,
        )
        return list(response.raise_for_status().json().get("model_versions", []))

    def aliases(self, model: str = PIPELINE) -> dict[str, str]:
        """Which version each alias names."""
        url = f"{self.stack.mlflow_url}/api/2.0/mlflow/registered-models/get"
        found = httpx.get(url, params={"name": model}, auth=self.stack.mlflow_admin)
        entries = found.raise_for_status().json()["registered_model"].get("aliases", [])
        return {entry["alias"]: str(entry["version"]) for entry in entries}

    def training_runs(self, pipeline: str = PIPELINE) -> list[dict[str, Any]]:
        api = f"{self.stack.mlflow_url}/api/2.0/mlflow"
        admin = self.stack.mlflow_admin
        found = httpx.get(f"{api}/experiments/get-by-name", params={"experiment_name": pipeline}, auth=admin)
        experiment = found.raise_for_status().json()["experiment"]["experiment_id"]
        runs = httpx.post(f"{api}/runs/search", json={"experiment_ids": [experiment]}, auth=admin)
        return list(runs.raise_for_status().json().get("runs", []))

    def hold(self, step: str, seconds: float) -> None:
        """Have the recipe's code pause in a step from now on."""
        folder = self.home / "pause"
        folder.mkdir(exist_ok=True)
        (folder / step).write_text(str(seconds))
