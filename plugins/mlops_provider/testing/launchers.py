"""
What every launcher must do.

A test module of a launcher makes a subclass of :class:`LauncherConformance` and gives the fixtures that it names::

    @pytest.fixture(scope="module")
    def home(tmp_path_factory):
        return make_home(tmp_path_factory.mktemp("home") / "project", Path("/path/to/the/project"))


    @pytest.fixture
    def launcher(home):
        return MyLauncher.of(StepTask(dag_id="d", run_id="r", task_id="ingest"), deployment_of(home))


    class TestMyLauncher(LauncherConformance):
        pass
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from mlops.contract.refs import DatasetRef
from mlops.contract.sections.ingest import Ingest
from mlops.contract.step import Failure, RunIdentity, StepInput, place
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch, Launcher, Outcome

_TRANSFORM = """
def rows(sources):
    {statement}
    return sources["events"]
"""


NUM_DAYS, ROWS_OF_A_DAY = 14, 100


def make_home(home: Path, project: Path) -> Path:
    """
    Lay out a project folder with rows for an ingest step.

    :param home: the folder, made here
    :param project: a checkout with its runtimes (``make venv``)
    :return: the folder
    """
    (home / "data").mkdir(parents=True)
    for name in ("training", "plugins", ".venv", "requirements.txt"):
        (home / name).symlink_to(project / name)
    first = datetime(2024, 1, 1, tzinfo=UTC)
    times = [first + timedelta(days=day, minutes=row) for day in range(NUM_DAYS) for row in range(ROWS_OF_A_DAY)]
    rows = [f"{at:%Y-%m-%dT%H:%M:%SZ},{number}" for number, at in enumerate(times)]
    (home / "data/events.csv").write_text("\n".join(["at,value", *rows]) + "\n")
    return home


def deployment_of(home: Path) -> Deployment:
    """Return a deployment of such a folder, with a store of its own and without an MLflow server."""
    return Deployment(
        home=home,
        store=f"file://{home}/store",
        tracking_uri="http://127.0.0.1:1",
        tracking_url="http://127.0.0.1:1",
        pythons={name: home / f".venv/{name}/bin/python" for name in ("training", "validation")},
    )


def launch(home: Path, statement: str, name: str) -> Launch:
    """
    Return an ingest step to be launched, whose transform, which is user code, runs a statement first.

    :param home: a folder of :func:`make_home`, or any project whose ``data/events.csv`` has a column ``at``
    :param name: names the step's place and its recipe
    """
    recipe = home / "include" / name
    recipe.mkdir(parents=True, exist_ok=True)
    (recipe / "dataset.py").write_text(_TRANSFORM.format(statement=statement))
    config = Ingest.model_validate(
        {
            "sources": {"events": {"path": "data/events.csv", "event_time": "at"}},
            "transform": f"include.{name}.dataset:rows",
            "event_time": "at",
            "window": 7,
        }
    )
    identity = RunIdentity(
        pipeline="events",
        run_key=f"20240115T000000Z-{name}",
        interval_start="2024-01-14T00:00:00+00:00",
        interval_end="2024-01-15T00:00:00+00:00",
        timezone="UTC",
        dag_id="events",
        task_id="ingest",
        run_id="test",
        try_number=1,
    )
    return Launch(
        input=StepInput(step="ingest", run=identity, config=config.model_dump(mode="json")), runtime="training"
    )


class LauncherConformance:
    """Tests of a launcher; its fixtures are ``launcher``, and ``home`` as :func:`launch` takes it."""

    def test_success_returns_the_committed_ref(self, launcher: Launcher, home: Path) -> None:
        outcome = launcher.run(launch(home, "pass", "plain"), lambda line: None)
        assert isinstance(outcome.result, DatasetRef)
        assert outcome.result.num_rows == 700

    def test_retry_returns_the_committed_ref_without_running_again(self, launcher: Launcher, home: Path) -> None:
        """A retry after a lost answer would otherwise repeat hours of work."""
        (home / "calls").mkdir(exist_ok=True)
        note = f"import pathlib, uuid; (pathlib.Path({str(home)!r}) / 'calls' / uuid.uuid4().hex).touch()"
        once = launch(home, note, "counted")
        first = launcher.run(once, lambda line: None)
        second = launcher.run(once, lambda line: None)
        assert first.result == second.result
        assert len(list((home / "calls").iterdir())) == 1

    def test_secrets_reach_the_step_and_nothing_else(self, launcher: Launcher, home: Path) -> None:
        """A password in the document would stay on disk, and in the log."""
        secret = launch(home, "import os; print('length', len(os.environ['MLOPS_CONNECTION_DB']))", "secret")
        secret = dataclasses.replace(secret, environment={"MLOPS_CONNECTION_DB": "open sesame"})
        lines: list[str] = []
        assert isinstance(launcher.run(secret, lines.append).result, DatasetRef)
        assert "length 11" in lines
        assert "sesame" not in repr(secret) + secret.input.dump() + "".join(lines)
        assert "MLOPS_CONNECTION_DB" not in os.environ

    def test_output_arrives_line_by_line_while_it_runs(self, launcher: Launcher, home: Path) -> None:
        lines: list[tuple[float, str]] = []
        statement = "import time; print('first'); time.sleep(1.5); print('second \\u00fc')"
        launcher.run(launch(home, statement, "talking"), lambda line: lines.append((time.monotonic(), line)))
        times = {line: at for at, line in lines}
        assert times["second ü"] - times["first"] > 1

    def test_bad_data_is_not_retryable(self, launcher: Launcher, home: Path) -> None:
        outcome = launcher.run(launch(home, "return sources['events'].select('at').filter(False)", "empty"), print)
        assert isinstance(outcome.result, Failure)
        assert not outcome.result.retryable

    def test_unexpected_error_is_retryable_and_keeps_its_message(self, launcher: Launcher, home: Path) -> None:
        outcome = launcher.run(launch(home, "raise OSError('the disk is on fire')", "raising"), lambda line: None)
        assert isinstance(outcome.result, Failure)
        assert outcome.result.retryable
        assert "the disk is on fire" in outcome.result.message

    @pytest.mark.parametrize("signal", ["SIGKILL", "SIGSEGV"])
    def test_death_without_a_document_has_no_result(self, launcher: Launcher, home: Path, signal: str) -> None:
        statement = f"import os, signal; os.kill(os.getpid(), signal.{signal})"
        outcome = launcher.run(launch(home, statement, f"dying_{signal.lower()}"), lambda line: None)
        assert outcome.result is None
        assert signal in outcome.status

    def test_cancel_ends_the_whole_process_tree(self, launcher: Launcher, home: Path) -> None:
        """An orphan would go on writing, or hold a GPU, beside its own retry."""
        # In a container it has another process id than here.
        child = ["sleep", f"300.{random.randrange(10**9):09}"]
        statement = (
            "import subprocess, time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            f"subprocess.Popen({child}, start_new_session=True); print('started'); time.sleep(300)"
        )
        started = threading.Event()

        def on_line(line: str) -> None:
            if line == "started":
                started.set()

        outcome: list[Outcome] = []
        worker = threading.Thread(target=lambda: outcome.append(launcher.run(launch(home, statement, "hung"), on_line)))
        worker.start()
        assert started.wait(60)
        launcher.cancel()
        worker.join(30)
        assert not worker.is_alive()
        assert outcome[0].result is None
        deadline = time.monotonic() + 10
        while any(process.info["cmdline"] == child for process in psutil.process_iter(["cmdline"])):
            assert time.monotonic() < deadline, "a process outlived its step"
            time.sleep(0.1)

    def test_cancel_without_a_run_does_nothing(self, launcher: Launcher) -> None:
        launcher.cancel()

    def test_place_is_that_of_the_run_key(self, launcher: Launcher, home: Path) -> None:
        outcome = launcher.run(launch(home, "pass", "placed"), lambda line: None)
        assert isinstance(outcome.result, DatasetRef)
        assert outcome.result.place == place("events", "20240115T000000Z-placed", "ingest")
