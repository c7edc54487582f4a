"""
Steps as another user of the operating system: what they can read, and that nothing of them is left.

The tests need root; `sudo` is not tried.
"""

from __future__ import annotations

import dataclasses
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from live_processes import is_alive
from other_users import USER, give, open_folder, open_interpreter
from project import REPOSITORY, make_project

from mlops.contract.refs import DatasetRef
from mlops.contract.section import SpecError
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.other_user import as_user
from mlops_provider.launchers.process import ProcessLauncher
from mlops_provider.testing.launchers import LauncherConformance, launch


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with open_folder() as folder, open_interpreter(REPOSITORY / ".venv/training/bin/python"):
        home = make_project(folder / "home")
        for name in ("store", "calls"):
            give(home / name, USER)
        yield home


@pytest.fixture
def deployment(home: Path) -> Deployment:
    return Deployment(
        home=home,
        store=f"file://{home}/store",
        tracking_uri="http://127.0.0.1:1",
        tracking_url="http://127.0.0.1:1",
        pythons={name: home / f".venv/{name}/bin/python" for name in ("training", "validation")},
        warm_runtimes=False,
        run_as_user=USER,
    )


@pytest.fixture
def launcher(deployment: Deployment) -> ProcessLauncher:
    return ProcessLauncher(deployment)


class TestOtherUser(LauncherConformance):
    """The same as of any launcher."""


def test_a_step_of_another_user_reads_nothing_of_airflow(
    launcher: ProcessLauncher, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: code of a recipe reads the key that signs releases, or the secret that signs Airflow's tokens."""
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "open sesame")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/of/airflow")
    key = home / "release.pem"
    key.write_text("open sesame")
    key.chmod(0o600)
    script = f"""
import os, pathlib
print("uid", os.getuid(), os.geteuid(), sorted(os.getgroups()))
print("home", os.environ["HOME"], "XDG_RUNTIME_DIR" in os.environ)
print("own secret", os.environ["MLOPS_CONNECTION_DB"])
tried = [{str(key)!r}, "/proc/{os.getpid()}/environ", "/proc/{os.getpid()}/mem", "/proc/{os.getpid()}/fd/0"]
tried.append(f"/proc/{{os.getppid()}}/environ")
for path in tried:
    try:
        print("read", path, "sesame" in pathlib.Path(path).read_bytes().decode(errors="replace"))
    except OSError as error:
        print("refused", type(error).__name__)
try:
    os.kill({os.getpid()}, 0)
except PermissionError:
    print("refused kill")
print("environment", [name for name in os.environ if "AIRFLOW" in name])
"""
    request = launch(home, f"exec({script!r})", "reads_nothing")
    request = dataclasses.replace(request, environment={"MLOPS_CONNECTION_DB": "its own"})
    lines: list[str] = []
    assert isinstance(launcher.run(request, lines.append).result, DatasetRef), lines
    user = pwd.getpwnam(USER)
    assert f"uid {user.pw_uid} {user.pw_uid} [{user.pw_gid}]" in lines
    assert f"home {user.pw_dir} False" in lines
    assert "own secret its own" in lines
    assert lines.count("refused PermissionError") == 4, lines
    assert "refused kill" in lines
    # Its parent is of its own user, and was given nothing.
    assert [line for line in lines if line.startswith("read ")] == [f"read {lines_parent(lines)} False"]
    assert "environment []" in lines


def lines_parent(lines: list[str]) -> str:
    return next(line.split()[1] for line in lines if line.startswith("read "))


def test_each_user_has_a_warm_runtime_of_its_own(deployment: Deployment, home: Path) -> None:
    """Broken: the step of one user is forked from a process of another one, and is that one's."""
    launcher = ProcessLauncher(dataclasses.replace(deployment, warm_runtimes=True))
    script = "import os, pathlib; print('by', pathlib.Path(f'/proc/{os.getppid()}/cmdline').read_bytes(), os.getuid())"
    deadline = time.monotonic() + 200
    try:
        while True:
            lines: list[str] = []
            outcome = launcher.run(launch(home, script, f"warm_{time.monotonic_ns()}"), lines.append)
            assert isinstance(outcome.result, DatasetRef), lines
            (by,) = [line for line in lines if line.startswith("by ")]
            if "warm runtime" in by:
                break
            assert time.monotonic() < deadline, by
            time.sleep(1)
        assert by.endswith(f" {pwd.getpwnam(USER).pw_uid}")
    finally:
        for process in psutil.process_iter(["cwd"]):
            if process.info["cwd"] == str(home):
                process.kill()


def test_its_input_and_result_are_for_itself(launcher: ProcessLauncher, home: Path) -> None:
    """Broken: another team's step, of a third user, reads the settings, or writes the result."""
    script = """
import os, pathlib, stat
for path in (pathlib.Path(os.environ["MLOPS_RESULT_PATH"]).parent,):
    print("mode", oct(stat.S_IMODE(path.stat().st_mode)), path.stat().st_uid == os.getuid())
"""
    lines: list[str] = []
    assert launcher.run(launch(home, f"exec({script!r})", "files"), lines.append).result is not None
    assert "mode 0o700 True" in lines


def test_a_step_of_another_user_dies_with_its_launcher(home: Path) -> None:
    """After a SIGKILL of Airflow the retry would otherwise run beside the old process."""
    request = launch(home, "import os, time; print('pid', os.getpid()); time.sleep(300)", "orphan_of_user")
    script = f"""
from pathlib import Path
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch
from mlops_provider.launchers.process import ProcessLauncher
from mlops.contract.step import StepInput
home = Path({str(home)!r})
deployment = Deployment(home=home, store=f"file://{{home}}/store", tracking_uri="", tracking_url="",
    pythons={{"training": home / ".venv/training/bin/python"}}, warm_runtimes=False, run_as_user={USER!r})
launch = Launch(input=StepInput.load({request.input.dump()!r}), runtime="training")
ProcessLauncher(deployment).run(launch, lambda line: print(line, flush=True))
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "plugins"}
    )
    assert parent.stdout is not None
    step = next(int(line.split()[1]) for line in parent.stdout if line.startswith("pid "))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 30
    while is_alive(step):
        assert time.monotonic() < deadline, "the step outlived its launcher"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ("nobody_of_that_name", "this machine has no user 'nobody_of_that_name': make one, as by `useradd"),
        ("root", "'root' is root, from whom nothing can be hidden"),
    ],
)
def test_a_user_that_hides_nothing_is_refused(user: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        as_user(user)


def test_who_may_not_become_the_user_is_told_how(deployment: Deployment, home: Path) -> None:
    """Airflow runs as an ordinary user, on a machine without sudo: the step must not run as Airflow's instead."""
    script = f"""
import os
os.setgroups([]); os.setgid(65534); os.setuid(65534); os.environ["PATH"] = "/nowhere"
from mlops_provider.launchers.other_user import as_user
as_user({USER!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": "plugins"}, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode
    assert "'nobody', who may not become 'games', and there is no sudo: install it" in done.stderr.decode()


def test_an_interpreter_that_it_may_not_read_is_named(deployment: Deployment, home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(deployment.pythons["training"])
    pythons = {**deployment.pythons, "training": closed / "python"}
    with pytest.raises(SpecError, match="'games' must be able to read .*/closed/python and .*, and to enter the"):
        ProcessLauncher(dataclasses.replace(deployment, pythons=pythons)).run(launch(home, "pass", "closed"), print)
