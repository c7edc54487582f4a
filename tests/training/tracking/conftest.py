from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from tracking_server import Server

from mlops.tracking.run import TrackedRun, open_run


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mlflow-of-its-own"))
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def server(_server: Server) -> Server:
    """Running when a test begins."""
    _server.start()
    return _server


@pytest.fixture
def client(server: Server) -> MlflowClient:
    return MlflowClient(tracking_uri=server.uri)


@pytest.fixture
def attempt(server: Server, tmp_path: Path) -> Iterator[Callable[..., TrackedRun]]:
    """Opens the run of this test as one attempt does; those of one machine have one spool."""
    opened: list[TrackedRun] = []

    def begin(machine: str = "machine", **changes: Any) -> TrackedRun:
        settings = {"experiment": tmp_path.name, "run_key": "key", "name": "n", "params": {"a": 1}, "tags": {}}
        run = open_run(server.uri, **{**settings, "spool": tmp_path / machine, **changes})
        opened.append(run)
        return run

    yield begin
    for run in opened:
        run.close()
