"""A person's terminal in a project: the command ``mlops``, as a process of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
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

    def typed(self, answers: Sequence[tuple[str, str]], *arguments: str) -> tuple[int, str]:
        """
        The same at a keyboard.

        :param answers: what is typed, without its Return, each after the text that it waits for
        :return: exit code, and all that stood on the screen
        """
        argv, environment = self.command(*arguments)
        pid, screen = pty.fork()
        if pid == 0:
            os.chdir(self.home)
            os.execve(argv[0], argv, environment)
        said, seen, waiting = b"", 0, list(answers)
        deadline = time.monotonic() + SECONDS
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while select.select([screen], [], [], max(0.0, deadline - time.monotonic()))[0]:
                if not (part := os.read(screen, 4096)):
                    break
                said += part
                while waiting and (at := said.find(waiting[0][0].encode(), seen)) >= 0:
                    seen = at + len(waiting[0][0])
                    os.write(screen, waiting.pop(0)[1].encode() + b"\n")
            else:
                os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(screen)
        return code, said.decode(errors="replace").replace("\r\n", "\n")
