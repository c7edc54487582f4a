"""A person's terminal in a project: the command ``mlops``, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from project import REPOSITORY

SECONDS = 600


class Terminal:
    """
    :param home: the project
    :param store: folder of its store
    :param tracking: address of MLflow
    """

    def __init__(self, home: Path, store: Path, tracking: str) -> None:
        self.home, self.store, self.tracking = home, store, tracking

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment of the process."""
        places = {
            "AIRFLOW_HOME": str(self.store.parent / "airflow"),
            "AIRFLOW__MLOPS__STORE": f"file://{self.store}",
            "AIRFLOW__MLOPS__TRACKING_URI": self.tracking,
            "PYTHONPATH": f"{REPOSITORY}/plugins:{REPOSITORY}/training",
            "COLUMNS": "160",
        }
        word, *rest = arguments
        argv = [sys.executable, "-m", "mlops_provider.cli", word, *rest, "--home", str(self.home)]
        return argv, {**os.environ, **places}

    def mlops(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv, environment = self.command(*arguments)
        return subprocess.run(
            argv, env=environment, cwd=self.home, capture_output=True, text=True, check=False, timeout=SECONDS
        )  # fmt: skip
