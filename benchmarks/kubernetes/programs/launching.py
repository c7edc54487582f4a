"""
What a do-nothing pod takes by our launcher and by a bare KubernetesPodOperator, and how often each asks the API about
pods that run.

Both wait for the pod to end and remove it. Ours also writes a Secret and a Service, starts Python in the pod, and looks
for the outcome in the store.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import TaskDeferred
from cluster.operator_program import context, first_event
from faulty_proxy import FaultyProxy, faulty_proxy
from pod_cluster import IMAGES, NAMESPACE, PodCluster, pod_cluster
from project import make_project

from benchmarks.rounds import OURS, in_rotation, records
from mlops_provider.launchers.base import Launch
from mlops_provider.launchers.kubernetes.job import PodTask, finish
from mlops_provider.launchers.kubernetes.manifests import StepJob, Task
from mlops_provider.launchers.pod import PodLauncher
from mlops_provider.pod_spec import Pods
from mlops_provider.testing.launchers import launch

OPERATOR = "operator"
ROUNDS = 5
CALLS_SECONDS = 60
SETTLED_SECONDS = 8
"""After which a pod runs, and is only followed."""
MAX_CALLS = 12.0
"""A minute: one in 5 s."""


class Contenders:
    """:param script: what the pods run, by a shell"""

    def __init__(self, cluster: PodCluster, folder: Path, script: str, nodes: str = "1") -> None:
        self._cluster, self._folder, self._script, self._nodes = cluster, folder, script, nodes
        self._numbers = count()

    def ours(self, *, deferred: bool) -> float:
        name = f"nothing{next(self._numbers)}"
        request: Launch = dataclasses.replace(launch(self._cluster.home, "pass", name), nodes=self._nodes)
        task = Task(deployment="bench", dag_id="bench", run_id=f"{name}-{deferred}-{self._nodes}", task_id="ingest")
        pods = Pods.model_validate(self._cluster.pods(writable=[self._folder / "store"]))
        launcher = PodLauncher(self._cluster.deployment(self._folder / "store"), PodTask(task=task, pods=pods))
        with patch.object(StepJob, "_command", lambda job: ["sh", "-c", self._script, "/run/mlops/input.json"]):
            begin = time.perf_counter()
            if deferred:
                job = launcher.pod_task.job(launcher.deployment)
                outcome = finish(launcher.deployment, asyncio.run(job.work(request, ignore)))
            else:
                outcome = launcher.run(request, ignore)
            seconds = time.perf_counter() - begin
        assert "complete" in outcome.status, outcome.status
        return seconds

    def operator(self, kubeconfig: Path, *, deferred: bool) -> float:
        name = f"nothing{next(self._numbers)}"
        operator = KubernetesPodOperator(
            task_id=name,
            name=name,
            namespace=NAMESPACE,
            image=IMAGES["training"],
            cmds=["sh", "-c", self._script],
            in_cluster=False,
            config_file=str(kubeconfig),
            kubernetes_conn_id=None,
            termination_grace_period=1,
            deferrable=deferred,
        )
        begin = time.perf_counter()
        try:
            operator.execute(context(name))
        except TaskDeferred as deferral:
            event = asyncio.run(first_event(deferral.trigger))
            operator.trigger_reentry(context(name), event.payload)
        return time.perf_counter() - begin


def ignore(line: str) -> None:
    """Of the pods' output."""


@contextmanager
def found_by_all(kubeconfig: Path) -> Iterator[None]:
    """As KUBECONFIG, which the client reads when it is imported."""
    with patch("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig)):
        yield


def latency(cluster: PodCluster, folder: Path) -> list[dict[str, Any]]:
    contenders, made = Contenders(cluster, folder, "true"), []
    # A deferred operator only makes a pod; ours makes a Job, and what it owns.
    for what, deferred, target in (("sync", False, 1.0), ("deferrable", True, 2.0)):
        with found_by_all(cluster.kubeconfig):
            results = in_rotation(
                {
                    OURS: lambda deferred=deferred: contenders.ours(deferred=deferred),
                    OPERATOR: lambda deferred=deferred: contenders.operator(cluster.kubeconfig, deferred=deferred),
                },
                ROUNDS,
            )
        baselines = {OPERATOR: (f"KubernetesPodOperator, {what}, a pod that does nothing", target)}
        made += records(f"kubernetes.{what}", results, unit="s", baselines=baselines, better="lower")
    return made


def calls(cluster: PodCluster, folder: Path) -> list[dict[str, Any]]:
    """A minute of a gang of two pods by ours, and of one pod by the operator, both deferred."""
    script = f"for i in $(seq {CALLS_SECONDS + 2 * SETTLED_SECONDS}); do echo step $i; sleep 1; done"
    contenders = Contenders(cluster, folder, script, nodes="2")
    rates: dict[str, list[float]] = {}
    with faulty_proxy(cluster.kubeconfig, folder) as proxy, found_by_all(proxy.kubeconfig):
        work: Mapping[str, Any] = {
            OURS: lambda: contenders.ours(deferred=True),
            OPERATOR: lambda: contenders.operator(proxy.kubeconfig, deferred=True),
        }
        for name, wait in work.items():
            rates[name] = [per_minute(proxy, wait)]
    rates["bound"] = [MAX_CALLS]
    baselines = {"bound": ("at most", 1.0), OPERATOR: ("KubernetesPodOperator, deferred, of one pod", 1.0)}
    return records("kubernetes.calls", rates, unit="calls/min", baselines=baselines, better="lower")


def per_minute(proxy: FaultyProxy, wait: Any) -> float:
    follower = threading.Thread(target=wait)
    follower.start()
    time.sleep(SETTLED_SECONDS)
    before = proxy.num_calls
    time.sleep(CALLS_SECONDS)
    made = proxy.num_calls - before
    follower.join()
    return made * 60 / CALLS_SECONDS


def main() -> list[dict[str, Any]]:
    # Not below /tmp, which is each pod's own.
    with tempfile.TemporaryDirectory(prefix="bench-pods-", dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "store").mkdir()
        home = make_project(folder / "home")
        with pod_cluster(folder / "cluster", home) as cluster:
            return latency(cluster, folder) + calls(cluster, folder)


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    print(json.dumps(main()))
