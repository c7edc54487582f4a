"""``mlops run`` as its process, on a small project, with a real MLflow server and no Airflow."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from project import make_project, write_events
from suites.remains import WARM_RUNTIME
from terminal import Terminal

from mlops_provider.experiments.asked import user

AS_OF = "2024-01-10"
SEARCH = "{space: {learning_rate: {low: 0.001, high: 0.1, log: true}}, sampler: random, trials: 2, parallel: 2}"

pytestmark = [pytest.mark.server, pytest.mark.gang]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: so have they the warm runtimes."""
    return make_project(tmp_path_factory.mktemp("project") / "home")


class Project(Terminal):
    """A project of a test, and a person's terminal in it."""

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.mlops("run", *arguments)

    def json(self, *arguments: str) -> dict[str, Any]:
        done = self.run("events", "--as-of", AS_OF, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def places(self) -> dict[str, list[str]]:
        """What is committed, by step: folders of the store, with the run key cut to the interval's end."""
        found: dict[str, list[str]] = {}
        for ref in sorted(self.store.rglob("ref.json")):
            place = ref.parent.relative_to(self.store)
            found.setdefault(place.parent.name, []).append(str(place.parent.parent))
        return found

    def experiments(self) -> Mapping[str, int]:
        """Experiments of MLflow and their number of runs."""
        api = f"{self.tracking}/api/2.0/mlflow"
        found = httpx.get(f"{api}/experiments/search", params={"max_results": 100}).json()["experiments"]
        return {
            each["name"]: len(
                httpx.post(f"{api}/runs/search", json={"experiment_ids": [each["experiment_id"]]})
                .json()
                .get("runs", [])
            )
            for each in found
        }


@pytest.fixture
def project(home: Path, tmp_path: Path, tracking: str) -> Project:
    """With a store of its own: other tests' results are not found."""
    return Project(home, tmp_path / "store", tracking)


def own(name: str) -> str:
    return f"experiments/{user()}/{name}"


def test_a_pipeline_runs_to_its_verdict_and_what_is_done_is_found(project: Project) -> None:
    """Broken: a change of one setting would cost a commit and a night."""
    begun = project.json("--name", "first", "--until", "features")
    assert begun["trainings"] == []
    assert begun["last"]["kind"] == "features"
    assert set(project.places()) == {"ingest", "validate", "features"}
    first = project.json("--name", "first")
    (training,) = first["trainings"]
    assert first["experiment"] == own("events.first")
    assert first["interval"] == ["2024-01-09T00:00:00Z", "2024-01-10T00:00:00Z"]
    assert training["passed"]
    assert 0 < training["metrics"]["candidate.ndcg@10"] <= 1
    assert (Path(training["report"].removeprefix("file://"))).read_text().startswith("<!doctype html>")
    steps = ("ingest", "validate", "features", "train", "evaluate")
    assert project.places() == {step: [own("events.first")] for step in steps}, (
        "nothing among the pipeline's own results"
    )
    assert project.experiments()[own("events.first")] == 1
    assert "events" not in project.experiments()

    version = begun["last"]["parent"]["parent"]["version"]
    given = project.run("events", "--dataset", version[:6], "--name", "first", "--json")
    assert given.returncode == 0, given.stderr
    assert json.loads(given.stdout)["trainings"] == first["trainings"], "it is of that snapshot's interval"
    unknown = project.run("events", "--dataset", "0123456789")
    assert unknown.returncode == 1
    assert f"dataset 0123456789: events has no such snapshot; the newest are {version[:12]}" in unknown.stdout

    again = project.json("--name", "first")
    assert again["trainings"] == first["trainings"]
    assert project.experiments()[own("events.first")] == 1, "nothing was trained again"

    seeds = ("--name", "first", "--set", "train.epochs=2", "--seeds", "2", "--sample", "0.5")
    done = project.run("events", "--as-of", AS_OF, *seeds)
    assert done.returncode == 0, done.stderr
    assert {step: len(found) for step, found in project.places().items()} == {
        "ingest": 1, "validate": 1, "features": 2, "train": 3, "evaluate": 3,
    }  # fmt: skip
    row = next(line for line in done.stdout.splitlines() if "ndcg@10" in line and "│ 0." in line)
    one, other, mean, deviation = map(float, re.findall(r"\d\.\d{4}", row))
    assert mean == pytest.approx((one + other) / 2, abs=1e-4)
    assert deviation == pytest.approx(abs(one - other) / 2**0.5, abs=1e-4)
    told = project.json(*seeds)
    assert told["over_seeds"]["ndcg@10"] == {
        "mean": pytest.approx(mean, abs=1e-4), "standard_deviation": pytest.approx(deviation, abs=1e-4),
    }  # fmt: skip
    assert again["over_seeds"] == {}


@pytest.mark.parametrize("strike", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "a killed terminal"])
def test_what_stops_it_leaves_nothing_running_and_the_same_command_goes_on(
    project: Project, strike: signal.Signals
) -> None:
    """Broken: an hour of training would be lost, or go on unseen beside the next."""
    arguments = (
        "run",
        "events",
        "--as-of",
        AS_OF,
        "--set",
        "train.epochs=200",
        "--set",
        "train.checkpoint.every_steps=20",
    )
    argv, environment = project.command(*arguments)
    # What a shell starts in the background ignores Ctrl-C, and so would what tests start that run there.
    argv = ["env", "--default-signal=INT", *argv]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "epoch 20/200 done" in line:
            assert at_work(project), "its step and the ranks of its training are seen"
            os.killpg(process.pid, strike)
            break
    lines += process.stdout.read().splitlines(keepends=True)
    assert process.wait(60) == (130 if strike == signal.SIGINT else -signal.SIGKILL), "".join(lines)
    if strike == signal.SIGINT:
        assert lines[-1] == "stopped; the same command goes on from here\n"
    deadline = time.monotonic() + 60
    while left := at_work(project):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert set(project.places()) == {"ingest", "validate", "features"}
    done = project.mlops(*arguments)
    assert done.returncode == 0, done.stdout
    assert "going on after step" in done.stdout
    assert [len(found) for found in project.places().values()] == [1] * 5, "nothing was made twice"


def test_two_terminals_that_ask_for_the_same_do_it_once(project: Project) -> None:
    """Broken: each would take the training over from the other, and the trials of a search would fail."""
    arguments = ("run", "events", "--as-of", AS_OF, "--set", f"tune={SEARCH}")
    argv, environment = project.command(*arguments)
    terminals = [
        subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [terminal.communicate(timeout=300)[0] for terminal in terminals]
    assert [terminal.returncode for terminal in terminals] == [0, 0], "\n\n".join(said)
    assert "another run is doing this: waiting for it" in "".join(said)
    assert "goes on elsewhere" not in "".join(said)
    made = {step: len(found) for step, found in project.places().items()}
    assert made.pop("trial") == 2
    assert set(made.values()) == {1}


def at_work(project: Project) -> list[str]:
    """
    Return the command lines of the processes that do the work of a project's steps, those forked from a warm runtime
    among them: their environment is not the one that Linux shows.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it ended just now
            title = " ".join(process.cmdline())
            if process.cwd() == str(project.home) and not title.startswith(WARM_RUNTIME):
                found.append(title)
    return found


def test_a_search_runs_its_trials_first(project: Project) -> None:
    found = project.json("--set", f"tune={SEARCH}", "--set", "train.epochs=1")
    assert len(found["trainings"]) == 1
    places = project.places()
    assert (len(places["trial"]), len(places["tune"]), len(places["train"])) == (2, 1, 1)
    assert project.experiments()[own("events")] >= 3, "a run for each trial and one of the search"


def test_data_that_does_not_fit_ends_it_with_the_report(project: Project) -> None:
    write_events(project.home / "data/events.csv", rows_of_last_day=20)
    try:
        done = project.run("events", "--as-of", "2024-01-15")
    finally:
        write_events(project.home / "data/events.csv")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
    assert "validate: the data of 2024-01-14 does not fit; nothing was trained" in done.stdout
    address = re.search(r"Report: (file://\S+\.html)", done.stdout)
    assert address is not None
    assert Path(address[1].removeprefix("file://")).is_file()
    assert "train" not in project.places()


def test_mlflow_that_is_away_is_said_before_anything_is_read(project: Project) -> None:
    away = Project(project.home, project.store, "http://127.0.0.1:9")
    done = away.run("events", "--as-of", AS_OF)
    assert done.returncode == 1
    assert "MLflow at http://127.0.0.1:9 cannot be reached" in done.stdout
    assert "mlops up" in done.stdout
    assert away.places() == {}
