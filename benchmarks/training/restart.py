"""
From the SIGKILL of a worker to the next optimizer step, beside the sum of what a process cannot do without: its start,
``import torch`` and loading the checkpoint.

The train step runs as its launcher runs it; its loss, which belongs to the recipe, notes when it is called.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import Record, compare
from benchmarks.training.programs.servers import mlflow_server
from mlops.contract.refs import ref_from_wire
from mlops.contract.section import check_section
from mlops.contract.step import RunIdentity, StepInput, python_path
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import step_argv
from mlops_provider.launchers.process import step_environment
from mlops_provider.spec import SECTIONS

KILLS = 3
PROCESSES = 2
WAIT_SECONDS = 120.0
CALLS_OF_A_STEP = 3
"""A process's first call of the loss settles DDP's buckets, the second begins a step, the third comes after it."""
SETTLED_CALLS = 150
"""Of a process before it is killed: it has checkpoints of its own by then."""
TARGET = 1.0
CALLS_VARIABLE = "BENCHMARK_CALLS"

RECIPE = f"""
import os
import time

from torch import nn
from torch.nn import functional


def build_model(config):
    first, second = nn.Linear(config.num_features, config.hidden), nn.Linear(config.hidden, config.hidden)
    return nn.Sequential(first, nn.GELU(), second, nn.GELU(), nn.Linear(config.hidden, 1), nn.Flatten(-2))


def loss(model, batch):
    with open(os.environ["{CALLS_VARIABLE}"], "a") as file:
        file.write(f"{{os.getpid()}} {{os.environ.get('RANK', '0')}} {{time.time()}}\\n")
    return functional.binary_cross_entropy_with_logits(model(batch.features), batch.labels, reduction="none")
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Of the loss."""

    pid: int
    rank: int
    unix_time: float


def measure(home: Path, scratch: Path, environment: Mapping[str, str]) -> list[Record]:
    folder = scratch / "restart"
    recipe = folder / "home/include/restart"
    recipe.mkdir(parents=True)
    (recipe / "model.py").write_text(RECIPE)
    python = home / ".venv/training/bin/python"

    def part(*arguments: str | Path) -> Any:
        program = [python, "-m", "benchmarks.training.programs.restart_parts", *arguments]
        finished = subprocess.run(
            program, cwd=home, env=dict(environment), stdout=subprocess.PIPE, text=True, check=True
        )
        return json.loads(finished.stdout.splitlines()[-1])

    features = ref_from_wire(part("features", folder / "store"))
    with mlflow_server(folder, python) as port:
        deployment = Deployment(
            home=folder / "home",
            store=f"file://{folder}/store",
            tracking_uri=f"http://127.0.0.1:{port}",
            tracking_url=f"http://127.0.0.1:{port}",
            pythons={"training": python},
        )
        document = StepInput(step="train", run=IDENTITY, config=settings(), ref=features)
        with started(home, deployment, document, folder) as calls:
            seconds = [kill(calls) for _ in range(KILLS)]
    # Each in a fresh process; the step is over, and leaves them the machine.
    parts = [sum(part("parts", folder / "store", document.place).values()) for _ in range(KILLS)]
    return [
        compare(
            "training.kill_to_next_step",
            unit="s",
            ours=statistics.median(seconds),
            baseline="process start, import torch and load, one after the other",
            baseline_value=statistics.median(parts),
            target=TARGET,
        )
    ]


IDENTITY = RunIdentity(
    pipeline="restart",
    run_key="20240301T000000Z-000000000000",
    interval_start="2024-02-29T00:00:00+00:00",
    interval_end="2024-03-01T00:00:00+00:00",
    timezone="UTC",
    dag_id="restart",
    task_id="train",
    run_id="benchmark",
    try_number=1,
)


def settings() -> dict[str, Any]:
    given = {
        "model": "include.restart.model:build_model",
        "model_args": {"hidden": 1024},
        "loss": "include.restart.model:loss",
        "objective": "binary",
        "metric": "auc",
        "epochs": 10_000,
        "global_batch": 64,
        "processes": PROCESSES,
        "max_restarts": KILLS,
        "checkpoint": {"every_steps": 50},
    }
    section: dict[str, Any] = check_section(SECTIONS["train"], given, "train").model_dump(mode="json")
    return section


@contextmanager
def started(
    home: Path, deployment: Deployment, document: StepInput, folder: Path
) -> Iterator[Callable[[], Sequence[Call]]]:
    """The step's processes; what yields the calls of its loss so far."""
    input_path, calls = folder / "input.json", folder / "calls.txt"
    input_path.write_text(document.dump())
    calls.touch()
    python = str(deployment.pythons["training"])
    argv = step_argv(
        python, str(input_path), PROCESSES, max_restarts=KILLS, hang_seconds=document.config["hang_seconds"]
    )  # fmt: skip
    variables = step_environment(deployment, folder / "result.json", os.environ)
    # The recipe lies in a home of its own, the library in the repository.
    path = python_path(home)
    variables |= {CALLS_VARIABLE: str(calls), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(argv, cwd=home, env=variables, stdout=log, stderr=log)

    def read() -> Sequence[Call]:
        if process.poll() is not None:
            raise RuntimeError(f"the train step ended:\n{(folder / 'log.txt').read_text()[-3000:]}")
        return read_calls(calls.read_text())

    try:
        yield read
    finally:
        process.terminate()  # it takes its workers with it
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def read_calls(text: str) -> list[Call]:
    """Every whole line; the last one may still be being written."""
    whole = text[: text.rfind("\n") + 1]
    fields = (line.split() for line in whole.splitlines())
    return [Call(pid=int(pid), rank=int(rank), unix_time=float(moment)) for pid, rank, moment in fields]


def kill(calls: Callable[[], Sequence[Call]]) -> float:
    """Seconds from the SIGKILL of the last rank to the first step that all ranks of the next gang have done."""
    settled = wait_for(calls, lambda: nth_calls(calls(), set(), SETTLED_CALLS))
    before = {call.pid for call in calls()}
    victim = next(call for call in settled if call.rank == PROCESSES - 1)
    killed = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    after = wait_for(calls, lambda: nth_calls(calls(), before, CALLS_OF_A_STEP))
    return max(call.unix_time for call in after) - killed


def nth_calls(calls: Sequence[Call], without: set[int], number: int) -> list[Call]:
    """
    Of each of the newest processes its n-th call; none where one has not made it.

    :param without: processes that do not count
    """
    by_pid: dict[int, list[Call]] = {}
    for call in calls:
        if call.pid not in without:
            by_pid.setdefault(call.pid, []).append(call)
    newest = list(by_pid.values())[-PROCESSES:]
    if len(newest) < PROCESSES or {own[0].rank for own in newest} != set(range(PROCESSES)):
        return []
    return [own[number - 1] for own in newest] if all(len(own) >= number for own in newest) else []


def wait_for(calls: Callable[[], Sequence[Call]], found: Callable[[], list[Call]]) -> list[Call]:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (result := found()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the ranks made only {len(calls())} calls of the loss in {WAIT_SECONDS:.0f} s")
        time.sleep(0.02)
    return result
