"""
Every step is struck in the middle: its process killed, its task cleared, all of Airflow killed. Afterwards the run
completes, there is one model version, and at no moment was anything half-written readable.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from live_airflow import LiveAirflow
from project import REPOSITORY

from mlops_provider.step import LINE

STEP_SECONDS = 120.0
SEEDS = range(int(os.environ.get("CHAOS_ROUNDS", "1")))
"""Each strikes at other moments: one here, more in ``make chaos``."""
SOME = LINE if "CHAOS_ROUNDS" in os.environ else ("train",)
"""Steps that are struck where each strike takes long."""
PAUSES = {"ingest": 2.0, "features": 2.0, "train": 2.0, "evaluate": 2.0}
"""How long the recipe holds a step, so that it is struck at work and not while it loads its libraries."""


@pytest.fixture
def airflow(new_airflow: Callable[[], LiveAirflow]) -> Iterator[LiveAirflow]:
    airflow = new_airflow()
    yield airflow
    airflow.stack.stop()
    assert not any(step_processes(airflow, step) for step in LINE), "a step outlived Airflow"


def step_processes(airflow: LiveAirflow, step: str) -> list[psutil.Process]:
    """The processes of a step's current try: one, or torchrun and its workers."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        environment = process.info["environ"] or {}
        if any(f"/mlops-{step}-" in part for part in process.info["cmdline"] or []) and environment.get(
            "MLOPS_HOME"
        ) == str(airflow.home):
            found.append(process)
    return found


def wait_for_step(airflow: LiveAirflow, step: str, chance: random.Random) -> list[psutil.Process]:
    """Until the step has been at work for a random while."""
    deadline = time.monotonic() + STEP_SECONDS
    while not step_processes(airflow, step):
        assert time.monotonic() < deadline, f"{step} did not start"
        time.sleep(0.02)
    # The light steps live for half a second, of which a third is Python's own start.
    time.sleep(chance.uniform(0.5, 2.5) if step in PAUSES else chance.uniform(0.05, 0.3))
    return step_processes(airflow, step)


@contextmanager
def watched_store(airflow: LiveAirflow) -> Iterator[None]:
    """Nothing that a ref names may be missing or damaged, at any moment."""
    airflow.stack.store.mkdir(parents=True, exist_ok=True)
    watch = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "tests/store_watch.py"), str(airflow.stack.store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield
    finally:
        output, _ = watch.communicate(timeout=60)
    seen = json.loads(output)
    assert seen["problems"] == []
    assert seen["num_refs"] == len(LINE)
    assert seen["rounds"] > 20


def run_struck(
    airflow: LiveAirflow,
    strike: Callable[[str, list[psutil.Process]], None],
    seed: int,
    steps: Sequence[str] = LINE,
) -> None:
    """Trigger a night, strike the steps once each, and look at what the user has in the end."""
    chance = random.Random(seed)
    for step, seconds in PAUSES.items():
        airflow.hold(step, seconds)
    with watched_store(airflow):
        run_id = airflow.trigger(10)
        for step in steps:
            strike(step, wait_for_step(airflow, step, chance))
        assert airflow.client.wait("events", run_id, STEP_SECONDS) == "success", airflow.states(run_id)
    assert [version["version"] for version in airflow.model_versions()] == ["1"]
    assert len(airflow.training_runs()) == 1, "a retry goes on with its MLflow run"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_step_process_killed(airflow: LiveAirflow, seed: int) -> None:
    chance = random.Random(seed)
    struck: list[str] = []

    def kill(step: str, processes: list[psutil.Process]) -> None:
        if processes:  # in training any of torchrun and its workers
            victim = chance.choice(processes)
            victim.send_signal(signal.SIGKILL)
            struck.append(step)

    run_struck(airflow, kill, seed)
    assert set(struck) >= set(PAUSES), "the steps that the recipe holds cannot be missed"


@pytest.mark.parametrize("seed", SEEDS)
def test_tasks_cleared_while_they_run(airflow: LiveAirflow, seed: int) -> None:
    def clear(step: str, processes: list[psutil.Process]) -> None:
        airflow.client.clear_task("events", "night_10", step)
        psutil.wait_procs(processes, timeout=30)
        assert not any(process.is_running() for process in processes), "the cleared task's process goes on"

    run_struck(airflow, clear, seed, SOME)


@pytest.mark.timeout(600)  # Airflow starts anew for each step
@pytest.mark.parametrize("seed", SEEDS)
def test_whole_airflow_killed_in_the_middle_of_a_step(airflow: LiveAirflow, seed: int) -> None:
    def crash(step: str, processes: list[psutil.Process]) -> None:
        airflow.stack.kill_airflow()
        psutil.wait_procs(processes, timeout=10)
        assert not any(process.is_running() for process in processes), "a step outlived Airflow"
        airflow.start()

    run_struck(airflow, crash, seed, SOME)


def test_duplicate_run_of_a_night_finds_everything_done(airflow: LiveAirflow) -> None:
    """Deleting a run and starting the night again must not train again, nor register a second version."""
    run_id = airflow.trigger(10)
    assert airflow.client.wait("events", run_id, STEP_SECONDS) == "success"
    before = snapshot_of(airflow.stack.store)
    airflow.client.request("DELETE", f"/dags/events/dagRuns/{run_id}")
    airflow.client.trigger("events", "again", airflow.night(10))
    assert airflow.client.wait("events", "again", STEP_SECONDS) == "success"
    airflow.client.clear_run("events", "again")
    time.sleep(1)
    assert airflow.client.wait("events", "again", STEP_SECONDS) == "success"
    assert snapshot_of(airflow.stack.store) == before
    assert [version["version"] for version in airflow.model_versions()] == ["1"]
    assert len(airflow.training_runs()) == 1


def snapshot_of(store: Path) -> dict[str, tuple[int, int]]:
    """Every object's inode and size: an object that is written again has another inode."""
    files = (path for path in store.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.stat().st_size) for path in files}
