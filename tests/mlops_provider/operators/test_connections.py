"""What the ingest operator hands to the step's process of Airflow's connections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG

from mlops_provider.connections import connection_environment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.operators.ingest import IngestOperator
from mlops_provider.step import connection_variable


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG(dag_id="shop", schedule=None, start_date=datetime(2024, 1, 1)) as dag:
        yield dag


def operator(**connections: str) -> IngestOperator:
    sources: dict[str, Any] = {
        name: {"kind": "sql", "connection": connection, "query": "SELECT 1"} for name, connection in connections.items()
    }
    return IngestOperator(task_id="ingest", sources={"files": {"path": "x.csv"}, **sources}, event_time="at")


@pytest.mark.usefixtures("dag")
def test_a_connection_travels_by_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the document it would be kept, shown, and part of the run key: a rotated password would redo every night."""
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "postgres://trainer:s3cret%2Fword@db.example:5433/shop?sslmode=require")
    ingest = operator(orders="shop_db", users="shop_db")
    environment = connection_environment(ingest.connections(ingest.settings))
    assert json.loads(environment.pop(connection_variable("shop_db"))) == {
        "conn_type": "postgres",
        "host": "db.example",
        "port": 5433,
        "login": "trainer",
        "password": "s3cret/word",
        "schema": "shop",
        "extra": {"sslmode": "require"},
    }
    assert not environment
    assert "s3cret" not in json.dumps(ingest.settings), "what the run key and the document are made of"


@pytest.mark.usefixtures("dag")
def test_a_connection_that_is_not_there_fails_at_once() -> None:
    """No retry adds a connection."""
    ingest = operator(orders="nowhere")
    with pytest.raises(StepFailedError, match=r"ingest.sources.orders.connection: Airflow has no connection 'nowhere'"):
        connection_environment(ingest.connections(ingest.settings))


@pytest.mark.usefixtures("dag")
def test_two_connections_of_one_variable_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One would get the other's password."""
    for name in ("shop-db", "shop_db"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", "postgres://x@y")
    ingest = operator(orders="shop-db", users="shop_db")
    with pytest.raises(StepFailedError, match="'shop_db' and 'shop-db' differ only in case or punctuation"):
        connection_environment(ingest.connections(ingest.settings))
