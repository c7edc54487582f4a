from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from live_processes import is_alive
from project import make_project

from mlops.contract.refs import DatasetRef
from mlops.contract.step import Failure
from mlops.contract.warm import end_all
from mlops_provider import processes
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import step_argv
from mlops_provider.launchers.process import ProcessLauncher, step_environment
from mlops_provider.launchers.scratch import scratch_folder
from mlops_provider.testing.launchers import LauncherConformance, deployment_of, launch


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("project") / "home")


@pytest.fixture
def deployment(home: Path) -> Deployment:
    return deployment_of(home)


@pytest.fixture(scope="module")
def warm(home: Path) -> Iterator[None]:
    """The warm training runtime is there."""
    launcher = ProcessLauncher(deployment_of(home))
    deadline = time.monotonic() + 120
    while parent_of_step(launcher, home) == os.getpid():
        assert time.monotonic() < deadline, "no step was forked by a warm runtime"
        time.sleep(0.5)
    yield
    ended = end_all(str(home))
    assert ended
    assert not processes.wait_ended([each for pid in ended for each in processes.tree(pid)], 10)


def parent_of_step(launcher: ProcessLauncher, home: Path) -> int:
    lines: list[str] = []
    launcher.run(launch(home, "import os; print('parent', os.getppid())", f"parent_{uuid.uuid4().hex}"), lines.append)
    (parent,) = [int(line.split()[1]) for line in lines if line.startswith("parent ")]
    return parent


@pytest.fixture
def launcher(deployment: Deployment, warm: None) -> ProcessLauncher:
    return ProcessLauncher(deployment)


@pytest.mark.gang
class TestProcessLauncher(LauncherConformance):
    """Steps are forked from a warm runtime."""


@pytest.mark.gang
class TestColdProcessLauncher(LauncherConformance):
    """Each step is a new interpreter."""

    @pytest.fixture(scope="class")
    def home(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return make_project(tmp_path_factory.mktemp("project") / "home")

    @pytest.fixture
    def launcher(self, deployment: Deployment) -> ProcessLauncher:
        return ProcessLauncher(dataclasses.replace(deployment, warm_runtimes=False))


def test_workers_run_under_torchrun() -> None:
    assert step_argv("py", "in.json", 0) == ["py", "-m", "mlops.steps", "in.json"]
    assert step_argv("py", "in.json", 2, nodes="1:4", max_restarts=3, hang_seconds=300) == [
        *("py", "-m", "mlops.steps.torchrun", "--nnodes=1:4", "--nproc-per-node=2", "--max-restarts=3"),
        *("--hang-seconds=300", "-m", "mlops.steps", "in.json"),
    ]


@pytest.mark.gang
def test_a_killed_worker_is_named(launcher: ProcessLauncher, home: Path) -> None:
    """Broken: the task would say no more than that it was lost."""
    kill = "import os, signal; print('last words', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    request = dataclasses.replace(launch(home, kill, "worker_killed"), processes=1)
    failure = launcher.run(request, lambda line: None).result
    assert isinstance(failure, Failure)
    assert (failure.type, failure.retryable) == ("RankLostError", True)
    assert "rank 0 of 1" in failure.message
    assert "SIGKILL" in failure.message
    assert "last words" in failure.message


@pytest.mark.gang
@pytest.mark.parametrize("processes", [0, 1])
def test_a_killed_step_leaves_no_files(
    deployment: Deployment, home: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """Broken: each training that runs out of memory leaves its files, until the worker's disk is full."""
    places = tempfile.TemporaryDirectory()  # a shorter path than tmp_path's: a socket is made in it
    monkeypatch.setenv("TMPDIR", places.name)
    monkeypatch.setattr(tempfile, "tempdir", None)
    kill = (
        "import os, signal; from mlops.features.batches import batches_of; import polars as pl; "
        "batches_of(pl.DataFrame({'x': [1]}), (), rows=1).__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    request = dataclasses.replace(launch(home, kill, f"killed_with_files_{processes}"), processes=processes)
    launcher = ProcessLauncher(dataclasses.replace(deployment, warm_runtimes=False))
    with places:
        assert "SIGKILL" in str(launcher.run(request, print))
        left = set(os.listdir(places.name))
    assert not {name for name in left if not name.startswith("torchinductor_")}, "all but torch's own cache"


@pytest.mark.gang
def test_what_a_killed_launcher_leaves_goes_with_the_next(
    deployment: Deployment, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: each kill of Airflow's worker leaves the files of its step, until the disk is full."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    hold = (
        f"import os, signal, tempfile, time; tempfile.tempdir = {str(tmp_path)!r}; "
        "from mlops_provider.launchers.scratch import scratch_folder; "
        "manager = scratch_folder('train'); (manager.__enter__() / 'shard').touch(); print(flush=True); "
    )
    dead = subprocess.run([sys.executable, "-c", hold + "os.kill(os.getpid(), signal.SIGKILL)"], check=False)
    assert dead.returncode == -signal.SIGKILL
    with subprocess.Popen([sys.executable, "-c", hold + "time.sleep(300)"], stdout=subprocess.PIPE) as living:
        assert living.stdout is not None
        living.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 1, "the second has removed what the first left"
        launcher = ProcessLauncher(dataclasses.replace(deployment, warm_runtimes=False))
        assert isinstance(launcher.run(launch(home, "pass", "after_a_kill"), print).result, DatasetRef)
        assert [path.name for path in tmp_path.glob("*/*")] == ["shard"], "that of the launcher that lives"
        living.kill()


@pytest.mark.gang
def test_nodes_of_one_machine_return_one_ref(deployment: Deployment, home: Path) -> None:
    """Broken: several nodes would commit several times, or none be heard."""
    # They have one thread each, and so a warm runtime of their own: not for one test.
    launcher = ProcessLauncher(dataclasses.replace(deployment, warm_runtimes=False))
    request = dataclasses.replace(launch(home, "pass", "two_nodes"), processes=1, nodes="1:2", max_restarts=1)
    lines: list[str] = []
    assert isinstance(launcher.run(request, lines.append).result, DatasetRef), lines


def test_airflows_secrets_stay_out_of_the_step(deployment: Deployment) -> None:
    """User code runs in the step: it must not see the keys that sign Airflow's tokens."""
    environment = step_environment(
        deployment, Path("r.json"), {"AIRFLOW__API_AUTH__JWT_SECRET": "s", "_AIRFLOW_X": "s", "LANG": "C"}
    )
    assert not [name for name in environment if "AIRFLOW" in name]
    assert environment["LANG"] == "C"


@pytest.mark.gang
def test_a_warm_runtime_has_no_secrets(launcher: ProcessLauncher, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there for the steps of all pipelines: none may read what another one, or Airflow, was given."""
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "open sesame")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "open sesame")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::UserWarning")  # read at a start: another warm runtime
    request = launch(home, "pass", "no_secrets")
    request = dataclasses.replace(request, environment={"MLOPS_CONNECTION_DB": "open sesame"})
    assert isinstance(launcher.run(request, lambda line: None).result, DatasetRef)
    found = [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(home)]
    assert found, "the new warm runtime"
    for process in found:
        assert "sesame" not in str(process.environ())


def test_missing_runtime_says_how_to_make_it(deployment: Deployment, home: Path) -> None:
    deployment.pythons["training"] = home / "nowhere/python"  # type: ignore[index]
    with pytest.raises(FileNotFoundError, match=r"make venv.*training_python"):
        ProcessLauncher(deployment).run(launch(home, "pass", "no_python"), lambda line: None)


@pytest.mark.gang
@pytest.mark.parametrize("started", ["warm", "cold"])
@pytest.mark.parametrize("ranks", [0, 1], ids=["plain", "torchrun"])
def test_step_dies_with_its_launcher(warm: None, home: Path, ranks: int, started: str) -> None:
    """After a SIGKILL of Airflow the retry would otherwise run beside the old process."""
    request = launch(home, "import os, time; print('pid', os.getpid()); time.sleep(300)", f"orphan{ranks}{started}")
    script = f"""
import sys, dataclasses
from mlops_provider.launchers.base import Launch
from mlops.contract.refs import DatasetRef
from mlops.contract.step import Failure
from mlops_provider.launchers.process import ProcessLauncher
from mlops_provider.deployment import Deployment
from mlops.contract.step import StepInput
from pathlib import Path
home = Path({str(home)!r})
deployment = Deployment(home=home, store=f"file://{{home}}/store", tracking_uri="", tracking_url="",
    pythons={{"training": home / ".venv/training/bin/python"}}, warm_runtimes={started == "warm"})
launch = Launch(input=StepInput.load({request.input.dump()!r}), runtime="training", processes={ranks})
ProcessLauncher(deployment).run(launch, lambda line: print(line, flush=True))
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "plugins"}
    )
    assert parent.stdout is not None
    step = next(int(line.split()[1]) for line in parent.stdout if line.startswith("pid "))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while is_alive(step):
        assert time.monotonic() < deadline, "the step outlived its launcher"
        time.sleep(0.05)
    with scratch_folder("next"):  # removes what it left
        pass


@pytest.mark.gang
def test_a_daemon_that_holds_the_output_does_not_hold_the_task(launcher: ProcessLauncher, home: Path) -> None:
    """A service that the user's code leaves behind would otherwise keep the task running for ever."""
    statement = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    request, outcome = launch(home, statement, "daemon"), []
    threading.Thread(target=lambda: outcome.append(launcher.run(request, lambda line: None)), daemon=True).start()
    deadline = time.monotonic() + 40
    while not outcome and time.monotonic() < deadline:
        time.sleep(0.1)
    assert outcome
    assert outcome[0].result is not None


@pytest.mark.gang
def test_a_failing_log_does_not_stop_the_step(launcher: ProcessLauncher, home: Path) -> None:
    """With nobody reading, the step would stand still as soon as the pipe is full."""

    def on_line(line: str) -> None:
        raise OSError("no space left for the log")

    request = launch(home, "[print('x' * 100) for _ in range(5000)]", "loud")
    with pytest.raises(OSError, match="no space left for the log"):
        launcher.run(request, on_line)
    assert isinstance(launcher.run(request, lambda line: None).result, DatasetRef), "the step had gone on to its end"
