"""``mlops runs``, as its process: experiments side by side, and gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from committed_refs import chain, commit_lineage
from warm import run_warm

from mlops.contract.refs import INPUT, CheckpointRef, ReportRef
from mlops.contract.step import RunIdentity, StepInput, python_path
from mlops.store import Store

CHECKOUT = Path(__file__).parents[3]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def mlops(store: Store) -> Run:
    places = {
        "PYTHONPATH": python_path(CHECKOUT),
        "MLOPS_HOME": str(CHECKOUT),
        "MLOPS_STORE": store.uri,
        "COLUMNS": "160",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlops.commands", "runs", *arguments]
        return run_warm(command, env={**os.environ, **places}, timeout=60)

    return run


def train(store: Store, folder: str, key: str, *, judged: str | None = None, **settings: Any) -> CheckpointRef:
    """Commit a training, and an evaluation of it in an experiment."""
    refs = chain()
    place, config = f"{folder}/train/{key}", {"metric": "ndcg@10", "learning_rate": 0.1, "seed": 0, **settings}
    run = RunIdentity(
        pipeline="toy", run_key=key, interval_start="2013-02-07T05:00:00+00:00",
        interval_end="2013-02-08T05:00:00+00:00", timezone="UTC", dag_id="toy", task_id="train", run_id="r",
        try_number=1,
    )  # fmt: skip
    told = StepInput(step="train", run=run, config=config, ref=refs[CheckpointRef].parent)
    artifacts = {INPUT: store.put_artifact(place, "input.json", told.dump().encode())}
    found = refs[CheckpointRef]
    assert isinstance(found, CheckpointRef)
    checkpoint = replace(found, place=place, artifacts=artifacts)
    commit_lineage(store, checkpoint)
    if judged is not None:
        report = refs[ReportRef]
        assert isinstance(report, ReportRef)
        commit_lineage(store, replace(report, place=f"{judged}/evaluate/{key}", parent=checkpoint))
    return checkpoint


def test_trainings_stand_side_by_side_by_the_settings_in_which_they_differ(store: Store, mlops: Run) -> None:
    ours = "experiments/ana/toy"
    train(store, ours, "a", judged=ours)
    train(store, ours, "b", learning_rate=0.2)
    train(store, "pipelines/toy", "night", judged=ours, learning_rate=0.3)  # judged anew
    train(store, "experiments/bo/toy.wider", "c")
    listed = mlops("list", "ana")
    assert listed.returncode == 0, listed.stderr
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in listed.stdout.splitlines() if "│" in line]
    assert rows == [
        ["2013-02-08T05:00", "0.1", "0.9100", "0.9172", "not passed", "a"],
        ["2013-02-08T05:00", "0.2", "0.9100", "-", "not judged", "b"],
        ["2013-02-08T05:00", "0.3", "0.9100", "0.9172", "not passed", "night"],
    ]
    assert "learning_rate" in listed.stdout
    assert "seed" not in listed.stdout
    found = json.loads(mlops("list", "--json").stdout)
    assert {(each["experiment"], each["training"]) for each in found} == {
        ("ana/toy", f"{ours}/train/a"),
        ("ana/toy", f"{ours}/train/b"),
        ("ana/toy", "pipelines/toy/train/night"),
        ("bo/toy.wider", "experiments/bo/toy.wider/train/c"),
    }
    assert found[0]["settings"]["learning_rate"] == 0.1
    assert found[0]["settings"]["seed"] == 1, "as the study found it"


def test_an_experiment_is_removed_and_nothing_else(store: Store, mlops: Run) -> None:
    train(store, "experiments/ana/toy", "a", judged="experiments/ana/toy")
    train(store, "experiments/ana/toy.wider", "b")
    train(store, "pipelines/toy", "night")
    before = set(store.list(""))
    said = mlops("remove", "ana/toy")
    assert said.returncode == 0
    assert "to remove them: --delete" in said.stdout
    assert set(store.list("")) == before
    assert mlops("remove", "experiments/ana/toy", "--delete").returncode == 0
    assert before - set(store.list("")) == {key for key in before if key.startswith("experiments/ana/toy/")}


def test_what_is_not_there_is_said(store: Store, mlops: Run) -> None:
    assert mlops("list").stdout == "nothing was tried out yet: mlops run PIPELINE\n"
    train(store, "experiments/ana/toy", "a")
    for arguments in (["list", "bo"], ["remove", "ana"], ["remove", "ana/other"]):
        done = mlops(*arguments)
        assert done.returncode == 2
        assert f"there is no experiment '{arguments[1]}' in {store.uri}; it holds ana/toy" in done.stderr
