"""``mlops reproduce``, as its process, on models that real torchrun processes trained and a real MLflow registered."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import corpus
import pytest
from mlflow import MlflowClient
from turns import on_turn

from mlops.contract.step import deprecation_key
from mlops.data.snapshots.deprecation import deprecate
from mlops.store import Store


@on_turn(0, 3)
def test_a_model_of_a_commit_is_identical_when_the_checkout_has_moved_on(recipe: Any) -> None:
    """Broken: nobody could show that a model in production came from the data and code that it names."""
    commit = recipe.head
    checkpoint = recipe.train(recipe.features(), processes=2)
    version = recipe.register(checkpoint)
    recipe.model.write_text(recipe.model.read_text().replace("nn.Tanh()", "nn.ReLU()"))
    recipe.commit("Another model")
    here = recipe.state()

    done = recipe.mlops("reproduce", f"{recipe.project.pipeline}/staging")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"IDENTICAL  weights {checkpoint.artifacts['weights'].sha256}" in done.stdout
    assert f"commit {commit[:12]}\n" in done.stdout
    assert "ndcg@10" in done.stdout.partition("metrics")[2]

    assert recipe.state() == here, "the project's own repository is as it was"
    pipelines = f"pipelines/{recipe.project.pipeline}_reproductions"
    assert not list(recipe.store.list(pipelines)), "nothing is left in the store"
    client = MlflowClient(tracking_uri=recipe.project.tracking_uri)
    versions = client.search_model_versions(f"name = '{recipe.project.pipeline}'")
    assert [f"{found.name}/{found.version}" for found in versions] == [version]
    experiment = client.get_experiment_by_name(f"{recipe.project.pipeline}_reproductions")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["mlops.reproduction_of"] == version
    assert run.data.tags["mlops.reproduction.identical"] == "True"


@on_turn(1, 3)
def test_a_language_model_is_identical(recipe: Any, run_step: Any, config: Any) -> None:
    """Broken: of tokens, and of a model of them, nobody could show where they came from."""
    corpus.write_project(recipe.home, 80)
    recipe.commit("A library")
    checkpoint = corpus.trained(recipe.project, run_step, config, "first", "CHARACTERS", epochs=2)
    report = corpus.judged(recipe.project, run_step, "first", checkpoint)
    corpus.promoted(recipe.project, run_step, report)
    done = recipe.mlops("reproduce", f"{recipe.project.pipeline}/champion")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"IDENTICAL  weights {checkpoint.artifacts['weights'].sha256}" in done.stdout
    assert "perplexity" in done.stdout.partition("metrics")[2]


def test_what_was_not_committed_is_patched_in(recipe: Any) -> None:
    """Broken: a model of a dirty checkout, as most first models are, could never be made again; or a patch leaks."""
    recipe.model.write_text(recipe.model.read_text().replace("nn.Tanh()", "sizes.activation()"))
    recipe.model.write_text("from . import sizes\n" + recipe.model.read_text())
    (recipe.home / "include/toy/sizes.py").write_text("from torch import nn\n\nactivation = nn.GELU\n")
    (recipe.home / "include/toy/token").write_text("s3cret")
    (recipe.home / "credentials.json").write_text('{"password": "s3cret"}')
    checkpoint = recipe.train(recipe.features())
    patch = recipe.store.read(checkpoint.artifacts["patch"])
    assert b"s3cret" not in patch
    assert b"activation = nn.GELU" in patch
    client = MlflowClient(tracking_uri=recipe.project.tracking_uri)
    tags = client.get_run(checkpoint.tracking_run).data.tags
    assert tags["mlops.patch"] == checkpoint.artifacts["patch"].sha256

    version = recipe.register(checkpoint)
    recipe.commit("All of it, and more")
    (recipe.home / "include/toy/sizes.py").unlink()
    done = recipe.mlops("reproduce", version)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "IDENTICAL" in done.stdout
    assert "patch of 2 files that were not committed: include/toy/model.py, include/toy/sizes.py\n" in done.stdout
    assert "bundle" not in done.stdout, "commit and patch alone give the recipe"


@on_turn(2, 3)
def test_a_model_in_a_remote_store_is_reproduced_from_empty_caches(recipe: Any, s3: str) -> None:
    """Broken: only the machine that trained a model, or a store on its disk, could make it again."""
    there = dataclasses.replace(recipe, project=dataclasses.replace(recipe.project, store=Store(f"{s3}/reproduce")))
    version = there.register(there.train(there.features()))
    with tempfile.TemporaryDirectory() as empty:
        done = there.mlops("reproduce", version, TMPDIR=empty)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "IDENTICAL" in done.stdout
        assert not list(Path(empty).iterdir()), "nor does it leave any"


def test_without_the_commit_the_stored_recipe_is_run(registered: Any, tmp_path: Path) -> None:
    """Broken: a repository that was cleaned up or moved would take every model's past with it."""
    recipe, version = registered
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(recipe.home / "training", elsewhere / "training")
    done = recipe.mlops("reproduce", version, MLOPS_HOME=str(elsewhere))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"is not in the repository of {elsewhere}" in done.stdout
    assert "include/toy is taken from the bundle" in done.stdout
    assert "IDENTICAL" in done.stdout


def test_another_world_size_is_named_as_the_reason(registered: Any) -> None:
    """Broken: who asks why two models differ would get no answer, or a wrong one."""
    recipe, version = registered
    done = recipe.mlops("reproduce", version, "--steps", "train", "--world-size", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "DIFFERENT  optimizer step 1 is the first that differs" in done.stdout
    assert "the checkpoints after step" in done.stdout
    assert "likely reason: world size: world_size 1 then, 2 now" in done.stdout


def test_another_environment_is_refused_unless_allowed(registered: Any) -> None:
    """Broken: hours of training would end in other bits, for packages that were never the same."""
    recipe, version = registered
    before = recipe.lock.read_text()
    try:
        recipe.lock.write_text("torch==2.12.0\n")
        refused = recipe.mlops("reproduce", version)
        assert refused.returncode == 2, refused.stdout
        assert "lock file: training/requirements.txt" in refused.stderr
        assert "--allow-different-environment" in refused.stderr
        allowed = recipe.mlops("reproduce", version, "--steps", "features", "--allow-different-environment")
        assert allowed.returncode == 0, allowed.stdout + allowed.stderr
        assert "lock file: training/requirements.txt" in allowed.stdout
    finally:
        recipe.lock.write_text(before)


def test_weights_that_were_put_in_the_place_of_others_are_found(registered: Any) -> None:
    """Broken: a model could be exchanged after its evaluation, under the name and history of an honest one."""
    recipe, _ = registered
    honest = recipe.train(recipe.features("other"), key="other")
    other = recipe.train(honest.parent, key="seed", seed=8)
    forged = {**honest.artifacts, "weights": other.artifacts["weights"]}
    # By whoever may write to the store: a ref that was changed on its way would be refused.
    version = recipe.register(
        dataclasses.replace(honest, place=f"{honest.place}-forged", artifacts=forged), key="forged"
    )
    done = recipe.mlops("reproduce", version, "--steps", "train")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "DIFFERENT  the weights: 0.bias differs, by at most" in done.stdout
    assert "every step and epoch is the same: the stored weights are not those" in done.stdout


def test_a_model_whose_weights_are_damaged_is_made_again(registered: Any) -> None:
    """Broken: just where the stored model is lost, nobody could show that another one is it."""
    recipe, version = registered
    (weights,) = Path(recipe.store.uri.removeprefix("file://")).glob("pipelines/*/train/first/weights.*")
    whole = weights.read_bytes()
    try:
        weights.write_bytes(whole[:-1] + b"?")
        done = recipe.mlops("reproduce", version, "--steps", "train")
    finally:
        weights.write_bytes(whole)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "IDENTICAL  weights " in done.stdout
    assert "as in the report" in done.stdout.partition("metrics")[2]


def test_a_damaged_snapshot_is_refused_by_name(registered: Any) -> None:
    """Broken: data that is not what the model was trained on would pass for it."""
    recipe, version = registered
    blob = max(Path(recipe.store.uri.removeprefix("file://")).glob("blobs/sha256/*/*"))
    whole = blob.read_bytes()
    try:
        blob.write_bytes(whole[:-1] + b"?")
        done = recipe.mlops("reproduce", version)
    finally:
        blob.write_bytes(whole)
    assert done.returncode == 2, done.stdout
    assert blob.name in done.stderr
    assert "IDENTICAL" not in done.stdout


def test_a_model_of_a_deprecated_snapshot_can_be_looked_into(registered: Any) -> None:
    """Broken: just when data turned out to be bad, nobody could tell which models it made."""
    recipe, version = registered
    (dataset,) = recipe.datasets()
    deprecate(recipe.store, dataset.name, dataset.version, reason="Doubled rows", by="someone")
    try:
        done = recipe.mlops("reproduce", version, "--steps", "features")
    finally:
        recipe.store.delete([deprecation_key(dataset.name, dataset.version)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "IDENTICAL  features " in done.stdout


def test_what_a_killed_one_left_is_removed_when_it_is_old(registered: Any) -> None:
    """Broken: each that is killed would leave a model in the store for good; or one takes another's that still runs."""
    recipe, version = registered
    folder = f"pipelines/{recipe.project.pipeline}_reproductions"
    old, young, other = (f"{folder}/train/{key}/checkpoints/x" for key in ("reproduce-1", "reproduce-2", "20130208"))
    week_ago = time.time() - 8 * 24 * 3600
    for key in (old, young, other):
        recipe.store.put(key, b"x")
        if key != young:
            os.utime(Path(recipe.store.uri.removeprefix("file://")) / key, (week_ago, week_ago))
    try:
        done = recipe.mlops("reproduce", version, "--steps", "features")
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(recipe.store.list(folder)) == sorted([young, other])
    finally:
        recipe.store.delete([young, other])


@pytest.mark.parametrize(
    ("named", "message"),
    [("toy", "say MODEL/VERSION"), ("nobody/champion", "no model 'nobody' with an alias 'champion'")],
)
def test_what_is_no_version_is_said(registered: Any, named: str, message: str) -> None:
    recipe, _ = registered
    done = recipe.mlops("reproduce", named)
    assert done.returncode == 2
    assert message in done.stderr
