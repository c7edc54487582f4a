"""A pipeline that searches for its settings, under a real Airflow, and struck while it does."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from browser import keep, page_at
from live_airflow import LiveAirflow
from turns import on_turn

from mlops.client import Client, RefusedError
from mlops.contract.refs import ModelVersionRef, StudyRef
from mlops_provider.launchers.scratch import PREFIX

NIGHT_SECONDS = 600
pytestmark = pytest.mark.timeout(900)
TUNE = """
tune:
  space:
    learning_rate: {low: 0.01, high: 0.2, log: true}
    global_batch: {choices: [8, 16]}
  sampler: random
  pruner: none
  trials: 3
  parallel: 2
"""
DIVERGING = """
tune:
  space:
    learning_rate: {choices: [0.05, 1e30]}
  sampler: grid
  parallel: 2
"""


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow]) -> LiveAirflow:
    return new_airflow(prefix="/of/airflow")


def add_pipeline(airflow: LiveAirflow, name: str, tune: str) -> None:
    text = (airflow.home / "dags/events.pipeline.yaml").read_text()
    text = text.replace("pipeline: events", f"pipeline: {name}").replace("\nevaluate:", f"{tune}\nevaluate:")
    text = text.replace("registered_model: events", f"registered_model: {name}")
    (airflow.home / f"dags/{name}.pipeline.yaml").write_text(text)


def trials(airflow: LiveAirflow, name: str, run_id: str) -> list[dict[str, Any]]:
    """Their task instances, by number."""
    found = airflow.client.task_instances(name, run_id)
    mapped = [task for task in found if task["task_id"] == "tune_trial" and task["map_index"] >= 0]
    return sorted(mapped, key=lambda task: task["map_index"])


def trial_processes(airflow: LiveAirflow) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        here = process.info["cwd"] == str(airflow.home)
        if here and any(f"/{PREFIX}trial-" in part for part in process.info["cmdline"] or []):
            found.append(process)
    return found


@on_turn(0, 2)
def test_trials_are_tasks_and_the_best_one_is_trained(airflow: LiveAirflow) -> None:
    """Broken: a search would need another tool, or a kill spoil it: those trials that run first are killed here."""
    add_pipeline(airflow, "searched", TUNE)
    airflow.hold("train", 2.0)
    run_id = airflow.trigger(10, "searched")
    deadline = time.monotonic() + NIGHT_SECONDS
    while not trial_processes(airflow):
        assert time.monotonic() < deadline, airflow.states(run_id, "searched")
        time.sleep(0.5)
    time.sleep(3)
    for process in trial_processes(airflow):  # their workers die with them
        os.kill(process.pid, signal.SIGKILL)
    assert airflow.client.wait("searched", run_id, NIGHT_SECONDS) == "success", airflow.states(run_id, "searched")

    done = trials(airflow, "searched", run_id)
    assert [task["state"] for task in done] == ["success"] * 3
    assert max(task["try_number"] for task in done) > 1, "killed too late to prove anything"
    assert all("complete" in task["rendered_map_index"] for task in done)
    study = StudyRef.from_wire(airflow.client.xcom("searched", run_id, "tune"))
    assert study.trials == {"complete": 3, "pruned": 0, "failed": 0, "not begun": 0}
    with sqlite3.connect(airflow.stack.store / "pipelines/searched/studies.db") as database:
        assert database.execute("SELECT count(*) FROM trials").fetchone() == (3,)
    ref = ModelVersionRef.from_wire(airflow.client.xcom("searched", run_id, "register"))
    assert ref.ancestor(StudyRef) == study
    page = (airflow.stack.store / ref.parent.artifacts["report"].key).read_text()
    assert "the best of 3 trials" in page, "whoever reads the report sees where the settings came from"
    runs = {run["info"]["run_id"]: run["data"] for run in airflow.training_runs("searched")}
    children = [
        run for run in runs.values() if {"key": "mlflow.parentRunId", "value": study.tracking_run} in run["tags"]
    ]
    assert len(children) == 3
    trained = {param["key"]: param["value"] for param in runs[ref.parent.parent.tracking_run]["params"]}
    assert trained["learning_rate"] == str(study.parameters["learning_rate"])
    _see_search(airflow, f"searched@{run_id}", study)


def _see_search(airflow: LiveAirflow, run: str, study: StudyRef) -> None:
    with Client(f"{airflow.stack.airflow_url}{airflow.prefix}") as client:
        said, trials = client.study(run), client.trials(run)
        assert (said.best_trial, said.best_value) == (study.best_trial, study.best_value)
        assert [trial.number for trial in trials] == [0, 1, 2]
        assert trials[study.best_trial].parameters == study.parameters
        with pytest.raises(RefusedError, match="is a night: its budget is tune.trials"):
            client.stop_search(run)
    for width in (400, 1400):
        with page_at(airflow, f"/plugin/mlops-tonight/{quote(run, safe='')}", width=width) as page:
            page.get_by_role(
                "img", name=re.compile("^3 trials over (learning_rate, global_batch|global_batch, l)")
            ).wait_for()
            assert page.get_by_text("trials: 3 complete").is_visible()
            assert page.get_by_role("cell", name=f"{study.best_trial}, the best").is_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is cut off"
            page.get_by_role("heading", name=re.compile("^Search ")).scroll_into_view_if_needed()
            keep(page, f"search_{width}_light")


@on_turn(1, 2)
def test_what_does_not_come_to_its_end_does_not_count(airflow: LiveAirflow) -> None:
    """Broken: a search without end would hold up the night, its limit fail it, or one bad draw end it."""
    airflow.hold("train", 0.0)
    add_pipeline(airflow, "hurried", TUNE.replace("parallel: 2", "hours: 1e-6"))
    add_pipeline(airflow, "diverging", DIVERGING)
    runs = {name: airflow.trigger(10, name) for name in ("hurried", "diverging")}
    for name, run_id in runs.items():
        assert airflow.client.wait(name, run_id, NIGHT_SECONDS) == "success", airflow.states(run_id, name)
    hurried = trials(airflow, "hurried", runs["hurried"])
    assert [task["rendered_map_index"] for task in hurried[1:]] == ["1: not begun", "2: not begun"]
    study = StudyRef.from_wire(airflow.client.xcom("hurried", runs["hurried"], "tune"))
    assert (study.trials["complete"], study.trials["not begun"]) == (1, 2)
    diverged = [task["state"] for task in trials(airflow, "diverging", runs["diverging"])]
    assert sorted(diverged) == ["failed", "success"]
    study = StudyRef.from_wire(airflow.client.xcom("diverging", runs["diverging"], "tune"))
    assert (study.trials["complete"], study.trials["failed"]) == (1, 1)
    assert study.parameters == {"learning_rate": 0.05}


def test_without_features_nothing_is_concluded(airflow: LiveAirflow) -> None:
    """Broken: a search would fail too where the data did, and send people to the wrong log."""
    add_pipeline(airflow, "fruitless", DIVERGING)
    path = airflow.home / "dags/fruitless.pipeline.yaml"
    path.write_text(path.read_text().replace("data/events.csv", "data/nothing.csv"))
    run_id = airflow.trigger(10, "fruitless")
    assert airflow.client.wait("fruitless", run_id, NIGHT_SECONDS) == "failed"
    states = airflow.states(run_id, "fruitless")
    assert states["ingest"] == "failed"
    assert states["tune"] == states["train"] == "upstream_failed"
