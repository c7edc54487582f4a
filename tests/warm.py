"""Processes that start in hundredths of a second: forked from the checkout's own warm runtime, where that is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mlops.contract.step import python_path
from mlops.contract.warm import READ_AT_START, NotForkedError, NotWarmError, Request, WarmConnection, WarmRuntime

ROOT = Path(__file__).parents[1]
IDLE_SECONDS = 120.0


def run_warm(command: Sequence[Any], *, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """As :func:`subprocess.run` that captures the output as text. What ``env`` lacks is as this process has it."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = WarmProcess(command, env={**_environment(), **env}, output=output, errors=errors)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(command, code, *said)


def wait_until_warm(seconds: float = 120) -> None:
    """Until processes are forked from a warm runtime."""
    deadline = time.monotonic() + seconds
    with open(os.devnull, "wb") as nowhere:
        while not WarmProcess([sys.executable, "-c", "pass"], env=_environment(), output=nowhere).is_warm:
            assert time.monotonic() < deadline, "the warm runtime does not start"
            time.sleep(0.5)


class WarmProcess:
    """
    As :class:`subprocess.Popen`, of a Python program in a session of its own.

    It is a new interpreter where its environment says other things that are read at a start, and while the warm
    runtime, which all tests of a checkout share, imports.

    :param warm: False: in any case
    """

    def __init__(
        self,
        command: Sequence[Any],
        *,
        env: Mapping[str, str],
        output: IO[Any],
        errors: IO[Any] | None = None,
        warm: bool = True,
    ) -> None:
        assert command[0] == sys.executable
        self.args = list(command)
        self.returncode: int | None = None
        self._process: Any = None
        if warm and _read_at_start(env) == _read_at_start(_environment()):
            request = Request(program=[os.fspath(word) for word in command[1:]], environment=env, folder=os.getcwd())
            runtime = WarmRuntime(
                python=sys.executable,
                module="mlops.preload",
                home=str(ROOT),
                environment=env,
                idle_seconds=IDLE_SECONDS,
            )
            try:
                self._connection: WarmConnection = runtime.connect()  # closed with this object, which ends the process
                self._process = self._connection.fork(request, output.fileno(), errors.fileno() if errors else None)
            except (NotWarmError, NotForkedError):
                pass
        self.is_warm = self._process is not None
        if not self.is_warm:
            self._process = _Cold(command, env, output, errors)
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        self.returncode = self._process.exit_code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.returncode = self._process.wait(timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Cold:
    def __init__(self, command: Sequence[Any], env: Mapping[str, str], output: IO[Any], errors: IO[Any] | None) -> None:
        self._process = subprocess.Popen(
            command, env=env, stdout=output, stderr=errors or subprocess.STDOUT, start_new_session=True
        )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait(self, seconds: float | None) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


def _environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": python_path(ROOT), "OMP_NUM_THREADS": "1"}
