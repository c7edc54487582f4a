"""What the start of a step's process takes: forked from a warm runtime, and as a new interpreter."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path
from statistics import median

import psutil

from benchmarks.record import Record, compare
from mlops.contract.step import python_path
from mlops.contract.warm import NotWarmError, Request, WarmConnection, WarmRuntime, end_all

ROUNDS = 15
START_SECONDS = 120.0
BOUND_MS = 50.0
PROGRAM = ["-c", "import time, mlops.trainer.loop, mlflow, mlops.steps.execution; print(time.process_time())"]
"""To the first line of its own, with what a training and its tracking import; the processor time it has taken."""


def measure_starts(home: Path) -> list[Record]:
    """In turn, as machines change by the minute."""
    python = str(home / ".venv/training/bin/python")
    environment = {**os.environ, "PYTHONPATH": python_path(home)}
    runtime = WarmRuntime(
        python=python, module="mlops.preload", home=str(home), environment=environment, idle_seconds=60.0
    )
    connection = _connected(runtime)
    try:
        _warm(connection, home, environment)  # the first fork of a process copies more than the others
        _cold(python, home, environment)
        pairs = [(_warm(connection, home, environment), _cold(python, home, environment)) for _ in range(ROUNDS)]
    finally:
        connection.close()
        end_all(str(home))
    wall, wall_cold = (median(each[side][0] for each in pairs) for side in (0, 1))
    cpu, cpu_cold = (median(each[side][1] for each in pairs) for side in (0, 1))
    return [
        compare(
            "pipeline.step_start_warm", unit="ms", ours=wall, baseline="bound", baseline_value=BOUND_MS, target=1.0
        ),
        compare(
            "pipeline.step_start_warm_vs_cold",
            unit="ms",
            ours=wall,
            baseline="a new interpreter",
            baseline_value=wall_cold,
            target=0.05,
        ),
        compare(
            "pipeline.step_start_warm_cpu_vs_cold",
            unit="CPU ms",
            ours=cpu,
            baseline="a new interpreter",
            baseline_value=cpu_cold,
            target=0.05,
        ),
    ]


def _connected(runtime: WarmRuntime) -> WarmConnection:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(NotWarmError):
            return runtime.connect()
        time.sleep(0.2)
    return runtime.connect()


def _warm(connection: WarmConnection, home: Path, environment: dict[str, str]) -> tuple[float, float]:
    """:return: wall and processor milliseconds, the server's included"""
    server = psutil.Process(connection.pid)
    before = server.cpu_times()
    begin = time.monotonic()
    output, its_end = os.pipe()
    child = connection.fork(Request(program=PROGRAM, environment=environment, folder=str(home)), its_end)
    os.close(its_end)
    with open(output) as lines:
        own = float(lines.readline())
        wall = time.monotonic() - begin
    child.wait()
    after = server.cpu_times()
    return 1000 * wall, 1000 * (own + after.user - before.user + after.system - before.system)


def _cold(python: str, home: Path, environment: dict[str, str]) -> tuple[float, float]:
    begin = time.monotonic()
    with subprocess.Popen([python, *PROGRAM], env=environment, cwd=home, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        own = float(process.stdout.readline())
        wall = time.monotonic() - begin
    return 1000 * wall, 1000 * own
