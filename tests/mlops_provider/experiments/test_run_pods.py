"""``mlops run --launcher pod``: the steps of an experiment in a cluster, watched from a terminal."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pod_cluster import PodCluster, pod_cluster, visible_folder
from project import make_project
from terminal import Terminal

from mlops.contract.recipe_bundles import pack
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.experiments.asked import Experiment
from mlops_provider.experiments.dags import parameters
from mlops_provider.experiments.line import Line
from mlops_provider.experiments.request import Request
from mlops_provider.experiments.sent_recipes import keep, sent_recipes
from mlops_provider.spec_file import load_pipeline

pytestmark = pytest.mark.server
ARGUMENTS = ("run", "events", "--as-of", "2024-01-10", "--until", "features")
IN_PODS = (*ARGUMENTS, "--launcher", "pod")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with visible_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def home(folder: Path) -> Path:
    (folder / "store").mkdir()
    return make_project(folder / "home")


@pytest.fixture(scope="module")
def cluster(folder: Path, home: Path) -> Iterator[PodCluster]:
    with pod_cluster(folder / "cluster", home) as cluster:
        yield cluster


@pytest.fixture
def terminal(
    home: Path, folder: Path, cluster: PodCluster, tracking: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Terminal]:
    for name, value in cluster.settings(writable=[folder / "store"]).items():
        monkeypatch.setenv(name, value)
    yield Terminal(home, folder / "store", tracking)
    assert cluster.wait_until_empty() == [], "something was left behind"


def started(terminal: Terminal, *arguments: str) -> subprocess.Popen[str]:
    """Start the command, and return when its first step is in the middle."""
    (terminal.home / "pause").mkdir(exist_ok=True)
    (terminal.home / "pause/ingest").write_text("10")
    argv, environment = terminal.command(*arguments)
    # What a shell starts in the background ignores Ctrl-C, and so would what tests start that run there.
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *argv], env=environment, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "pausing in ingest" in line:
            return process
    raise AssertionError("".join(lines))


def test_a_killed_terminal_finds_its_job_again(terminal: Terminal) -> None:
    """Broken: the cluster would do the work twice, and the first Job would belong to nobody."""
    process = started(terminal, *IN_PODS, "--name", "killed")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    again = terminal.mlops(*IN_PODS, "--name", "killed", "--json")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("[kubernetes] found Job") == 1, again.stderr
    assert again.stderr.count("[kubernetes] started Job") == 2, "validate and features"
    (terminal.home / "pause/ingest").unlink()
    here = terminal.mlops(*ARGUMENTS, "--name", "here", "--json")
    assert here.returncode == 0, here.stderr
    made, expected = (json.loads(done.stdout)["last"] for done in (again, here))
    assert made["version"] == expected["version"]
    assert made["parent"]["parent"]["version"] == expected["parent"]["parent"]["version"]


def test_code_that_was_sent_runs_in_pods(
    terminal: Terminal, cluster: PodCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the pods, whose image has the deployed recipe, would run that."""
    # Its client reads that once, which another test may have had it do.
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))
    for name, value in terminal.command("run")[1].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__MLOPS__LAUNCHER", "pod")
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_CODE", "pods")
    mine = tmp_path / "include/events"
    shutil.copytree(terminal.home / "include/events", mine, ignore=shutil.ignore_patterns("__pycache__"))
    with (mine / "features.py").open("a") as file:
        file.write("\nprint('the features that were sent')\n")
    data, deployment = pack(mine), Deployment.load()
    file = terminal.home / "dags/events.pipeline.yaml"
    asked: dict[str, Any] = {name: param.value for name, param in parameters(load_pipeline(file)).items()}
    asked |= {"as_of": "2024-01-10", "until": "features", "name": "sent"}
    asked |= {"recipes": {"include/events": hashlib.sha256(data).hexdigest()}}
    experiment = Experiment.of(file, Request.of_params(asked), "ana", datetime.now(UTC))
    asyncio.run(keep(store_of(deployment), experiment.place, {"include/events": data}))
    lines: list[str] = []
    listener = SimpleNamespace(
        begins=lines.append,
        line=lambda what, line: lines.append(line),
        ended=lambda what, ref: None,
        failed=lines.append,
    )
    with sent_recipes(experiment.place, experiment.recipes, deployment) as sent:
        made = Line(experiment=experiment, deployment=deployment, listener=listener, sent=sent).run().prepared
    assert sum("[kubernetes] started Job" in line for line in lines) == 3, lines
    assert any("the features that were sent" in line for line in lines), lines
    for ref in made.lineage():
        assert ref.artifacts["recipe_events"].sha256 == asked["recipes"]["include/events"]


def test_ctrl_c_removes_the_job(terminal: Terminal, cluster: PodCluster) -> None:
    process = started(terminal, *IN_PODS, "--name", "stopped")
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said.endswith("stopped; the same command goes on from here\n")
    assert cluster.wait_until_empty() == []


@pytest.mark.parametrize(
    ("launcher", "message"),
    [("pods", "--launcher must be one of process, pod"), ("include.mine:L", "cannot import include.mine")],
)
def test_a_launcher_that_is_none_is_said_at_once(terminal: Terminal, launcher: str, message: str) -> None:
    done = terminal.mlops(*ARGUMENTS, "--launcher", launcher)
    assert done.returncode == 1
    assert message in done.stdout


def test_a_machine_that_knows_no_cluster_is_told_so(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(terminal.home / "none"))
    done = terminal.mlops(*IN_PODS, "--name", "nowhere")
    assert done.returncode == 1
    assert "the cluster is not known: " in done.stdout
    assert "set [mlops] kubernetes_connection, or KUBECONFIG" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
