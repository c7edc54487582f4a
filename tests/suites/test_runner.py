"""The run of the tests itself, over small suites: what it lets pass, what it does not, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CONFTEST = """
from suites.hooks import SuiteHooks

def pytest_configure(config):
    for marker in ("server", "gang"):
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(SuiteHooks(config))
"""
PASSES = "def test_passes():\n    pass\n"
UNSTEADY = """
from pathlib import Path

def test_unsteady():
    mark = Path(__file__).with_name("was here")
    was = mark.exists()
    mark.touch()
    assert was, "the first time it fails"
"""
PROGRAM = """
import sys
from pathlib import Path

from suites.runner import Run
from suites.suite import REPOSITORY, Suite

class Here(Suite):
    python = sys.executable

suites = [Here(name=name, environment="", paths=(name,), workers=int(workers)) for name, workers in {suites}.items()]
sys.exit(Run(suites=suites, folder=Path.cwd(), light={light}).run())
"""


@pytest.fixture
def run(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs suites, each a folder of files by name, and returns the exit code and the lines that were printed."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q --import-mode=importlib\n")

    def run_suites(*, light: bool = False, workers: int = 0, **suites: dict[str, str]) -> tuple[int, list[str]]:
        for suite, files in suites.items():
            (tmp_path / suite).mkdir(exist_ok=True)
            for name, code in files.items():
                (tmp_path / suite / name).write_text(code)
        program = PROGRAM.replace("{suites}", repr(dict.fromkeys(suites, workers))).replace("{light}", repr(light))
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(TESTS), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout.splitlines()

    return run_suites


def test_all_pass_side_by_side(run) -> None:  # type: ignore[no-untyped-def]
    """Broken: green is not green, or nobody can count what ran."""
    skipped = "import pytest\n\n@pytest.mark.skip(reason='no GPU')\ndef test_gpu():\n    pass\n"
    code, lines = run(one={"test_a.py": PASSES}, two={"test_b.py": PASSES, "test_c.py": skipped}, workers=2)
    assert code == 0
    assert lines[-1] == "tests: 2 passed, 0 failed, 1 skipped"
    assert {line.split()[0] for line in lines if line.startswith(("one", "two"))} == {"one", "two"}


def test_a_red_run_ends_with_the_first_assertion_of_each_test(run) -> None:  # type: ignore[no-untyped-def]
    """Broken: a red run must be run again to be understood."""
    fails = (
        "import subprocess, sys\n\n"
        "def test_fails(tmp_path):\n"
        "    sleeper = 'import time\\ndef asleep():\\n time.sleep(60)\\nasleep()'\n"
        "    subprocess.Popen([sys.executable, '-c', sleeper])\n"
        "    (tmp_path / 'log').write_text('the last words')\n"
        "    import time; time.sleep(1)\n"
        "    try:\n        assert 1 == 2, 'they differ'\n"
        "    finally:\n        pass\n"
    )
    broken = "import nowhere\n"
    code, lines = run(one={"test_a.py": fails, "test_b.py": PASSES}, two={"test_broken.py": broken})
    assert code == 1
    at_once = next(line for line in lines if "FAILED one/test_a.py::test_fails" in line)
    assert lines.index(at_once) < lines.index(
        next(line for line in lines if line.endswith("one ended: 2 tests, 1 failed"))
    )
    text = "\n".join(lines)
    assert "asleep" in text, "the stacks of its processes"
    assert "the last words" in text, "the ends of its logs"
    assert "left behind: process" in text
    assert "one/test_a.py::test_fails" in next(line for line in lines if line.startswith("left behind: process"))
    assert lines[-2].startswith("FAILED one/test_a.py::test_fails: AssertionError: they differ")
    assert lines[-1].startswith("FAILED two/test_broken.py: ")
    assert "tests: 1 passed, 2 failed, 0 skipped" in lines


def test_what_passes_alone_is_unsteady_and_named(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Broken: chance decides what lands, or unsteady tests stay unseen."""
    code, lines = run(one={"test_a.py": UNSTEADY})
    assert code == 0
    (said,) = (line for line in lines if line.startswith("unsteady: one/test_a.py::test_unsteady"))
    assert "AssertionError" in said, "why, where the log is all that is left"
    assert lines[-1] == "tests: 1 passed, 0 failed, 0 skipped"
    assert json.loads((tmp_path / "build/unsteady.json").read_text())[0]["test"] == "one/test_a.py::test_unsteady"


def test_a_new_test_must_be_steady(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Broken: tests come in that fail now and then."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (
        ["init", "-q"],
        ["commit", "-q", "--allow-empty", "-m", "a"],
        ["commit", "-q", "--allow-empty", "-m", "b"],
    ):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    code, lines = run(one={"test_a.py": UNSTEADY})
    assert code == 1
    assert lines[-1] == "one/test_a.py::test_unsteady is new in this change, and unsteady"


def test_many_unsteady_tests_are_red(run) -> None:  # type: ignore[no-untyped-def]
    """Broken: a change that makes everything unsteady lands."""
    code, lines = run(one={f"test_{name}.py": UNSTEADY.replace("was here", name) for name in "abc"})
    assert code == 1
    assert lines[-1] == "3 tests are unsteady; 2 may be"


def test_a_file_left_behind_is_red_and_named(run) -> None:  # type: ignore[no-untyped-def]
    """Broken: the disk fills up, run by run."""
    leaves = "import tempfile\n\ndef test_leaves():\n    [tempfile.mkdtemp(prefix='gang-') for _ in range(6)]\n"
    code, lines = run(one={"test_a.py": leaves})
    assert code == 1
    said = next(line for line in lines if line.startswith("left behind: "))
    assert "/gang-" in said
    assert said.endswith(" of one/test_a.py::test_leaves")
    assert lines[-1] == "6 processes or files are left behind; 5 may be: see above"


def test_a_light_run_refuses_gangs_and_servers(run) -> None:  # type: ignore[no-untyped-def]
    """Broken: `make check` grows by a server here and a gang there, until nobody runs it."""
    starts = (
        "import pytest, subprocess, sys\n\n"
        "def test_hides_it():\n    subprocess.run([sys.executable, '-c', 'pass', 'torchrun'], check=True)\n\n"
        "@pytest.mark.gang\ndef test_says_so():\n"
        "    subprocess.run([sys.executable, '-c', 'pass', 'torchrun'], check=True)\n\n"
        "def test_starts_another_program():\n    subprocess.run([sys.executable, '-c', 'pass'], check=True)\n"
    )
    code, lines = run(one={"test_a.py": starts}, light=True)
    assert code == 1
    assert "tests: 1 passed, 1 failed, 0 skipped" in lines
    assert "mark it with @pytest.mark.gang" in lines[-1]
    assert run(one={"test_a.py": starts})[0] == 0
