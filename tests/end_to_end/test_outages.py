"""MLflow and the store go away during a night, and come back: the night waits for them, and uses no try."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import psutil
import pytest
from busy_server import BusyServer, busy_server
from live_airflow import PIPELINE, LiveAirflow
from live_processes import is_alive
from releases import wait_for
from services import s3_server
from turns import on_turn

from mlops.contract.step import LINE
from mlops_provider.local.ports import is_free
from mlops_provider.local.stack import StackError
from mlops_provider.operators.runs import WAITING_FOR

NIGHT_SECONDS = 400.0
WITHOUT_MLFLOW = LINE[3:] if "CHAOS_ROUNDS" in os.environ else ("train", "register")
"""Steps that begin to work, or end, while MLflow is away."""


@pytest.fixture(scope="module")
def store() -> Iterator[BusyServer]:
    """An S3 server that can be made busy, for the deployment to find by its environment."""
    with (
        s3_server() as settings,
        busy_server(int(settings["AWS_ENDPOINT_URL"].rpartition(":")[2])) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in (settings | {"AWS_ENDPOINT_URL": server.url}).items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow], store: BusyServer) -> LiveAirflow:
    return new_airflow(settings={"AIRFLOW__MLOPS__STORE": "s3://bucket/mlops"})


def waiting_for(airflow: LiveAirflow, run_id: str, task_id: str) -> str | None:
    """What Airflow shows at the task."""
    path = f"/dags/{PIPELINE}/dagRuns/{run_id}/taskInstances/{task_id}/state-store"
    found = {each["key"]: each["value"] for each in airflow.client.request("GET", path)["task_state_store"]}
    return found.get(WAITING_FOR)


def tries(airflow: LiveAirflow, run_id: str) -> dict[str, int]:
    return {name: task["try_number"] for name, task in airflow.client.tasks(PIPELINE, run_id).items()}


def wait_until_waiting(airflow: LiveAirflow, run_id: str, task_id: str, service: str) -> None:
    wait_for(lambda: service in (waiting_for(airflow, run_id, task_id) or ""), f"{task_id} waits for {service}")


def wait_for_state(airflow: LiveAirflow, run_id: str, task_id: str, *states: str) -> None:
    def reached() -> bool:
        state = airflow.states(run_id).get(task_id)
        assert state not in ("failed", "up_for_retry", "upstream_failed"), (task_id, state)
        return state in states

    wait_for(reached, f"{task_id} is {' or '.join(states)}")


@on_turn(1, 2)
@pytest.mark.timeout(900)
def test_an_outage_of_mlflow_uses_no_try(airflow: LiveAirflow) -> None:
    """Broken: MLflow's hour of maintenance would end each night that is under way, and throw a training away."""
    run_id = airflow.trigger(10)
    for step in WITHOUT_MLFLOW:
        before = LINE[LINE.index(step) - 1]
        wait_for_state(airflow, run_id, before, "success")
        airflow.stack.kill("mlflow")
        wait_until_waiting(airflow, run_id, step, "MLflow")
        assert airflow.states(run_id)[step] == "running"
        airflow.start()
    assert airflow.client.wait(PIPELINE, run_id, NIGHT_SECONDS) == "success", airflow.states(run_id)
    assert set(tries(airflow, run_id).values()) == {1}
    for step in WITHOUT_MLFLOW:
        log = airflow.client.log(PIPELINE, run_id, step, 1)
        assert log.count("waiting for MLflow, up to 6 h") == 1
        assert "MLflow answers again" in log
        assert waiting_for(airflow, run_id, step) is None, "it does not wait any more"
    assert [version["version"] for version in airflow.model_versions()] == ["1"]
    assert len(airflow.training_runs()) == 1


@pytest.mark.timeout(900)
def test_a_busy_store_uses_no_try(airflow: LiveAirflow, store: BusyServer) -> None:
    """Broken: a store that asks everybody to slow down for some minutes would end all nights that are under way."""
    run_id = airflow.trigger(11)
    wait_for_state(airflow, run_id, "ingest", "success")
    store.status = 503
    wait_until_waiting(airflow, run_id, "validate", "the store")
    store.status = None
    assert airflow.client.wait(PIPELINE, run_id, NIGHT_SECONDS) == "success", airflow.states(run_id)
    # The model need not be better than the first night's: then it is not registered, nor promoted.
    assert set(tries(airflow, run_id).values()) <= {0, 1}
    assert store.num_refused > 1


def test_what_a_killed_mlflow_leaves_is_ended_and_other_programs_are_not(airflow: LiveAirflow) -> None:
    """Broken: `make up` would call its own server another program, or end another program for it."""
    server = airflow.stack.parts.process("mlflow")
    assert server is not None
    children = server.children(recursive=True)
    assert children, "it serves by a process of its own"
    server.kill()
    server.wait(60)
    other = psutil.Popen(["sleep", "600"], cwd=airflow.stack.root, start_new_session=True)
    try:
        airflow.start()
        assert not any(is_alive(child.pid) for child in children)
        assert other.is_running(), "of another session"
    finally:
        other.kill()
        other.wait()
    assert airflow.model_versions() is not None

    airflow.stack.kill("mlflow")
    wait_for(lambda: is_free(airflow.stack.mlflow_port), "the port is free")
    with busy_server(listen=airflow.stack.mlflow_port), pytest.raises(StackError, match="taken by another program"):
        airflow.start()
    airflow.start()
