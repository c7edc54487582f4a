"""Kills single processes of a real Airflow, and watches that nothing half-written is readable meanwhile."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from live_airflow import LiveAirflow
from project import REPOSITORY

from mlops.contract.step import StepInput
from mlops_provider import processes
from mlops_provider.launchers.scratch import PREFIX

DAEMONS = ("scheduler", "api-server", "dag-processor", "triggerer", "mlflow")
SUPERVISOR, STEP, WORKER = "task supervisor", "step", "worker"
KINDS = (*DAEMONS, SUPERVISOR, STEP, WORKER)
DOWN_SECONDS = (0.5, 5.0)
"""After that something starts a daemon again, as systemd or Kubernetes would."""


def step_processes(airflow: LiveAirflow, step: str) -> list[psutil.Process]:
    """The processes of a step's current try: one, or torchrun and its workers."""
    return [process for process, _ in documents(airflow, step)]


def documents(airflow: LiveAirflow, step: str = "[a-z]+") -> list[tuple[psutil.Process, Path]]:
    """Processes of steps, and the input document that each works on."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cwd"] != str(airflow.home):
            continue
        for part in process.info["cmdline"] or []:
            if re.search(f"/{PREFIX}{step}-", part):
                found.append((process, Path(part)))
                break
    return found


@contextmanager
def watched_store(airflow: LiveAirflow, num_refs: int) -> Iterator[None]:
    """
    Nothing that a ref names may be missing or damaged, at any moment.

    :param num_refs: that are committed meanwhile
    """
    airflow.stack.store.mkdir(parents=True, exist_ok=True)
    before = len(list(airflow.stack.store.glob("pipelines/*/*/*/ref.json")))
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
    assert seen["num_refs"] == before + num_refs
    assert seen["rounds"] > 20


@dataclass
class Killer:
    """
    SIGKILL to one process alone, of a kind and at a moment that chance chooses. Each kind has its turn before one
    comes again.

    :param seed: of the choices; what runs at that moment is up to the machine
    """

    airflow: LiveAirflow
    dag_id: str
    seed: int
    struck: Counter[str] = field(default_factory=Counter)
    """Strikes by kind."""
    suffered: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Strikes at a supervisor, step or worker, by run and task."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._turn: list[str] = []

    def strike(self, run_id: str) -> str | None:
        """:return: what was killed; None where nothing of the kinds that are left to strike runs now"""
        if not self._turn:
            self._turn = self.chance.sample(KINDS, len(KINDS))
        for kind in self._turn:
            if kind in DAEMONS:
                self.strike_daemon(kind)
            elif (victim := self._victim(kind, run_id)) is not None:
                process, task_id = victim
                process.kill()
                self.suffered[run_id, task_id] += 1
            else:
                continue
            self._turn.remove(kind)
            self.struck[kind] += 1
            return kind
        return None

    def strike_daemon(self, name: str) -> None:
        process = self.airflow.stack.parts.process(name)
        assert process is not None, f"{name} is not there to be killed"
        process.kill()
        process.wait()
        time.sleep(self.chance.uniform(*DOWN_SECONDS))
        self.airflow.start()

    def _victim(self, kind: str, run_id: str) -> tuple[psutil.Process, str] | None:
        found = self._supervisors(run_id) if kind == SUPERVISOR else self._at_work(kind, run_id)
        return self.chance.choice(found) if found else None

    def _supervisors(self, run_id: str) -> list[tuple[psutil.Process, str]]:
        tasks = {str(task["id"]): task["task_id"] for task in self.airflow.client.task_instances(self.dag_id, run_id)}
        named = [(process, " ".join(process.cmdline()).split()[-1]) for process in processes.of_executors()]
        return [(process, tasks[name]) for process, name in named if name in tasks]

    def _at_work(self, kind: str, run_id: str) -> list[tuple[psutil.Process, str]]:
        """Steps: the process that was launched. Workers: those of a gang that it has started."""
        working = documents(self.airflow)
        pids = {process.pid for process, _ in working}
        found = []
        for process, path in working:
            try:
                run = StepInput.load(path.read_text()).run
                is_worker = process.ppid() in pids
            except (FileNotFoundError, psutil.NoSuchProcess):  # ended just now
                continue
            if run.run_id == run_id and is_worker == (kind == WORKER):
                found.append((process, run.task_id))
        return found

    def report(self) -> str:
        """How often each kind was struck, with the seed."""
        counts = ", ".join(f"{kind} {self.struck[kind]}" for kind in KINDS)
        return f"seed {self.seed}: {self.struck.total()} strikes: {counts}"


def spent(tries: Mapping[tuple[str, int], int]) -> Counter[str]:
    """
    Tries beyond the first one, by task; those of a mapped task together.

    :param tries: by task and map index; 0 for one that never ran
    """
    found: Counter[str] = Counter()
    for (task_id, _), number in tries.items():
        found[task_id] += max(0, number - 1)
    return found
