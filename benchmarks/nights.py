"""A night of the ranking pipeline: run by a real Airflow, and as bare processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mlops.contract.refs import Ref, ReportRef
from mlops.contract.step import LINE, STEPS, RunIdentity, StepInput
from mlops.signing.keys import make_key
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch
from mlops_provider.launchers.process import ProcessLauncher, runtime_environment
from mlops_provider.local.client import AirflowClient
from mlops_provider.local.ports import free_port
from mlops_provider.local.stack import Stack
from mlops_provider.operators.promote import move
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import load_pipeline

PIPELINE = "flight_ranking"
RECIPE = f"tests/fixtures/pipelines/{PIPELINE}.pipeline.yaml"
"""A line of steps: nothing that waits for a person, or that a busy machine decides."""
DO_NOTHING = "do_nothing"
BARE = "bare_processes"
RUN_SECONDS = 300.0
WEAK = {"learning_rate": 1e-9, "epochs": 1}
"""Training settings of a model that every later night's is better than."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """How long a run took. Seconds."""

    wall: float
    """From the trigger to the end of the run; of bare processes their sum."""
    steps: Mapping[str, float]
    """Each step."""
    work: float
    """The steps' own processes, from start to exit."""


class MeasuredAirflow:
    """
    A deployment of its own, whose steps' processes are timed from outside.

    :param home: the repository: its recipes, data and runtimes
    :param settings: further environment variables of Airflow's processes
    """

    def __init__(self, home: Path, root: Path, settings: Mapping[str, str] | None = None) -> None:
        dags = root / "dags"
        dags.mkdir(parents=True)
        for source in ("dags/pipelines.py", RECIPE, "benchmarks/dags/do_nothing.py"):
            shutil.copy(home / source, dags)
        self._times = root / "step_times.txt"
        self._times.touch()
        pythons = {name: timed_python(home, name, root, self._times) for name in ("training", "validation")}
        self.stack = Stack(
            home=home,
            root=root / "local",
            dags=dags,
            airflow_port=free_port(),
            mlflow_port=free_port(),
            # A warm runtime starts its interpreter once, not once a step.
            settings={f"AIRFLOW__MLOPS__{name.upper()}_PYTHON": str(path) for name, path in pythons.items()}
            | {"AIRFLOW__MLOPS__WARM_RUNTIMES": "False"}
            | dict(settings or {}),
        )

    def start(self) -> None:
        for _ in self.stack.start():
            pass
        self._client = AirflowClient(self.stack.airflow_url)
        for dag_id in (PIPELINE, DO_NOTHING):
            self._client.wait_for_dag(dag_id)
            self._client.unpause(dag_id)

    def stop(self) -> None:
        self.stack.stop()

    def night(self, date: datetime, training: Mapping[str, Any] | None = None) -> Timed:
        """
        Run the night that begins at this midnight.

        :param training: settings of the train step that differ from the pipeline's
        """
        self._times.write_text("")
        run = self._run(PIPELINE, f"night_{date:%Y%m%d}", date, training)
        if missing := set(LINE) - run.steps.keys():
            raise RuntimeError(f"the night of {date:%Y-%m-%d} skipped {', '.join(sorted(missing))}")
        make_champion(deployment(self.stack.home, self.stack.store, self.stack.mlflow_url), PIPELINE, "1")
        return run

    def do_nothing(self, number: int) -> Timed:
        """As many tasks in a line as a night has."""
        self._times.write_text("")
        return self._run(DO_NOTHING, f"run_{number}", None)

    def _run(
        self, dag_id: str, run_id: str, date: datetime | None, parameters: Mapping[str, Any] | None = None
    ) -> Timed:
        self._client.trigger(dag_id, run_id, date, parameters)
        state = self._client.wait(dag_id, run_id, RUN_SECONDS)
        tasks = self._client.tasks(dag_id, run_id)
        if state != "success":
            states = {name: task["state"] for name, task in tasks.items()}
            raise RuntimeError(f"{dag_id} {run_id} ended as {state}: {states}; see {self.stack.root / 'airflow/logs'}")
        run = self._client.run(dag_id, run_id)
        assert run is not None, "a run that was triggered is there"
        return Timed(
            wall=seconds_between(run["queued_at"], run["end_date"]),
            steps={name: task["duration"] for name, task in tasks.items() if task["state"] == "success"},
            work=sum(read_times(self._times.read_text())),
        )


def timed_python(home: Path, runtime: str, folder: Path, times: Path) -> Path:
    """An interpreter that notes when it began and ended; ``MLOPS_PARENT_PID`` names the step's new parent."""
    path = folder / f"{runtime}_python"
    path.write_text(
        "#!/bin/sh\n"
        "export MLOPS_PARENT_PID=$$\n"
        "begin=$(date +%s.%N)\n"
        f'"{home}/.venv/{runtime}/bin/python" "$@"\n'
        "code=$?\n"
        f'echo "$begin $(date +%s.%N)" >> "{times}"\n'
        "exit $code\n"
    )
    path.chmod(0o755)
    return path


def read_times(text: str) -> list[float]:
    """Seconds of each process that a :func:`timed_python` noted."""
    return [float(end) - float(begin) for begin, end in (line.split() for line in text.splitlines())]


def seconds_between(begin: str, end: str) -> float:
    """:param begin: ISO 8601, as is ``end``"""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


class BareProcesses:
    """
    The same steps without Airflow: the same argv, input documents and environment, one after the other.

    They have a store, an MLflow experiment and a registered model of their own, so that nothing is found committed.
    """

    def __init__(self, home: Path, root: Path, tracking_uri: str) -> None:
        self._pipeline = load_pipeline(home / RECIPE)
        self._deployment = deployment(home, root / "bare_store", tracking_uri)

    def night(self, date: datetime, training: Mapping[str, Any] | None = None) -> Timed:
        """As :meth:`MeasuredAirflow.night`."""
        ref: Ref | None = None
        seconds: dict[str, float] = {}
        for step in LINE:
            changes = training if step == "train" else None
            document = step_document(self._pipeline, step, date, ref, changes)
            launch = Launch(input=document, runtime=STEPS[step].runtime, processes=document.config.get("processes", 0))
            lines: list[str] = []
            begin = time.monotonic()
            outcome = ProcessLauncher(self._deployment).run(launch, lines.append)
            seconds[step] = time.monotonic() - begin
            if not isinstance(outcome.result, Ref):
                raise RuntimeError(f"{step} failed ({outcome.status}):\n" + "\n".join(lines[-20:]))
            ref = outcome.result
            if isinstance(ref, ReportRef) and not ref.passed:
                raise RuntimeError(f"the night of {date:%Y-%m-%d} would register nothing: {ref.reason}")
        make_champion(self._deployment, BARE, "1")
        return Timed(wall=sum(seconds.values()), steps=seconds, work=sum(seconds.values()))


def deployment(home: Path, store: Path, tracking_uri: str) -> Deployment:
    """Where steps and commands run, outside of Airflow."""
    return Deployment(
        home=home,
        store=f"file://{store}",
        tracking_uri=tracking_uri,
        tracking_url=tracking_uri,
        pythons={name: home / f".venv/{name}/bin/python" for name in ("training", "validation")},
        warm_runtimes=False,
    )


def make_champion(deployment: Deployment, model: str, version: str) -> None:
    """Have the nights judged against the same model, so that each does the work of all steps, the last included."""
    command = [str(deployment.pythons["training"]), "-m", "mlops.commands", "models", "promote", model, version]
    key = Path(deployment.store.removeprefix("file://")).parent / "release.pem"
    make_key(key)
    subprocess.run(
        [*command, "--why", "the next night is judged against it", f"--key={key}"],
        env=runtime_environment(deployment, os.environ),
        check=True,
        stdout=subprocess.DEVNULL,
    )


def step_document(
    pipeline: Pipeline, step: str, date: datetime, ref: Ref | None, changes: Mapping[str, Any] | None = None
) -> StepInput:
    """What the step's process is told; only the names differ from what its operator says."""
    config: dict[str, Any] = pipeline.model_dump(mode="json", by_alias=True)[step] | dict(changes or {})
    if step == "promote":
        config = move("promote")
    if "registered_model" in config:
        config["registered_model"] = BARE
    identity = RunIdentity(
        pipeline=BARE,
        run_key=f"{date.astimezone(UTC):%Y%m%dT%H%M%SZ}-000000000000",
        interval_start=(date - timedelta(days=1)).astimezone(UTC).isoformat(),
        interval_end=date.astimezone(UTC).isoformat(),
        timezone=pipeline.timezone,
        dag_id=BARE,
        task_id=step,
        run_id=f"night_{date:%Y%m%d}",
        try_number=1,
    )
    return StepInput(step=step, run=identity, config=config, ref=ref)
