"""
Every step is struck in the middle: its process killed, its task cleared, all of Airflow killed. Afterwards the run
completes, there is one model version, and at no moment was anything half-written readable.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from live_airflow import LiveAirflow
from project import REPOSITORY
from strikes import step_processes, watched_store
from turns import on_turn

from mlops.contract.step import LINE

STEP_SECONDS = 240.0
SEEDS = range(int(os.environ.get("CHAOS_ROUNDS", "1")))
"""Each strikes at other moments: one here, more in ``make chaos``."""
SOME = LINE if "CHAOS_ROUNDS" in os.environ else ("train",)
"""Steps that are struck where each strike takes long."""
PAUSES = {"ingest": 2.0, "features": 2.0, "train": 2.0, "evaluate": 2.0}
"""How long the recipe holds a step, so that it is struck at work and not while it loads its libraries."""


KILLED, CLEARED, CRASHED, AGAIN = "killed", "cleared", "crashed", "again"


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow], tmp_path_factory: pytest.TempPathFactory) -> LiveAirflow:
    """With a pipeline of its own for each test, of the same recipe."""
    folder = tmp_path_factory.mktemp("pipelines")
    text = (REPOSITORY / "tests/fixtures/events/events.pipeline.yaml").read_text()
    names = [AGAIN, *(f"{what}_{seed}" for what in (KILLED, CLEARED, CRASHED) for seed in SEEDS)]
    for name in names:
        changed = text.replace("pipeline: events", f"pipeline: {name}")
        changed = changed.replace("registered_model: events", f"registered_model: {name}")
        (folder / f"{name}.pipeline.yaml").write_text(changed)
    return new_airflow(dags=sorted(folder.iterdir()))


@pytest.fixture(autouse=True)
def nothing_is_left(airflow: LiveAirflow) -> Iterator[None]:
    yield
    assert not any(step_processes(airflow, step) for step in LINE), "a step outlived its run"


def wait_for_step(airflow: LiveAirflow, pipeline: str, step: str, chance: random.Random) -> list[psutil.Process]:
    """Until the step has been at work for a random while, or, one that is not held, has ended unseen."""
    deadline = time.monotonic() + STEP_SECONDS
    while not step_processes(airflow, step):
        assert time.monotonic() < deadline, f"{step} did not start"
        if step not in PAUSES and airflow.states("night_10", pipeline).get(step) == "success":
            return []
        time.sleep(0.02)
    # The light steps live for a few tenths of a second.
    time.sleep(chance.uniform(0.5, 2.5) if step in PAUSES else chance.uniform(0.05, 0.3))
    return step_processes(airflow, step)


def run_struck(
    airflow: LiveAirflow,
    pipeline: str,
    strike: Callable[[str, list[psutil.Process]], None],
    seed: int,
    steps: Sequence[str] = LINE,
) -> None:
    """Trigger a night, strike the steps once each, and look at what the user has in the end."""
    chance = random.Random(seed)
    for step, seconds in PAUSES.items():
        airflow.hold(step, seconds)
    with watched_store(airflow, len(LINE)):
        run_id = airflow.trigger(10, pipeline)
        for step in steps:
            strike(step, wait_for_step(airflow, pipeline, step, chance))
        assert airflow.client.wait(pipeline, run_id, STEP_SECONDS) == "success", airflow.states(run_id, pipeline)
    assert [version["version"] for version in airflow.model_versions(pipeline)] == ["1"]
    assert len(airflow.training_runs(pipeline)) == 1, "a retry goes on with its MLflow run"


@on_turn(0, 3)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_step_process_killed(airflow: LiveAirflow, seed: int) -> None:
    chance = random.Random(seed)
    struck: list[str] = []

    def kill(step: str, processes: list[psutil.Process]) -> None:
        if processes:  # in training any of torchrun and its workers
            victim = chance.choice(processes)
            victim.send_signal(signal.SIGKILL)
            struck.append(step)

    run_struck(airflow, f"{KILLED}_{seed}", kill, seed)
    assert set(struck) >= set(PAUSES), "the steps that the recipe holds cannot be missed"


@on_turn(1, 3)
@pytest.mark.parametrize("seed", SEEDS)
def test_tasks_cleared_while_they_run(airflow: LiveAirflow, seed: int) -> None:
    pipeline = f"{CLEARED}_{seed}"

    def clear(step: str, processes: list[psutil.Process]) -> None:
        airflow.client.clear_task(pipeline, "night_10", step)
        psutil.wait_procs(processes, timeout=30)
        assert not any(process.is_running() for process in processes), "the cleared task's process goes on"

    run_struck(airflow, pipeline, clear, seed, SOME)


@on_turn(2, 3)
@pytest.mark.timeout(1200)  # Airflow starts anew for each step
@pytest.mark.parametrize("seed", SEEDS)
def test_whole_airflow_killed_in_the_middle_of_a_step(airflow: LiveAirflow, seed: int) -> None:
    def crash(step: str, processes: list[psutil.Process]) -> None:
        airflow.stack.kill_airflow()
        psutil.wait_procs(processes, timeout=10)
        assert not any(process.is_running() for process in processes), "a step outlived Airflow"
        airflow.start()

    run_struck(airflow, f"{CRASHED}_{seed}", crash, seed, SOME)


def test_duplicate_run_of_a_night_finds_everything_done(airflow: LiveAirflow) -> None:
    """Deleting a run and starting the night again must not train again, nor register a second version."""
    run_id = airflow.trigger(10, AGAIN)
    assert airflow.client.wait(AGAIN, run_id, STEP_SECONDS) == "success"
    before = snapshot_of(airflow.stack.store)
    airflow.client.request("DELETE", f"/dags/{AGAIN}/dagRuns/{run_id}")
    airflow.client.trigger(AGAIN, "again", airflow.night(10))
    assert airflow.client.wait(AGAIN, "again", STEP_SECONDS) == "success"
    airflow.client.clear_run(AGAIN, "again")
    time.sleep(1)
    assert airflow.client.wait(AGAIN, "again", STEP_SECONDS) == "success"
    assert snapshot_of(airflow.stack.store) == before
    assert [version["version"] for version in airflow.model_versions(AGAIN)] == ["1"]
    assert len(airflow.training_runs(AGAIN)) == 1


def snapshot_of(store: Path) -> dict[str, tuple[int, int]]:
    """Every object's inode and size: an object that is written again has another inode."""
    files = (path for path in store.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.stat().st_size) for path in files}
