"""A real MLflow server to take away and bring back, and what it then holds."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from services import TRAINING_PYTHON

from mlops_provider.local.ports import free_port

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Server:
    """A real MLflow server that can be frozen, killed, and started again on the same port and database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None:
            return
        command = [str(TRAINING_PYTHON), "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self.folder}/db"]
        command += ["--artifacts-destination", f"{self.folder}/artifacts", "--host", "127.0.0.1"]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port), "--workers", "1"],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        deadline = time.monotonic() + 120
        while not self._answers():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
            self._process = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                return True
        except OSError:
            return False


def history(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    """Step and value of all that is stored, by step."""
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run_id, name))
