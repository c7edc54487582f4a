"""
A step as a child process of this one, in its runtime's virtual environment: standard library and psutil only, since it
also runs as another user (:mod:`mlops_provider.launchers.relay`), without Airflow.

A warm runtime forks it in hundredths of a second; where there is none, a new interpreter does the same.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Protocol

from mlops.contract.step import GRACE_VARIABLE, PARENT_VARIABLE, RESULT_PATH_VARIABLE, read_result
from mlops.contract.warm import NotForkedError, NotWarmError, Request, WarmConnection, WarmRuntime
from mlops_provider import processes
from mlops_provider.launchers.base import Outcome, step_argv
from mlops_provider.launchers.scratch import scratch_folder

logger = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL; below the 5 s after which Airflow's supervisor kills the task itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One step to run. As JSON it holds the secrets of the step, in its environment."""

    step: str
    document: str
    """The input, as JSON."""
    python: str
    home: str
    """The deployment's folder, in which it runs."""
    environment: Mapping[str, str] = field(repr=False)
    """All but what the process itself adds, see :func:`process_variables`."""
    module: str | None
    """What a warm runtime imports; None: a new interpreter."""
    warm_idle_seconds: float
    processes: int
    nodes: str
    max_restarts: int
    hang_seconds: float
    around: Sequence[str] = ()
    """Program that runs the step, and its arguments: a profiler, say. The step then starts in a new interpreter."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        return cls(**json.loads(text))


class ChildRun:
    """Runs one step after another; ``cancel`` may come from another thread, or from a signal handler."""

    def __init__(self) -> None:
        self._process: _Process | None = None

    def run(self, order: Order, on_line: Callable[[str], None]) -> Outcome:
        with scratch_folder(order.step) as folder:
            document, result = folder / "input.json", folder / "result.json"
            document.write_text(order.document)
            argv = [
                *order.around,
                *step_argv(
                    order.python,
                    str(document),
                    order.processes,
                    nodes=order.nodes,
                    max_restarts=order.max_restarts,
                    hang_seconds=order.hang_seconds,
                ),
            ]
            # The order's own go first: a step may not be told that its parent is another one.
            environment = {**order.environment, **process_variables(result)}
            if order.around:  # that is the parent, and has no number yet
                del environment[PARENT_VARIABLE]
            self._process = process = _start(order, argv, environment)
            lost: list[Exception] = []
            reader = threading.Thread(target=_forward, args=(process.output, on_line, lost), daemon=True)
            reader.start()
            try:
                code = process.wait()
            finally:
                # Also where an exception ends the wait (a timeout): nothing of the step outlives its task.
                self.cancel()
                reader.join(timeout=GRACE_SECONDS)
                # A daemon of the user's code may hold the pipe open: closing it under the reader would wait for that.
                if not reader.is_alive():
                    process.output.close()
                process.close()
                self._process = None
            if lost:  # a retry finds what the step committed
                raise lost[0]
            return Outcome(result=read_result(result), status=describe(code))

    def cancel(self) -> None:
        process = self._process
        if process is None:
            return
        # torchrun gives each worker a session of its own, so the process group alone would miss them.
        tree = processes.tree(process.pid)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(process.pid, signal.SIGTERM)
            tree = [*processes.wait_ended(tree, GRACE_SECONDS), *processes.tree(process.pid)]
        processes.kill(tree)
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(process.pid, signal.SIGKILL)


def process_variables(result: Path) -> dict[str, str]:
    """
    What a step's process is told by the process that starts it.

    :param result: where it writes how it ended
    """
    return {
        "PYTHONUNBUFFERED": "1",
        RESULT_PATH_VARIABLE: str(result),
        PARENT_VARIABLE: str(os.getpid()),
        # A little less, so that torchrun can still say how they ended.
        GRACE_VARIABLE: str(GRACE_SECONDS - 0.5),
    }


def _start(order: Order, argv: Sequence[str], environment: Mapping[str, str]) -> _Process:
    home = Path(order.home)
    if order.module is None or order.around:
        return _Cold(argv, environment, home)
    warm = WarmRuntime(
        python=argv[0],
        module=order.module,
        home=order.home,
        environment=environment,
        idle_seconds=order.warm_idle_seconds,
    )
    try:
        return _Warm(argv, environment, home, warm.connect())
    except (NotWarmError, NotForkedError) as reason:
        logger.info("the step starts in a new interpreter: %s", reason)
        return _Cold(argv, environment, home)


class _Process(Protocol):
    """
    A started step: leader of a session of its own, with ``/dev/null`` as input and one pipe for all that it says.

    :ivar pid: of the process
    :ivar output: the pipe, as text
    """

    pid: int
    output: IO[str]

    def poll(self) -> int | None:
        """Return the process's exit code, or minus the signal that killed it; None while it runs."""

    def wait(self) -> int: ...

    def close(self) -> None:
        """Called when it has ended."""


class _Cold:
    """A new interpreter."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.output: IO[str] = self._process.stdout

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait()

    def close(self) -> None:
        return


class _Warm:
    """A fork of the warm runtime, which kills it when the connection ends: with this process, however that ends."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, connection: WarmConnection
    ) -> None:
        self._connection = connection
        # It is the warm runtime's child, and ends with it.
        whole = {**environment, PARENT_VARIABLE: str(connection.pid)}
        output, its_end = os.pipe()
        try:
            request = Request(program=argv[1:], environment=whole, folder=str(folder))
            self._process = connection.fork(request, its_end)
        except BaseException:
            os.close(output)
            connection.close()
            raise
        finally:
            os.close(its_end)
        self.pid = self._process.pid
        self.output: IO[str] = open(output, errors="replace")  # noqa: SIM115

    def poll(self) -> int | None:
        return self._process.exit_code

    def wait(self) -> int:
        code = self._process.wait()
        assert code is not None, "without a limit it waits for the end"
        return code

    def close(self) -> None:
        self._connection.close()


def _forward(stream: IO[str], on_line: Callable[[str], None], lost: list[Exception]) -> None:
    for line in stream:
        try:
            on_line(line.rstrip("\n"))
        except Exception as error:
            # Unread, the pipe would fill up and the step stand still for ever: read on, and say so in the end.
            lost.append(error)


def describe(returncode: int) -> str:
    """How a process ended."""
    if returncode >= 0:
        return f"exit code {returncode}"
    return f"killed by {signal.Signals(-returncode).name}"
