"""Addresses of Airflow's pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow.sdk.configuration import conf


def base_url() -> str:
    """Return the address of Airflow, ``[api] base_url``, without a slash at its end."""
    url: str = conf.get("api", "base_url", fallback="http://localhost:8080")
    return url.rstrip("/")


def route_of(scope: Mapping[str, Any]) -> str:
    """
    Return the path of a request below the prefix of Airflow's address, which a proxy may have taken off already.

    :param scope: of ASGI
    """
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def run_page(dag_id: str, run_id: str) -> str:
    """Return the address of a run's page, relative to Airflow's. Its id may have any letters, for people choose it."""
    return f"{dag_page(dag_id)}/runs/{quote(run_id, safe='')}"


def task_page(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """Return the address of a task instance's page, relative to Airflow's."""
    mapped = "" if map_index == -1 else f"/mapped/{map_index}"
    return f"{run_page(dag_id, run_id)}/tasks/{quote(task_id, safe='')}{mapped}"


def form_page(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """Return the address of the form in which people answer a task's question, relative to Airflow's."""
    return f"{task_page(dag_id, run_id, task_id, map_index)}/required_actions"


def curves_page(dag_id: str, run_id: str) -> str:
    """Return the address of our page of a run, relative to Airflow's."""
    return f"/plugin/mlops-tonight/{quote(f'{dag_id}@{run_id}', safe='')}"


def dag_page(dag_id: str) -> str:
    """Return the address of a DAG's page, relative to Airflow's."""
    return f"/dags/{quote(dag_id, safe='')}"
