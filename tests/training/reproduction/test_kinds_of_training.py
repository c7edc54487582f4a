"""``mlops reproduce`` and ``mlops diff``, as their processes, of trainings that are not one loop on one node."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from typing import Any

import pytest
import toy_model
from turns import by_turns, on_turn

from mlops.contract.refs import CheckpointRef
from mlops.contract.rest import TrainingDifference
from mlops.contract.sections.train import Train
from mlops.contract.step import connection_variable
from mlops.store import Store
from mlops.trainer.past_environments import note_environment

UNSEEDED = """
from pathlib import Path

import torch

from mlops import Program

program = Program.start()
torch.seed()
saved = Path(program.checkpoints.removeprefix("file://"), "step-1.pt")
saved.parent.mkdir(parents=True)
saved.write_bytes(b"its own")
program.finish(program.build_model().state_dict(), epoch=1, metrics={program.config.metric: 0.5})
"""


@pytest.fixture
def quick(recipe: Any, run_step: Any) -> Any:
    """The recipe, whose steps of one process run in this one."""
    return dataclasses.replace(recipe, run_step=run_step)


@on_turn(1, 2)
def test_a_tuned_model_is_identical_without_its_study(
    quick: Any, s3: str, postgres: str, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a model would be made again with other settings than the study found, or not once the study is gone."""
    there = dataclasses.replace(quick, project=dataclasses.replace(quick.project, store=Store(f"{s3}/tuned")))
    connect("studies", "postgres", postgres)
    features = there.features()
    studies = [there.tune(features, f"study{seed}", seed=seed, connection="studies") for seed in (0, 1)]
    checkpoints = [there.train(study, key=study.place.split("/")[-1]) for study in studies]
    first, second = (there.register(checkpoint, f"version{n}") for n, checkpoint in enumerate(checkpoints))
    monkeypatch.delenv(connection_variable("studies"))

    with tempfile.TemporaryDirectory() as empty:
        done = there.mlops("reproduce", second, TMPDIR=empty)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"IDENTICAL  weights {checkpoints[1].artifacts['weights'].sha256}" in done.stdout
    assert (
        f"trial 0 of {studies[1].name} found learning_rate {studies[1].parameters['learning_rate']:.4g}" in done.stdout
    )

    document = TrainingDifference.model_validate_json(there.mlops("diff", first, second, "--json").stdout)
    parts = {part.name: part for part in document.parts}
    found = {each.what: (each.before, each.after) for each in parts["parameters"].differences}
    for name in ("learning_rate", "model_args.hidden"):
        values = tuple(str(study.parameters[name]) for study in studies)
        assert values[0] != values[1], "the studies found different settings"
        assert found[f"train.{name}"] == values
    assert parts["data"].is_equal


@pytest.mark.parametrize(
    "program", by_turns([pytest.param(False, id="our loop"), pytest.param(True, id="a script")], 2)
)
def test_a_training_on_two_nodes_is_identical_on_one(quick: Any, program: bool) -> None:
    """Broken: the larger a training was, the less could be shown of it."""
    changes = {}
    if program:
        (quick.home / "include/toy/train_mine.py").write_text(toy_model.PROGRAM)
        changes = {"program": "include/toy/train_mine.py"}
    checkpoint = quick.train(quick.features(), nodes=2, **changes)
    environment = json.loads(quick.store.read(checkpoint.artifacts["environment"]))
    assert (environment["nodes"], environment["world_size"]) == (2, 2)
    done = quick.mlops("reproduce", quick.register(checkpoint), "--steps", "train")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"IDENTICAL  weights {checkpoint.artifacts['weights'].sha256}" in done.stdout


def test_a_script_that_ends_otherwise_each_time_is_named(recipe: Any, quick: Any) -> None:
    """Broken: the reason would be looked for in data, packages and hardware, of which none differs."""
    (quick.home / "include/toy/train_mine.py").write_text(UNSEEDED)
    checkpoint = recipe.train(quick.features(), program="include/toy/train_mine.py")
    done = quick.mlops("reproduce", quick.register(checkpoint), "--steps", "train")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "DIFFERENT  the weights: 0.bias differs" in done.stdout
    assert "likely reason: the loop is the recipe's own, include/toy/train_mine.py" in done.stdout


def test_trees_are_made_again_to_the_bit(quick: Any) -> None:
    """Broken: of another learner nothing could be shown."""
    plain = Train.model_validate({"learner": "lightgbm", "objective": "ranking", "metric": "ndcg@10"})
    section = {**plain.model_dump(mode="json"), "epochs": 2}
    section["learner_settings"] |= {"rounds_per_epoch": 4, "bagging_fraction": 0.7}
    features = quick.features()
    checkpoint = quick.run_step(quick.project, quick.project.step_input("train", section, features, "trees"))
    assert isinstance(checkpoint, CheckpointRef), checkpoint
    done = quick.mlops("reproduce", quick.register(checkpoint), "--steps", "train")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"IDENTICAL  weights {checkpoint.artifacts['weights'].sha256}" in done.stdout


def test_a_training_that_moved_while_it_ran_is_told(quick: Any) -> None:
    """Broken: the reason for other bits would be looked for everywhere but on the machine that it was evicted from."""
    features = quick.features()
    probe = quick.train(features, key="probe", epochs=1)
    environment = json.loads(quick.store.read(probe.artifacts["environment"]))
    assert "other_environments" not in environment
    before = {**environment, "hardware": {**environment["hardware"], "cpu": "Another"}}
    note_environment(quick.store, probe.place.replace("probe", "moved"), before)
    checkpoint = quick.train(features, key="moved", epochs=1)
    done = quick.mlops("reproduce", quick.register(checkpoint), "--steps", "train")
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "a part of it may have been trained in another one, hardware class: cpu Another then, " in said


@pytest.mark.parametrize("by", by_turns(["a file", "a model"], 2))
def test_a_training_that_started_from_weights_is_identical_when_their_file_is_gone(quick: Any, by: str) -> None:
    """Broken: what lay on somebody's disk could not be had for making the model again."""
    features = quick.features()
    base = quick.train(features, key="base", epochs=1)
    weights = base.artifacts["weights"]
    if by == "a file":
        file = quick.home / "models/base.pt"
        file.parent.mkdir()
        file.write_bytes(quick.store.read(weights))
        start = {"path": "models/base.pt", "sha256": weights.sha256}
    else:
        start = {"model": "toy@champion", "found": {**dataclasses.asdict(weights), "version": "1"}}
    checkpoint = quick.train(features, key="from", epochs=1, initialise={**start, "leave_out": ["3.*"]})
    if by == "a file":
        file.unlink()
    done = quick.mlops("reproduce", quick.register(checkpoint), "--steps", "train")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"IDENTICAL  weights {checkpoint.artifacts['weights'].sha256}" in done.stdout


def test_a_training_that_went_on_from_another_is_identical_when_that_is_gone(quick: Any) -> None:
    """Broken: with the other training its checkpoint is lost, and nobody can make this model again, or sees damage."""
    features = quick.features()
    base = quick.train(features, key="base", epochs=1)
    step = json.loads(quick.store.read(base.artifacts["history"]))[-1]["step"]
    checkpoint = quick.train(features, key="on", epochs=2, resume_from={"training": base.place, "step": step})
    quick.store.delete(list(quick.store.list(base.place)))
    version = quick.register(checkpoint)
    done = quick.mlops("reproduce", version, "--steps", "train")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"IDENTICAL  weights {checkpoint.artifacts['weights'].sha256}" in done.stdout
    (kept,) = (key for key in quick.store.list(f"{checkpoint.place}/start") if key.endswith(".bin") and "/step-" in key)
    data = bytearray(quick.store.get(kept))
    data[0] ^= 1
    quick.store.put(kept, bytes(data))
    done = quick.mlops("store", "verify")
    assert (done.returncode, kept.rpartition("/")[0] in done.stdout) == (1, True), done.stdout + done.stderr
