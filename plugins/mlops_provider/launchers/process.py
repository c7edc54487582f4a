"""Run a step as a local child process in its runtime's virtual environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from mlops_provider import processes
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch, Outcome, step_argv, threads
from mlops_provider.step import (
    GRACE_VARIABLE,
    HOME_VARIABLE,
    PARENT_VARIABLE,
    RESULT_PATH_VARIABLE,
    STORE_VARIABLE,
    read_result,
)

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL; below the 5 s after which Airflow's supervisor kills the task itself."""


class ProcessLauncher:
    """
    Implements :class:`mlops_provider.launchers.base.Launcher`.

    :param deployment: where the runtimes, the store and the MLflow server are
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._process: subprocess.Popen[str] | None = None

    def run(self, launch: Launch, on_line: Callable[[str], None]) -> Outcome:
        python = self.deployment.pythons[launch.runtime]
        if not python.exists():
            raise FileNotFoundError(
                f"the {launch.runtime} runtime has no interpreter at {python}: run `make venv`, or set "
                f"[mlops] {launch.runtime}_python in Airflow's configuration"
            )
        with tempfile.TemporaryDirectory(prefix=f"mlops-{launch.input.step}-") as folder:
            document, result = Path(folder, "input.json"), Path(folder, "result.json")
            document.write_text(launch.input.dump())
            argv = step_argv(
                str(python),
                str(document),
                launch.processes,
                nodes=launch.nodes,
                max_restarts=launch.max_restarts,
                hang_seconds=launch.hang_seconds,
            )
            self._process = process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd=self.deployment.home,
                env=step_environment(self.deployment, result, os.environ)
                | threads(launch.processes, launch.nodes)
                | dict(launch.environment),
                start_new_session=True,
            )
            assert process.stdout is not None
            lost: list[Exception] = []
            reader = threading.Thread(target=_forward, args=(process.stdout, on_line, lost), daemon=True)
            reader.start()
            try:
                process.wait()
            finally:
                # Also where an exception ends the wait (a timeout): nothing of the step outlives its task.
                self.cancel()
                reader.join(timeout=GRACE_SECONDS)
                # A daemon of the user's code may hold the pipe open: closing it under the reader would wait for that.
                if not reader.is_alive():
                    process.stdout.close()
                self._process = None
            if lost:  # a retry finds what the step committed
                raise lost[0]
            return Outcome(result=read_result(result), status=_describe(process.returncode))

    def cancel(self) -> None:
        process = self._process
        if process is None:
            return
        # torchrun gives each worker a session of its own, so the process group alone would miss them.
        tree = processes.tree(process.pid)
        if process.poll() is None:
            process.terminate()
            tree = [*processes.wait_ended(tree, GRACE_SECONDS), *processes.tree(process.pid)]
        processes.kill(tree)
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(process.pid, signal.SIGKILL)


def runtime_environment(deployment: Deployment, environment: Mapping[str, str]) -> dict[str, str]:
    """
    The child's environment: the worker's, without Airflow's own settings (they hold its secrets), plus the places.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith(("AIRFLOW_", "_AIRFLOW_"))}
    return kept | {
        "PYTHONPATH": f"{deployment.home}{os.pathsep}{deployment.home / 'plugins'}",
        "MLFLOW_TRACKING_URI": deployment.tracking_uri,
        HOME_VARIABLE: str(deployment.home),
        STORE_VARIABLE: deployment.store,
    }


def step_environment(deployment: Deployment, result: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Of a runtime's process that runs a step."""
    return runtime_environment(deployment, environment) | {
        "PYTHONUNBUFFERED": "1",
        RESULT_PATH_VARIABLE: str(result),
        PARENT_VARIABLE: str(os.getpid()),
        # A little less, so that torchrun can still say how they ended.
        GRACE_VARIABLE: str(GRACE_SECONDS - 0.5),
    }


def _forward(stream: IO[str], on_line: Callable[[str], None], lost: list[Exception]) -> None:
    for line in stream:
        try:
            on_line(line.rstrip("\n"))
        except Exception as error:
            # Unread, the pipe would fill up and the step stand still for ever: read on, and say so in the end.
            lost.append(error)


def _describe(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    return f"killed by {signal.Signals(-returncode).name}"
