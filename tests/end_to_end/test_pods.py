"""
Every step as a Kubernetes Job, of the nightly pipeline, a search and a release, under a real scheduler and triggerer on
PostgreSQL.

What is deferred outlives whatever dies: pods, the triggerer, the scheduler. Afterwards the model is, bit for bit,
the one that processes train undisturbed, and the cluster is empty.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from live_airflow import LiveAirflow
from pod_cluster import PodCluster, pod_cluster, visible_folder
from project import REPOSITORY, add_recipe_file, make_project
from releases import answer, form, history, register, release, training
from served_metrics import Served
from services import postgres_server
from turns import on_turn

from mlops.contract.refs import CheckpointRef, StudyRef
from mlops_provider.launchers.kubernetes.job import PodTask
from mlops_provider.launchers.kubernetes.manifests import Task, deployment_id
from mlops_provider.local.intervals import QUICK
from mlops_provider.local.ports import free_port
from mlops_provider.local.stack import Stack
from mlops_provider.pod_spec import Pods
from mlops_provider.testing.launchers import launch

NUM_STRIKES = int(os.environ.get("CHAOS_EVICTIONS", "0"))
chaos = pytest.mark.skipif(NUM_STRIKES == 0, reason="takes minutes: make chaos")
NIGHT_SECONDS = 900 if NUM_STRIKES else 600
SECONDS_BETWEEN_STRIKES = (4.0, 10.0)
EPOCHS = 30 if NUM_STRIKES else 3
GANG = {
    "nodes": 2,
    "processes": 1,
    "epochs": EPOCHS,
    "checkpoint": {"every_steps": 5},
    "metrics": ["include.events.slow:SLOW"],
}
"""Two pods of a process each, for long enough to be disturbed."""
SLOW = """
import itertools, os, signal, time
from pathlib import Path

from mlops import MetricSpec, mean_over_samples
from mlops.objectives.ranking import ranking_loss

calls = itertools.count()

def slow(predictions, parameter):
    time.sleep(0.4)
    return mean_over_samples(predictions.offsets[1:] * 1.0)

SLOW = MetricSpec(measures=["relevance", "logit"], higher_is_better=True, title="slow", weighted=slow)

def stopping_loss(model, batch):
    stopped = Path(os.environ["MLOPS_STORE"].removeprefix("file://"), "stopped")
    if os.environ["RANK"] == "1" and next(calls) == 10 and not stopped.exists():
        stopped.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    return ranking_loss(model, batch)
"""
PIPELINES = {
    "processes": {"launcher": "process"},
    "pods": {},
    "struck": {},
    "removed": {},
    "hanging": {"train": {"loss": "include.events.slow:stopping_loss", "hang_seconds": 4}},
    "exact": {"launcher": "process", "train": {"nodes": 1, "elastic": "exact"}},
    "elastic": {"train": {"nodes": "1:2", "elastic": "exact"}},
}
"""What each says beside the rest."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with visible_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def home(folder: Path) -> Path:
    home = make_project(folder / "home")
    add_recipe_file(home, "events", "slow.py", SLOW)
    (home / "dags/listening.py").unlink()
    for path in ("tests/fixtures/dags/searching.py", "tests/fixtures/dags/releasing.py", "dags/rollback.py"):
        shutil.copy(REPOSITORY / path, home / "dags")
    original = home / "dags/events.pipeline.yaml"
    spec = yaml.safe_load(original.read_text())
    original.unlink()
    spec |= {"schedule": None, "train": spec["train"] | GANG}
    for name, changes in PIPELINES.items():
        own = (
            spec | {"launcher": "pod"} | changes | {"pipeline": name, "train": spec["train"] | changes.get("train", {})}
        )
        for step in ("evaluate", "register"):
            own[step] = spec[step] | {"registered_model": name}
        (home / f"dags/{name}.pipeline.yaml").write_text(yaml.safe_dump(own, sort_keys=False))
    return home


@pytest.fixture(scope="module")
def cluster(folder: Path, home: Path) -> Iterator[PodCluster]:
    with pod_cluster(folder / "cluster", home) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def airflow(folder: Path, home: Path, cluster: PodCluster, served: Served) -> Iterator[LiveAirflow]:
    with postgres_server() as database, postgres_server(cluster.host) as studies:
        stack = Stack(
            home=home,
            root=folder / "local",
            airflow_port=free_port(),
            mlflow_port=free_port(),
            mlflow_host=cluster.host,
            intervals=QUICK,
            settings={
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.replace("postgresql:", "postgresql+psycopg2:"),
                "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
                "AIRFLOW_CONN_STUDIES": studies,
                **cluster.settings(writable=[folder / "local/store"]),
            },
        )
        stack.store.mkdir(parents=True)
        airflow = LiveAirflow(stack)
        airflow.start()
        yield airflow
        stack.stop()


@pytest.fixture(scope="module")
def weights(airflow: LiveAirflow) -> str:
    """Digest of the model that processes train, undisturbed."""
    return digest(airflow, "processes", airflow.trigger(10, "processes"))


def digest(airflow: LiveAirflow, dag_id: str, run_id: str) -> str:
    """Of the weights that a run has trained, when it is done."""
    assert airflow.client.wait(dag_id, run_id, NIGHT_SECONDS) == "success", airflow.states(run_id, dag_id)
    ref = CheckpointRef.from_wire(airflow.client.xcom(dag_id, run_id, "train"))
    return ref.artifacts["weights"].sha256


def wait_for_pods(cluster: PodCluster, number: int, step: str, timeout_seconds: float = 120) -> None:
    """Until so many pods of a step run."""
    deadline = time.monotonic() + timeout_seconds
    while len(running := [pod for pod in cluster.running() if f"-{step}-" in pod]) < number:
        assert time.monotonic() < deadline, f"{running} of {number} pods of {step} run"
        time.sleep(0.2)


def test_pods_train_the_model_that_processes_train(airflow: LiveAirflow, cluster: PodCluster, weights: str) -> None:
    run_id = airflow.trigger(10, "pods")
    assert digest(airflow, "pods", run_id) == weights
    log = airflow.client.log("pods", run_id, "train", 1)
    assert "[kubernetes] started Job mlops-pods-train-" in log
    assert "[0] " in log, "what the pods print is in the task's log"
    assert f"epoch {EPOCHS}/{EPOCHS}" in log
    assert cluster.wait_until_empty() == []


@chaos
@pytest.mark.timeout(1200)
def test_trials_are_jobs_that_outlive_their_pods(airflow: LiveAirflow, cluster: PodCluster, weights: str) -> None:
    """
    Broken: a search on spot nodes would lose its trials, or begin them anew. The pod of one is evicted, that of another
    killed.
    """
    features = airflow.client.xcom("processes", "night_10", "features")
    airflow.client.wait_for_dag("searching")
    airflow.client.unpause("searching")
    airflow.client.trigger("searching", "search", None, {"ref": features})
    strike_trials(airflow, cluster, {0: cluster.evict, 1: cluster.kill})
    assert airflow.client.wait("searching", "search", NIGHT_SECONDS) == "success", airflow.states("search", "searching")

    for trial, last_try in ((0, 1), (1, 2)):
        log = airflow.client.log("searching", "search", "tune_trial", last_try, trial)
        assert f"trial {trial} goes on" in log
        assert "going on after step" in log
    study = StudyRef.from_wire(airflow.client.xcom("searching", "search", "tune"))
    assert study.trials == {"complete": 2, "pruned": 1, "failed": 0, "not begun": 0}
    assert (study.best_trial, study.parameters) == (0, {"learning_rate": 0.05})
    trained = CheckpointRef.from_wire(airflow.client.xcom("searching", "search", "train"))
    assert trained.ancestor(StudyRef) == study
    runs = {run["info"]["run_id"]: run["data"] for run in airflow.training_runs("searching")}
    assert {"key": "learning_rate", "value": "0.05"} in runs[trained.tracking_run]["params"]
    parent = {"key": "mlflow.parentRunId", "value": study.tracking_run}
    assert len([run for run in runs.values() if parent in run["tags"]]) == 3
    assert cluster.wait_until_empty() == []


def test_a_terminal_finds_what_the_nights_have_made(airflow: LiveAirflow, cluster: PodCluster, weights: str) -> None:
    """Broken: the steps of the night would run again, each in a pod."""
    settings = {**airflow.stack.environment(), "PYTHONPATH": f"{REPOSITORY}/plugins:{REPOSITORY}/training"}
    command = [sys.executable, "-m", "mlops_provider.cli", "run", "processes", "--home", str(airflow.home)]
    done = subprocess.run(
        [*command, "--launcher", "pod", "--as-of", "2024-01-10", "--until", "features"],
        env=os.environ | settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("is already committed at pipelines/processes/") == 3, done.stdout
    assert cluster.objects() == []


def strike_trials(airflow: LiveAirflow, cluster: PodCluster, strikes: Mapping[int, Callable[[str], None]]) -> None:
    """Each of these trials of ``searching`` when it has done two epochs, by what is given for it."""
    deployment = deployment_id(f"file://{airflow.stack.store}")
    left = {
        Task(
            deployment=deployment, dag_id="searching", run_id="search", task_id="tune_trial", map_index=number
        ).job_name: strike
        for number, strike in strikes.items()
    }
    deadline = time.monotonic() + NIGHT_SECONDS
    while left:
        pods = [pod for pod in cluster.running() if "-tune-trial-" in pod]
        assert len(pods) <= 2, "parallel is 2"
        for pod in pods:
            job = pod.rsplit("-", 2)[0]
            if job in left and "epoch 2/" in cluster.log(pod):
                left.pop(job)(pod)
        assert time.monotonic() < deadline, f"{left} did not come to their second epoch: {pods}"
        time.sleep(0.1)


@on_turn(0, 2)
@pytest.mark.timeout(1200)
def test_pods_put_a_version_into_production_and_take_it_back(
    airflow: LiveAirflow, cluster: PodCluster, served: Served
) -> None:
    """Broken: a deployment of pods alone would have no way into production, or none back."""
    for dag_id in ("releasing_with_both", "rollback"):
        airflow.client.wait_for_dag(dag_id)
        airflow.client.unpause(dag_id)
    former = register(airflow)
    key = f"--key={airflow.stack.root}/keys/release.pem"
    training(airflow, "-m", "mlops.commands", "models", "promote", "events", former.version, "--why", "x", key)
    version = register(airflow)
    served.answer = {"samples": 100, "error_rate": 0.001}
    run_id = release(airflow, version, "releasing_with_both")
    form(airflow, run_id, "releasing_with_both")
    answer(airflow, "vera", run_id, "Approve", "ship it", "releasing_with_both")
    assert airflow.client.wait("releasing_with_both", run_id, NIGHT_SECONDS) == "success"
    assert airflow.aliases() == {"champion": version.version}
    for step in ("approve", "canary", "promote"):
        assert "[kubernetes] started Job " in airflow.client.log("releasing_with_both", run_id, step, 1), step

    airflow.client.trigger("rollback", "back", None, {"model": "events", "why": "complaints"})
    assert airflow.client.wait("rollback", "back", NIGHT_SECONDS) == "success"
    assert airflow.aliases() == {"champion": former.version}
    assert [(entry["action"], entry["version"]) for entry in history(airflow)] == [
        ("register", former.version),
        ("promote", former.version),
        ("register", version.version),
        ("approve", version.version),
        ("canary", version.version),
        ("promote", version.version),
        ("rollback", former.version),
    ]
    assert cluster.wait_until_empty() == []


@chaos
@pytest.mark.timeout(1200)
def test_whatever_dies_the_model_is_the_same(airflow: LiveAirflow, cluster: PodCluster, weights: str) -> None:
    """A pod is evicted every few seconds; the triggerer and the scheduler are killed in the middle of the training."""
    run_id = airflow.trigger(10, "struck")
    with evictions(cluster) as evicted:
        wait_for_pods(cluster, 2, "train")
        airflow.stack.kill("triggerer")
        airflow.stack.kill("scheduler")
        airflow.start()
        assert digest(airflow, "struck", run_id) == weights
    assert [pod for pod in evicted if "-train-" in pod], f"the training was not struck: {evicted}"
    assert len(airflow.model_versions("struck")) == 1
    assert airflow.client.tasks("struck", run_id)["train"]["try_number"] == 1, "an eviction is no failure"
    assert cluster.wait_until_empty() == []


@contextmanager
def evictions(cluster: PodCluster) -> Iterator[list[str]]:
    """Of a pod at random, every few seconds; their names."""
    chance = random.Random(5)
    done = threading.Event()
    evicted: list[str] = []

    def strike() -> None:
        while not done.wait(chance.uniform(*SECONDS_BETWEEN_STRIKES)) and len(evicted) < NUM_STRIKES:
            if pods := cluster.running():
                evicted.append(chance.choice(pods))
                cluster.evict(evicted[-1])

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        yield evicted
    finally:
        done.set()
        striker.join()


@chaos
@pytest.mark.timeout(1200)
def test_a_gang_of_one_or_two_pods_trains_the_same_model_in_exact_mode(
    airflow: LiveAirflow, cluster: PodCluster
) -> None:
    alone = digest(airflow, "exact", airflow.trigger(10, "exact"))
    run_id = airflow.trigger(10, "elastic")
    with evictions(cluster) as evicted:
        assert digest(airflow, "elastic", run_id) == alone
    assert [pod for pod in evicted if "-train-" in pod], f"the training was not struck: {evicted}"
    assert cluster.wait_until_empty() == []


@chaos
@pytest.mark.timeout(1200)
def test_a_rank_that_hangs_is_named_and_costs_nothing_else(
    airflow: LiveAirflow, cluster: PodCluster, weights: str
) -> None:
    run_id = airflow.trigger(10, "hanging")
    assert digest(airflow, "hanging", run_id) == weights
    log = airflow.client.log("hanging", run_id, "train", 1)
    assert "Late is rank 1 on " in log
    assert "stopped by a signal" in log
    missing = [epoch for epoch in range(1, EPOCHS + 1) if f"epoch {epoch}/{EPOCHS} done" not in log]
    assert missing == [], "what the pods print is in the task's log"
    assert airflow.client.tasks("hanging", run_id)["train"]["try_number"] == 1
    assert cluster.wait_until_empty() == []


@chaos
def test_orphaned_jobs_are_found_and_removed(
    airflow: LiveAirflow, cluster: PodCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a lost database leaves running is found, and what a task follows is left alone."""
    run_id = airflow.trigger(16, "removed")
    wait_for_pods(cluster, 1, "ingest")
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))
    task = Task(
        deployment=deployment_id(f"file://{airflow.stack.store}"),
        dag_id="forgotten",
        run_id="yesterday",
        task_id="ingest",
    )
    deployment = cluster.deployment(airflow.stack.store)
    orphan = PodTask(task=task, pods=Pods.model_validate(cluster.pods(writable=[]))).job(deployment)
    name = asyncio.run(orphan.start(launch(home, "import time; time.sleep(300)", "forgotten"), print)).name

    def gc(*options: str) -> str:
        command = [sys.executable, "-m", "mlops_provider.cli", "gc", "--airflow-url", airflow.stack.airflow_url]
        environment = os.environ | airflow.stack.environment()
        return subprocess.run([*command, *options], env=environment, check=True, capture_output=True, text=True).stdout

    listed = gc()
    assert name in listed
    assert "mlops gc --delete" in listed
    assert "removed" not in listed.replace("--delete", ""), "its task follows it"
    assert "removed 1" in gc("--delete")
    assert "no orphaned Jobs" in gc()
    airflow.client.request("PATCH", f"/dags/removed/dagRuns/{run_id}", json={"state": "failed"})
    assert cluster.wait_until_empty() == [], "a run that is given up leaves nothing behind"


PHASES: dict[str, Callable[[LiveAirflow, PodCluster, str], bool]] = {
    "triggered": lambda airflow, cluster, run_id: True,
    "queued": lambda airflow, cluster, run_id: state(airflow, run_id, "ingest") in ("queued", "running"),
    "Job made": lambda airflow, cluster, run_id: bool(cluster.objects()),
    "pod runs": lambda airflow, cluster, run_id: bool(cluster.running()),
    "deferred": lambda airflow, cluster, run_id: state(airflow, run_id, "ingest") == "deferred",
    "next step": lambda airflow, cluster, run_id: state(airflow, run_id, "ingest") == "success",
    "training": lambda airflow, cluster, run_id: len([pod for pod in cluster.running() if "-train-" in pod]) == 2,
    "trained": lambda airflow, cluster, run_id: state(airflow, run_id, "train") == "success",
}
"""Of a run, and how one sees that it has come so far."""


def state(airflow: LiveAirflow, run_id: str, task_id: str) -> str | None:
    return airflow.states(run_id, "removed").get(task_id)


@pytest.mark.timeout(1200)
def test_a_run_that_is_given_up_and_deleted_leaves_nothing_behind(airflow: LiveAirflow, cluster: PodCluster) -> None:
    chance = random.Random(3)
    phases = list(PHASES) if NUM_STRIKES else ["Job made", "deferred"]
    for day, phase in enumerate(phases, start=8):
        run_id = airflow.trigger(day, "removed")
        deadline = time.monotonic() + NIGHT_SECONDS
        while not PHASES[phase](airflow, cluster, run_id):
            assert time.monotonic() < deadline, f"{phase}: {airflow.states(run_id, 'removed')}"
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 0.5))
        airflow.client.request("PATCH", f"/dags/removed/dagRuns/{run_id}", json={"state": "failed"})
        airflow.client.request("DELETE", f"/dags/removed/dagRuns/{run_id}")
        # It may have been about to start one.
        time.sleep(3)
        assert cluster.wait_until_empty() == [], phase


@pytest.mark.timeout(600)
def test_a_cancelled_experiment_leaves_nothing_on_the_cluster(airflow: LiveAirflow, cluster: PodCluster) -> None:
    """Broken: its pods would hold their GPUs until the Job's deadline, and nobody would look for them."""
    dag_id = "removed.experiments"
    airflow.client.trigger(dag_id, "cancelled", None, {"as_of": "2024-01-20"})
    wait_for_pods(cluster, 1, "ingest", NIGHT_SECONDS)
    airflow.client.request("PATCH", f"/dags/{dag_id}/dagRuns/cancelled", json={"state": "failed"})
    assert cluster.wait_until_empty() == []
