"""
From the end of a training's pod to its next step: the first of a gang of two is removed at once, as its node's loss
would, and another one takes its place.

Beside it stands the gang's own start, from the call to the launcher to its first checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from kubernetes import client
from pod_cluster import NAMESPACE, PodCluster, pod_cluster
from project import add_recipe_file, make_project
from services import mlflow_server

from benchmarks.kubernetes.programs.launching import found_by_all, ignore
from benchmarks.rounds import OURS, records
from mlops.contract.refs import Ref
from mlops.contract.step import STEPS, RunIdentity, StepInput
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch
from mlops_provider.launchers.kubernetes.job import PodTask
from mlops_provider.launchers.kubernetes.manifests import Task
from mlops_provider.launchers.pod import PodLauncher
from mlops_provider.pod_spec import Pods
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import load_pipeline

START = "start"
ROUNDS = 5
SLOW = """
import time

from mlops import MetricSpec, mean_over_samples

def slow(predictions, parameter):
    time.sleep(0.2)
    return mean_over_samples(predictions.offsets[1:] * 1.0)

SLOW = MetricSpec(measures=["relevance", "logit"], higher_is_better=True, title="slow", weighted=slow)
"""
TRAIN = {
    "epochs": 1000,
    "processes": 1,
    "nodes": 2,
    "metrics": ["include.events.slow:SLOW"],
    "checkpoint": {"every_steps": 1, "every_minutes": 10, "keep_latest": 3, "peers": 1},
}
_SAVED = re.compile(r"checkpoint of step (\d+) saved")


class Training:
    """A gang that trains in the background, and what it says, with the time."""

    def __init__(self, launcher: PodLauncher, launch: Launch) -> None:
        self._launcher, self._launch = launcher, launch
        self._saved: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._launcher.run(self._launch, self._note)

    def _note(self, line: str) -> None:
        if found := _SAVED.search(line):
            self._saved.append((time.perf_counter(), int(found[1])))

    def next_step(self, since: float) -> float:
        """When a checkpoint was saved that is newer than all before that time: steps are done that were not."""
        before = max((step for at, step in self._saved if at <= since), default=0)
        while True:
            for at, step in list(self._saved):
                if at > since and step > before:
                    return at
            if not self._thread.is_alive():
                raise RuntimeError("the training has ended")
            time.sleep(0.01)

    def end(self) -> None:
        self._launcher.cancel()
        self._thread.join()


def document(spec: Pipeline, step: str, parent: Ref | None, run_key: str = "bench", **changes: Any) -> StepInput:
    run = RunIdentity(
        pipeline="events",
        run_key=run_key,
        interval_start="2024-01-14T00:00:00+00:00",
        interval_end="2024-01-15T00:00:00+00:00",
        timezone="UTC",
        dag_id="events",
        task_id=step,
        run_id="bench",
        try_number=1,
    )
    config = spec.model_dump(mode="json", by_alias=True)[step]
    return StepInput(step=step, run=run, config=config | changes, ref=parent)


def recoveries(cluster: PodCluster, deployment: Deployment, folder: Path) -> dict[str, list[float]]:
    """Seconds to the next step from a pod's end, and to the first one from the start, of some trainings."""
    spec = load_pipeline(cluster.home / "dags/events.pipeline.yaml")
    pods = Pods.model_validate(cluster.pods(writable=[folder / "store"]))

    def launcher(step: str, run_id: str = "bench") -> PodLauncher:
        task = Task(deployment="bench", dag_id="events", run_id=run_id, task_id=step)
        return PodLauncher(deployment, PodTask(task=task, pods=pods))

    ref: Ref | None = None
    for step in ("ingest", "validate", "features"):
        outcome = launcher(step).run(Launch(input=document(spec, step, ref), runtime=STEPS[step].runtime), ignore)
        if not isinstance(outcome.result, Ref):
            raise RuntimeError(f"{step}: {outcome}")
        ref = outcome.result
    seconds: dict[str, list[float]] = {OURS: [], START: []}
    for number in range(ROUNDS):
        work = document(spec, "train", ref, f"bench-{number}", **TRAIN)
        begin = time.perf_counter()
        training = Training(
            launcher("train", str(number)), Launch(input=work, runtime="training", processes=1, nodes="2")
        )
        try:
            seconds[START].append(training.next_step(begin) - begin)
            first = next(pod for pod in cluster.running() if "-train-" in pod)
            begin = time.perf_counter()
            cluster.core.delete_namespaced_pod(first, NAMESPACE, body=client.V1DeleteOptions(grace_period_seconds=0))
            seconds[OURS].append(training.next_step(begin) - begin)
        finally:
            training.end()
    return seconds


def main() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bench-pods-", dir="/var/tmp") as name, mlflow_server() as tracking:
        folder = Path(name)
        (folder / "store").mkdir()
        home = make_project(folder / "home")
        add_recipe_file(home, "events", "slow.py", SLOW)
        with pod_cluster(folder / "cluster", home) as cluster, found_by_all(cluster.kubeconfig):
            deployment = dataclasses.replace(cluster.deployment(folder / "store"), tracking_uri=tracking)
            results = recoveries(cluster, deployment, folder)
    baselines = {START: ("the gang's start, from the call to its first checkpoint", 1.5)}
    return records("kubernetes.killed_pod", results, unit="s", baselines=baselines, better="lower")


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    print(json.dumps(main()))
