"""What a task does while MLflow or the store is away: real servers that are taken away and come back."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
import services
from busy_server import busy_server
from tracking_server import Server

from mlops.contract.section import SpecError
from mlops_provider.committed import open_store
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepOutageError
from mlops_provider.operators.champion import champion_of
from mlops_provider.patience import Patience, store_errors


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


class Task:
    """What a task's user sees."""

    def __init__(self, deployment: Deployment, patience: timedelta = timedelta(minutes=5)) -> None:
        self.log: list[str] = []
        self.shown: list[str | None] = []
        deployment = dataclasses.replace(deployment, infrastructure_patience=patience)
        self.patience = Patience(deployment, self.log.append, self.shown.append)


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mlflow: Server) -> Deployment:
    monkeypatch.setenv("AIRFLOW__MLOPS__TRACKING_URI", mlflow.uri)
    monkeypatch.setenv("AIRFLOW__MLOPS__STORE", f"file://{tmp_path}")
    return Deployment.load()


@pytest.mark.server
def test_work_goes_on_when_mlflow_is_back(deployment: Deployment, mlflow: Server) -> None:
    """Broken: an hour without MLflow would use up the retries of every task of the night."""
    task = Task(deployment)
    mlflow.kill()
    back = threading.Timer(3, mlflow.start)
    back.start()
    assert task.patience.with_work(lambda: champion_of("m", task.patience.deployment)) is None
    back.join()
    assert task.patience.waited > 3
    begin, *between, end = task.log
    assert "waiting for MLflow, up to 5 min" in begin
    assert mlflow.uri in begin
    assert not between, "said once, not at each look"
    assert "MLflow answers again" in end
    assert len(task.shown) == 2
    assert mlflow.uri in (task.shown[0] or "")
    assert task.shown[1] is None


@pytest.mark.server
def test_the_patience_ends(deployment: Deployment) -> None:
    """Broken: a wrong address would hold the task for ever."""
    task = Task(dataclasses.replace(deployment, tracking_uri="http://127.0.0.1:9"), timedelta(seconds=3))
    begin = time.monotonic()
    with pytest.raises(StepOutageError, match="127.0.0.1:9 cannot be reached"):
        task.patience.with_work(lambda: champion_of("m", task.patience.deployment))
    assert 3 <= time.monotonic() - begin < 60
    assert "still away" in task.log[-1]
    assert task.shown[-1] is None


@pytest.mark.server
def test_a_refusal_is_told_at_once(deployment: Deployment) -> None:
    """Broken: six hours would pass before anybody hears that a password is wrong."""
    with busy_server() as server:
        server.status = 403
        task = Task(dataclasses.replace(deployment, tracking_uri=server.url))
        with pytest.raises(StepFailedError, match="403"):
            task.patience.with_work(lambda: champion_of("m", task.patience.deployment))
        assert server.num_refused == 1
    assert task.patience.waited == 0
    assert not task.log


@pytest.mark.server
def test_a_busy_store_is_waited_for(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a store that asks for patience (503) would use up retries."""
    with services.s3_server() as settings, busy_server(int(settings["AWS_ENDPOINT_URL"].rpartition(":")[2])) as server:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        uri = "s3://bucket/prefix"
        task = Task(dataclasses.replace(deployment, store=uri))
        tries = []

        def work() -> bytes:
            tries.append(time.monotonic())
            with store_errors(uri, "the test cannot write"):
                store = open_store(uri, retry=False)
                obstore.put(store, "key", b"data")
                return bytes(obstore.get(store, "key").bytes())

        server.status = 503
        threading.Timer(4, lambda: setattr(server, "status", None)).start()
        assert task.patience.with_work(work) == b"data"
        assert len(tries) == 2, "while it was away only a look was taken"
    assert "waiting for the store" in task.log[0]


@pytest.mark.parametrize("text", ["6", "six hours", "-1h", ""])
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("AIRFLOW__MLOPS__INFRASTRUCTURE_PATIENCE", text)
    with pytest.raises(SpecError, match="infrastructure_patience is"):
        Deployment.load()
