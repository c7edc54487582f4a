"""Real gangs of :mod:`gang_program`, started as a launcher would."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from warm import WarmProcess

from mlops.contract.step import RunIdentity, StepInput, python_path, read_result
from mlops.contract.training_events import TrainingEvent

CHECKOUT = Path(__file__).parents[1]
PROGRAM = Path(__file__).with_name("gang_program.py")
DEADLINE_SECONDS = 120


@dataclass(frozen=True)
class Gang:
    """One started ``mlops.steps.torchrun``."""

    folder: Path
    process: WarmProcess

    def result(self) -> Any:
        self.process.wait(DEADLINE_SECONDS)
        return read_result(self.folder / "result.json")

    @property
    def notes(self) -> list[dict[str, Any]]:
        return read_notes(self.folder)

    @property
    def noted(self) -> list[TrainingEvent]:
        """What the store tells of it, in that order."""
        files = self.folder.glob("store/pipelines/gang/train/key/events/*.json")
        return sorted((TrainingEvent.load(file.read_bytes()) for file in files), key=lambda event: event.at)

    @property
    def log(self) -> str:
        return (self.folder / f"log-{self.process.args[-1].name}").read_text()  # type: ignore[index,union-attr]

    def wait_for(self, condition: Callable[[list[dict[str, Any]]], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition(self.notes):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def wait_for_step(self, step: int) -> None:
        saved = self.folder / "step"
        self.wait_for(lambda notes: saved.exists() and int(saved.read_text()) >= step)


def read_notes(folder: Path) -> list[dict[str, Any]]:
    path = folder / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def started(
    folder: Path, *options: str, do: Mapping[str, str] | None = None, name: str = "input.json", **environment: Any
) -> Iterator[Gang]:
    """
    :param do: what which rank does before which step, see :mod:`gang_program`
    :param environment: more of it, e.g. ``STEPS=50``
    """
    folder.mkdir(exist_ok=True)
    run = RunIdentity(
        pipeline="gang",
        run_key="key",
        interval_start="",
        interval_end="",
        timezone="UTC",
        dag_id="gang",
        task_id="train",
        run_id="manual",
        try_number=1,
    )
    document = folder / name
    document.write_text(StepInput(step="train", run=run, config={}).dump())
    command = [sys.executable, "-m", "mlops.steps.torchrun", *options, PROGRAM, folder, document]
    places = {
        "PYTHONPATH": python_path(CHECKOUT),
        "MLOPS_HOME": str(folder),
        "MLOPS_STORE": f"file://{folder}/store",
        "MLOPS_RESULT_PATH": str(folder / "result.json"),
        "MLOPS_GRACE_SECONDS": "10",
        "OMP_NUM_THREADS": "1",
        "DO": json.dumps(do or {}),
    }
    more = {key: str(value) for key, value in environment.items()}
    with (folder / f"log-{name}").open("w") as log:
        process = WarmProcess(command, env=os.environ | places | more, output=log)
    try:
        yield Gang(folder=folder, process=process)
    finally:
        kill(process.pid)
        process.wait(60)


def kill(pid: int) -> None:
    """SIGKILL to a process and all that it started: a node that is lost."""
    if psutil.pid_exists(pid):
        root = psutil.Process(pid)
        for process in [*root.children(recursive=True), root]:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
