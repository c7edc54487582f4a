"""``mlops runs``, as its process: experiments side by side, and gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from committed_refs import chain, commit_lineage
from warm import run_warm

from mlops.commands.runs import _delete, _remove_old
from mlops.commands.runs_expired import expired
from mlops.contract.refs import INPUT, CheckpointRef, FeaturesRef, RefT, ReportRef
from mlops.contract.step import RunIdentity, StepInput, python_path, used_key
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


def test_what_may_be_under_way_is_not_removed(store: Store, mlops: Run) -> None:
    """Broken: a training would commit a result whose data are gone."""
    train(store, "experiments/ana/toy", "a")
    store.put("experiments/ana/toy/train/b/checkpoints/1", b"")
    before = set(store.list(""))
    said = mlops("remove", "ana/toy", "--delete")
    assert (said.returncode, "experiments/ana/toy/train/b has no result" in said.stderr.replace("\n", " ")) == (2, True)
    assert set(store.list("")) == before
    age(store, "experiments/ana/toy/train/b", 2)
    assert mlops("remove", "ana/toy", "--delete").returncode == 0
    train(store, "experiments/ana/toy", "a")
    store.put("experiments/ana/toy/train/b/checkpoints/1", b"")
    assert mlops("remove", "ana/toy", "--delete", "--force").returncode == 0
    assert not list(store.list("experiments/ana/toy"))


def test_what_a_run_takes_after_it_was_listed_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a training would lose its features in the middle, for a listing of all experiments takes long."""
    trained = train(store, "experiments/ana/toy", "old")
    age(store, "", 40)
    now = datetime.now(UTC)
    before = now - timedelta(days=30)
    (place,) = [each for each in expired(store, ["ana/toy"], before, now)["ana"].expired if each.name == trained.place]
    store.put(used_key(trained.place), b"")
    assert not _remove_old(store, place, before)
    assert store.committed(trained.place) == trained
    age(store, trained.place, 40)
    assert _remove_old(store, place, before)
    assert not list(store.list(trained.place))


def age(store: Store, place: str, days: float) -> None:
    """As if what lies there had been written so long ago."""
    then = time.time() - days * 86400
    for file in Path(store.uri.removeprefix("file://"), place).rglob("*"):
        os.utime(file, (then, then))


STEPS = {"dataset": "ingest", "validation": "validate", "features": "features", "checkpoint": "train"}
STEPS |= {"study": "tune", "report": "evaluate"}


def moved(ref: RefT, folder: str) -> RefT:
    """The same as an experiment's, which has made all of it."""
    parent = getattr(ref, "parent", None)
    place = f"{folder}/{STEPS[ref.kind]}/key"
    return replace(ref, place=place, **({} if parent is None else {"parent": moved(parent, folder)}))


def test_what_is_old_goes_and_what_newer_runs_rest_on_stays(store: Store, mlops: Run) -> None:
    """Broken: a disk fills up with what nobody looks at; or the features of yesterday's training are gone."""
    ours = "experiments/ana/toy"
    whole = moved(chain()[ReportRef], ours)
    commit_lineage(store, whole)
    features = whole.ancestor(FeaturesRef).place
    train(store, ours, "old", judged=ours)
    train(store, "experiments/bo/toy", "old")
    train(store, "pipelines/toy", "night")
    age(store, "", 40)
    new = replace(whole.parent, place=f"{ours}/train/new")
    commit_lineage(store, new)
    for place in [each.place for each in new.lineage()][1:]:
        age(store, place, 40)
    before = set(store.list(""))
    said = mlops("expire", "--days", "30")
    assert said.returncode == 0, said.stderr
    assert "to remove them: --delete" in said.stdout
    assert set(store.list("")) == before
    assert mlops("expire", "ana", "--days", "50", "--delete").returncode == 0
    assert set(store.list("")) == before
    assert mlops("expire", "ana", "--days", "30", "--delete").returncode == 0
    gone = before - set(store.list(""))
    assert {"/".join(key.split("/")[:5]) for key in gone} == {
        whole.place, whole.parent.place, f"{ours}/train/old", f"{ours}/evaluate/old"
    }  # fmt: skip
    assert f"{features}/ref.json" in set(store.list(""))
    age(store, new.place, 40)
    store.put(f"{ours}/train/begun/checkpoints/1", b"")
    held = mlops("expire", "ana", "--days", "30", "--delete")
    assert f"{ours}/train/begun may run" in held.stdout.replace("\n", "")
    assert {key.split("/")[3] for key in store.list(ours)} == {*STEPS.values()} - {"evaluate"}
    assert not list(store.list(new.place))
    age(store, f"{ours}/train/begun", 3)
    assert mlops("expire", "ana", "--days", "30", "--delete").returncode == 0
    assert set(store.list(ours)) == {f"{ours}/train/begun/checkpoints/1"}
    assert list(store.list("experiments/bo/toy/train/old"))


def test_what_somebody_uses_does_not_get_old(store: Store, mlops: Run) -> None:
    """Broken: a training that is being judged, or features that another user's run has taken, are gone."""
    whole = moved(chain()[ReportRef], "experiments/ana/toy")
    commit_lineage(store, whole)
    train(store, "experiments/ana/toy", "asked_about")
    features = whole.ancestor(FeaturesRef)
    taken = replace(whole.parent, place="experiments/bo/toy/train/new", parent=features)
    commit_lineage(store, taken)
    age(store, "experiments/ana", 40)
    age(store, features.place, 40)
    store.put(used_key("experiments/ana/toy/train/asked_about"), b"")
    assert mlops("expire", "ana", "--days", "30", "--delete").returncode == 0
    left = {tuple(key.split("/")[3:5]) for key in store.list("experiments/ana")}
    assert left == {(step, "key") for step in ("ingest", "validate", "features")} | {("train", "asked_about")}


def test_what_cannot_be_read_holds_its_user_only(store: Store, mlops: Run) -> None:
    """Broken: one damaged file, and the disk of everybody fills up; or what it rests on is removed."""
    for user in ("ana", "bo", "zoe"):
        train(store, f"experiments/{user}/toy", "old")
        age(store, f"experiments/{user}", 40)
    store.put("experiments/bo/toy/train/new/ref.json", b"{")
    store.put("experiments/zoe/toy/budgets/1.json", b"{}")
    age(store, "experiments/zoe/toy/budgets", 40)
    done = mlops("expire", "--days", "30", "--delete")
    assert done.returncode == 0, done.stderr
    assert "experiments/bo/toy/train/new/ref.json" in done.stdout
    assert "until then all of bo stays" in done.stdout
    assert {key.split("/")[1] for key in store.list("experiments")} == {"bo"}
    assert any("/train/old/" in key for key in store.list("experiments/bo"))


def test_a_verdict_whose_training_is_gone_hides_no_other(store: Store, mlops: Run) -> None:
    """Broken: nobody can list anything any more."""
    train(store, "experiments/ana/toy", "gone", judged="experiments/ana/toy")
    train(store, "experiments/ana/toy", "there")
    store.delete(list(store.list("experiments/ana/toy/train/gone")))
    (found,) = json.loads(mlops("list", "--json").stdout)
    assert found["training"] == "experiments/ana/toy/train/there"


def test_what_a_pipeline_has_judged_never_gets_old(store: Store, mlops: Run) -> None:
    """Broken: a version in production has lost the training that it came from."""
    trained = train(store, "experiments/ana/toy", "good")
    report = chain()[ReportRef]
    assert isinstance(report, ReportRef)
    commit_lineage(store, replace(report, place="pipelines/toy/evaluate/good", parent=trained))
    train(store, "experiments/ana/toy", "bad")
    age(store, "", 400)
    assert mlops("expire", "--days", "30", "--delete").returncode == 0
    assert {key.split("/")[4] for key in store.list("experiments/ana/toy/train")} == {"good"}


def test_what_another_experiment_rests_on_is_not_removed(store: Store, mlops: Run) -> None:
    """Broken: a version in production, or a colleague's training, has lost the snapshot that it came from."""
    whole = moved(chain()[ReportRef], "experiments/ana/toy")
    commit_lineage(store, whole)
    theirs = replace(whole.parent, place="experiments/bo/other/train/key", parent=whole.ancestor(FeaturesRef))
    commit_lineage(store, theirs)
    before = set(store.list(""))
    said = mlops("remove", "ana/toy", "--delete")
    assert said.returncode == 2
    assert f"stays: {theirs.place} was made from experiments/ana/toy/features/key" in said.stderr
    # Of another pipeline than the experiment's, too.
    commit_lineage(store, replace(whole, place="pipelines/other/evaluate/key", parent=theirs))
    said = mlops("remove", "ana/toy", "--delete", "--force")
    assert said.returncode == 2
    assert "pipelines/other/evaluate/key judged what was made from experiments/ana/toy/features/key" in said.stderr
    assert before <= set(store.list(""))
    store.delete(list(store.list("pipelines")))
    assert mlops("remove", "ana/toy", "--delete", "--force").returncode == 0
    assert not list(store.list("experiments/ana"))
    assert mlops("remove", "bo/other", "--delete").returncode == 0


def test_damage_elsewhere_keeps_nobody_from_removing_what_is_theirs(store: Store, mlops: Run) -> None:
    """Broken: one damaged night of any pipeline, and no experiment can be removed any more, not even by force."""
    commit_lineage(store, moved(chain()[ReportRef], "experiments/ana/toy"))
    store.put("pipelines/other/evaluate/key/ref.json", b"{}")
    said = mlops("remove", "ana/toy", "--delete")
    assert said.returncode == 2
    assert "whether something else rests on it cannot be told" in said.stderr
    assert "pipelines/other/evaluate/key/ref.json" in said.stderr
    forced = mlops("remove", "ana/toy", "--delete", "--force")
    assert forced.returncode == 0
    assert "whether something else rests on it could not be told" in forced.stdout
    assert not list(store.list("experiments/ana"))


def test_what_is_cut_off_while_it_goes_is_no_result(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a ref would name files that are gone, and the next run takes it for what it is to make."""
    train(store, "experiments/ana/toy", "a", judged="experiments/ana/toy")
    (first,) = [each for each in store.stored("experiments/ana/toy/evaluate") if each.key.endswith("ref.json")]
    struck: list[list[str]] = []

    def delete(keys: list[str]) -> None:
        struck.append(keys)
        if len(struck) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "delete", delete)
    with pytest.raises(KeyboardInterrupt):
        _delete(store, store.stored("experiments/ana/toy"))
    assert first.key in struck[0]
    assert {key.rpartition("/")[2] for key in struck[0]} == {"ref.json"}
    assert "ref.json" not in {key.rpartition("/")[2] for key in struck[1]}


@pytest.mark.parametrize("days", ["0", "-3", "soon", "nan", "1e9"])
def test_days_are_days(mlops: Run, days: str) -> None:
    done = mlops("expire", "--days", days)
    assert done.returncode == 2
    assert f"must be a number of 1 to 36500, got '{days}'" in done.stderr


def test_what_is_not_there_is_said(store: Store, mlops: Run) -> None:
    assert mlops("list").stdout == "nothing was tried out yet: mlops run PIPELINE\n"
    train(store, "experiments/ana/toy", "a")
    for arguments in (["list", "bo"], ["remove", "ana"], ["remove", "ana/other"]):
        done = mlops(*arguments)
        assert done.returncode == 2
        assert f"there is no experiment '{arguments[1]}' in {store.uri}; it holds ana/toy" in done.stderr
