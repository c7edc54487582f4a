"""What a step's process gets of Airflow's connections, and of the logins at MLflow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG

from mlops.contract.step import STEPS, connection_variable
from mlops_provider.connections import connection_environment, secret_environment
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.operators.ingest import IngestOperator


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


def deployment(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    for login in ("steps", "release", "reader"):
        monkeypatch.setenv(f"AIRFLOW__MLOPS__{login.upper()}_LOGIN", f"mlflow_{login}")
        monkeypatch.setenv(f"AIRFLOW_CONN_MLFLOW_{login.upper()}", f"http://{login}:password-of-{login}@mlflow")
    return Deployment.load()


def test_a_step_gets_the_login_of_its_purpose_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: code of a recipe could write registered models; or a step is refused by MLflow."""
    found = {step: secret_environment(step, {}, deployment(monkeypatch)) for step in STEPS}
    steps = {"MLFLOW_TRACKING_USERNAME": "steps", "MLFLOW_TRACKING_PASSWORD": "password-of-steps"}
    release = {"MLFLOW_TRACKING_USERNAME": "release", "MLFLOW_TRACKING_PASSWORD": "password-of-release"}
    assert found == {
        **{step: {} for step in ("ingest", "validate", "features", "predict")},
        **dict.fromkeys(("trial", "tune", "train", "evaluate"), steps),
        **dict.fromkeys(("register", "promote"), release),
    }


def test_a_deployment_without_logins_leaves_the_environment_alone() -> None:
    """Broken: an MLflow that asks for a token would be sent something else."""
    assert [secret_environment(step, {}, Deployment.load()) for step in STEPS] == [{}] * len(STEPS)


def test_a_login_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the step asks MLflow as nobody, and fails there after its work."""
    deployed = deployment(monkeypatch)
    monkeypatch.delenv("AIRFLOW_CONN_MLFLOW_STEPS")
    with pytest.raises(StepFailedError, match=r"\[mlops\] steps_login: Airflow has no connection 'mlflow_steps'"):
        secret_environment("train", {}, deployed)
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_STEPS", "http://steps@mlflow")
    with pytest.raises(StepFailedError, match="steps_login: connection 'mlflow_steps' has no user or no password"):
        secret_environment("train", {}, deployed)
