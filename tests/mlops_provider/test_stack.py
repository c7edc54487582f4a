"""The local deployment: its files, and how it is reached."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from mlops_provider.local import stack as local_stack
from mlops_provider.local.client import AirflowClient
from mlops_provider.local.parts import write_whole
from mlops_provider.local.stack import Stack


@pytest.mark.parametrize("left", ["", '{"pid": 1', "[1]", "\0\0"], ids=["empty", "half", "another", "zeros"])
def test_a_file_that_was_cut_short_is_none(tmp_path: Path, left: str) -> None:
    """Broken: after a full disk `make up`, `make down` and `make clean` would all fail for a JSONDecodeError."""
    stack = Stack(home=tmp_path, root=tmp_path / ".local")
    (stack.root / "run").mkdir(parents=True)
    for name in ("run/scheduler.json", "secrets.json"):
        (stack.root / name).write_text(left)
    assert stack.parts.process("scheduler") is None
    assert stack.parts.members("scheduler") == []
    key = stack.environment()["AIRFLOW__API__SECRET_KEY"]
    assert len(key) == 64
    assert stack.environment()["AIRFLOW__API__SECRET_KEY"] == key, "it is kept"
    stack.stop()
    assert not (stack.root / "run/scheduler.json").exists()


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a full disk would empty what the stack is found again by."""
    path = tmp_path / "note.json"
    write_whole(path, "before")
    assert path.stat().st_mode & 0o777 == 0o600

    def full(descriptor: int, mode: str) -> None:
        os.close(descriptor)
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "after")
    assert path.read_text() == "before"


class Says(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"access_token": "token"}')

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of this machine, where the environment names a proxy that leads nowhere."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Says) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_this_machine_is_reached_by_no_proxy(server: str) -> None:
    """Broken: behind a company's proxy `make up` would wait ten minutes, and say that nothing answers."""
    with pytest.raises(httpx.HTTPError):
        httpx.get(server)
    assert local_stack._answers(server)
    assert AirflowClient(server).authorization == "Bearer token"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "127.0.0.1,localhost,10.0.0.7"),
        ({"NO_PROXY": "intranet,.corp"}, "intranet,.corp,127.0.0.1,localhost,10.0.0.7"),
        ({"NO_PROXY": "intranet", "no_proxy": "here"}, "here,127.0.0.1,localhost,10.0.0.7"),
        ({"no_proxy": "*"}, "*"),
    ],
    ids=["none", "one", "both", "all"],
)
def test_its_processes_reach_each_other_by_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str
) -> None:
    """Broken: Airflow's tasks would ask the proxy for Airflow and MLflow, and fail."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    stack = Stack(home=tmp_path, root=tmp_path / ".local", mlflow_host="10.0.0.7")
    for environment in (stack._process_environment(), stack._mlflow_environment()):
        assert (environment["NO_PROXY"], environment["no_proxy"]) == (expected, expected)
