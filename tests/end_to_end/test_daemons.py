"""
Single daemons and processes are killed at random, night after night, with a search and approvals. All nights come to
their end: one version each, nothing half-written, and no try is used but where the task itself was struck.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from live_airflow import LiveAirflow
from project import REPOSITORY
from releases import client_of, mlops, wait_for
from strikes import DAEMONS, Killer, documents, spent, watched_store
from turns import on_turn

from mlops.contract.refs import ModelVersionRef, StudyRef
from mlops.contract.step import LINE
from mlops_provider import processes
from mlops_provider.local.client import FINISHED
from mlops_provider.local.demo import READING_SECONDS

NIGHTS = int(os.environ.get("CHAOS_NIGHTS", "0"))
SEED = int(os.environ.get("SEED", "1"))
NIGHT_SECONDS = 1200.0
STRIKES = 4
"""In each night, each while another task of it runs."""
TASKS = ("ingest", "validate", "features", "tune_trial", "tune", "train", "evaluate", "register", "approve", "promote")
DELAY_SECONDS = (0.0, 4.0)
"""From the begin of that task."""
NOT_BEGUN = (None, "scheduled", "queued")
TRIALS = 2
STRUCK = "struck"
PIPELINE = f"""
tune:
  space:
    learning_rate: {{low: 0.01, high: 0.2, log: true}}
  sampler: random
  pruner: none
  trials: {TRIALS}
  parallel: 2

evaluate:
  registered_model: {STRUCK}
  metric: ndcg@10
  rules:
    - {{metric: ndcg@10, at_least: 0.01}}

register:
  registered_model: {STRUCK}

promote:
  approval: {{approvers: [vera]}}
"""
FIRST_NIGHT = 6


@pytest.fixture
def airflow(new_airflow: Callable[..., LiveAirflow], tmp_path: Any) -> LiveAirflow:
    """With a pipeline whose every night is worth a version: ten of them fit into the data."""
    text = (REPOSITORY / "tests/fixtures/events/events.pipeline.yaml").read_text()
    text = text.replace("pipeline: events", f"pipeline: {STRUCK}").replace("window: 7", "window: 5")
    text = text.replace("start_date: 2024-01-08", "start_date: 2024-01-05").partition("evaluate:")[0]
    path = tmp_path / f"{STRUCK}.pipeline.yaml"
    path.write_text(text + PIPELINE)
    # An API server that is away for a minute makes no task miss its heartbeats.
    settings = {"AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "120"}
    return new_airflow(with_login=True, mlflow_login=True, users=["vera"], dags=[path], settings=settings)


@dataclass
class Night:
    """One run, struck and answered until it ends."""

    airflow: LiveAirflow
    killer: Killer
    run_id: str
    approves: bool
    asked_since: float | None = None

    def live_through(self) -> str:
        """:return: the state of the run"""
        client, chance = self.airflow.client, self.killer.chance
        struck_in = [TASKS[number] for number in sorted(chance.sample(range(len(TASKS)), STRIKES))]
        strike_at: float | None = None
        deadline = time.monotonic() + NIGHT_SECONDS
        while time.monotonic() < deadline:
            ended = [name for name in DAEMONS if self.airflow.stack.parts.process(name) is None]
            assert not ended, f"{ended} ended by themselves, see {self.airflow.stack.root / 'logs'}"
            tasks = client.tasks(STRUCK, self.run_id)
            if struck_in and strike_at is None and tasks.get(struck_in[0], {}).get("state") not in NOT_BEGUN:
                strike_at = time.monotonic() + chance.uniform(*DELAY_SECONDS)
            is_time = strike_at is not None and time.monotonic() > strike_at
            if is_time and (kind := self.killer.strike(self.run_id)) is not None:
                print(f"{self.run_id}: struck {kind} when it had come to {struck_in.pop(0)}", flush=True)
                strike_at = None
            self._answer(tasks.get("approve", {}).get("state"))
            run = client.run(STRUCK, self.run_id)
            assert run is not None
            if run["state"] in FINISHED:
                return str(run["state"])
            time.sleep(0.2)
        raise TimeoutError(f"{self.run_id}: {self.airflow.states(self.run_id, STRUCK)}")

    def _answer(self, state: str | None) -> None:
        """As vera, once there was time to read."""
        if state != "awaiting_input":
            self.asked_since = None
        elif self.asked_since is None:
            self.asked_since = time.monotonic()
        elif time.monotonic() - self.asked_since > READING_SECONDS:
            option = "Approve" if self.approves else "Reject"
            vera = client_of(self.airflow, "vera")
            if not vera.question(STRUCK, self.run_id, "approve")["response_received"]:
                vera.answer(STRUCK, self.run_id, "approve", option, {"why": "a night of killing"})


@pytest.mark.skipif(not NIGHTS, reason="a night takes minutes: make chaos, or CHAOS_NIGHTS=1")
@pytest.mark.timeout(NIGHT_SECONDS * NIGHTS + 600)
def test_daemons_killed_at_random(airflow: LiveAirflow) -> None:
    """Broken: a daemon that dies alone, as under memory pressure, would cost a night, a try, or a second version."""
    for step in ("ingest", "features", "train", "evaluate"):
        airflow.hold(step, 1.0)
    killer = Killer(airflow, STRUCK, SEED)
    nights: dict[str, bool] = {}
    beyond: dict[tuple[str, str], tuple[int, int]] = {}
    # Of each night its line, its trials and study, and the entry of the approval.
    promoted = [killer.chance.random() < 0.8 for _ in range(NIGHTS)]
    num_refs = sum(len(LINE) + TRIALS + 1 + (1 if yes else 0) for yes in promoted)
    with watched_store(airflow, num_refs):
        for number, approves in enumerate(promoted):
            run_id = airflow.trigger(FIRST_NIGHT + number, STRUCK)
            nights[run_id] = approves
            state = Night(airflow, killer, run_id, approves).live_through()
            assert state == "success", (run_id, airflow.states(run_id, STRUCK), killer.report())
            found = airflow.client.task_instances(STRUCK, run_id)
            used = spent({(task["task_id"], task["map_index"]): task["try_number"] for task in found})
            print(f"{run_id}: tries beyond the first one: {dict(+used)}", flush=True)
            beyond |= {
                (run_id, task_id): (number, killer.suffered[run_id, task_id])
                for task_id, number in used.items()
                if number > killer.suffered[run_id, task_id]
            }
    print(killer.report(), flush=True)
    assert not beyond, f"used tries, and strikes at the task itself: {beyond}; {killer.report()}"

    refs = {run_id: ModelVersionRef.from_wire(airflow.client.xcom(STRUCK, run_id, "register")) for run_id in nights}
    assert [ref.version for ref in refs.values()] == [str(number + 1) for number in range(NIGHTS)]
    assert sorted(int(version["version"]) for version in airflow.model_versions(STRUCK)) == [*range(1, NIGHTS + 1)]
    for ref in refs.values():
        assert ref.ancestor(StudyRef).trials == {"complete": TRIALS, "pruned": 0, "failed": 0, "not begun": 0}
    entries = [
        json.loads(path.read_text()) for path in sorted((airflow.stack.store / f"models/{STRUCK}/audit").iterdir())
    ]
    expected = []
    for run_id, approves in nights.items():
        version = refs[run_id].version
        actions = ("register", "approve", "promote") if approves else ("register", "archive")
        expected += [(version, action) for action in actions]
    assert [(entry["version"], entry["action"]) for entry in entries] == expected
    assert airflow.aliases(STRUCK).get("champion") == max(
        (refs[run_id].version for run_id, approves in nights.items() if approves), key=int, default=None
    )
    for command in (["audit", "verify", "--user", "admin"], ["store", "verify"]):
        code, said = mlops(airflow, *command)
        print(said, flush=True)
        assert code == 0, (command, said)
    if NIGHTS >= 2:
        assert all(killer.struck[kind] for kind in DAEMONS)


@on_turn(0, 2)
@pytest.mark.timeout(900)
def test_a_scheduler_killed_alone_costs_no_try(new_airflow: Callable[..., LiveAirflow]) -> None:
    """Broken: whoever restarts a scheduler would have each training that runs started again, and a try of it used."""
    airflow = new_airflow()
    airflow.hold("ingest", 60.0)  # longer than a scheduler is missed for
    wait_for(lambda: bool(executor_processes(airflow)), "the scheduler has processes")
    idle = executor_processes(airflow)
    for process in idle:
        process.suspend()
    run_id = airflow.trigger(10)
    wait_for(lambda: airflow.states(run_id).get("ingest") == "queued", "the task is queued")
    time.sleep(1)  # it is in the scheduler's queue, of which nobody reads
    restart_scheduler(airflow)
    for process in idle:
        process.resume()
    wait_for(lambda: bool(documents(airflow, "ingest")), "another process has taken the task")
    assert processes.wait_ended(idle, 60) == [], "what has no scheduler ends"

    ((at_work, _),) = documents(airflow, "ingest")
    (supervisor,) = [each for each in executor_processes(airflow) if "<idle>" not in " ".join(each.cmdline())]
    restart_scheduler(airflow)
    adopted = "select count(*) from task_instance join job on job.id = queued_by_job_id where job.state = 'running'"
    wait_for(lambda: ask(airflow, f"{adopted} and task_id = 'ingest'") == 1, "the new scheduler has the task")
    assert at_work.is_running()
    wait_for(lambda: airflow.states(run_id)["ingest"] == "success", "the task goes on to its end")
    assert airflow.client.tasks("events", run_id)["ingest"]["try_number"] == 1
    assert processes.wait_ended([supervisor], 60) == []


def executor_processes(airflow: LiveAirflow) -> list[psutil.Process]:
    """Those of the scheduler that runs now."""
    scheduler = airflow.stack.parts.process("scheduler")
    assert scheduler is not None
    children = set(scheduler.children())
    return [process for process in processes.of_executors() if process in children]


def restart_scheduler(airflow: LiveAirflow) -> None:
    scheduler = airflow.stack.parts.process("scheduler")
    assert scheduler is not None
    scheduler.kill()
    scheduler.wait()
    airflow.start()
    wait_for(lambda: bool(executor_processes(airflow)), "the new scheduler has processes")


def ask(airflow: LiveAirflow, query: str) -> int:
    """What Airflow's database says."""
    with closing(sqlite3.connect(f"file:{airflow.stack.root}/airflow/airflow.db?mode=ro", uri=True)) as database:
        return int(database.execute(query).fetchone()[0])
