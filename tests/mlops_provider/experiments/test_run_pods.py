"""``mlops run --launcher pod``: the steps of an experiment in a cluster, watched from a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pod_cluster import PodCluster, pod_cluster, visible_folder
from project import make_project
from terminal import Terminal

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
