"""Addresses of Airflow's pages."""

from __future__ import annotations

from urllib.parse import quote

from airflow.sdk.configuration import conf


def base_url() -> str:
    """Return the address of Airflow, ``[api] base_url``, without a slash at its end."""
    url: str = conf.get("api", "base_url", fallback="http://localhost:8080")
    return url.rstrip("/")


def run_page(dag_id: str, run_id: str) -> str:
    """Return the address of a run's page, relative to Airflow's. Its id may have any letters, for people choose it."""
    return f"{dag_page(dag_id)}/runs/{quote(run_id, safe='')}"


def dag_page(dag_id: str) -> str:
    """Return the address of a DAG's page, relative to Airflow's."""
    return f"/dags/{quote(dag_id, safe='')}"
