"""Trainings that go on from a checkpoint of another one: the same bits, or an error that says what differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient

from mlops.contract.checkpoint_markers import Saved
from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import Failure
from mlops.contract.training_events import TrainingEvent
from mlops.store import Store
from mlops.trainer.loop import Trainer
from mlops.trainer.progress import Spent

FALLING = {"kind": "cosine", "warmup_steps": 5, "final_fraction": 0.1}
EVERY = {"every_steps": 7, "every_minutes": 10, "keep_latest": 50, "peers": 0}
PLACE = "pipelines/toy/train/x"
STEPS = 25
"""Of an epoch."""


def place_of(project: Any, key: str) -> str:
    return f"pipelines/{project.pipeline}/train/{key}"


@pytest.fixture
def train(project: Any, toy_features: FeaturesRef, run_step: Any, config: Any) -> Any:
    """Trains the toy recipe in this process; from a checkpoint of another training where one is given."""

    def run(key: str, from_: tuple[str, int] | None = None, **changes: Any) -> Any:
        start = None if from_ is None else {"training": place_of(project, from_[0]), "step": from_[1]}
        section = config(**{"processes": 1, "epochs": 3, "checkpoint": EVERY, "resume_from": start, **changes})
        return run_step(project, project.step_input("train", section, toy_features, key))

    return run


def weights(ref: Any) -> str:
    assert isinstance(ref, CheckpointRef), ref
    return ref.artifacts["weights"].sha256


def history(project: Any, ref: CheckpointRef) -> list[tuple[Any, ...]]:
    told = json.loads(project.store.read(ref.artifacts["history"]))
    return [(each["epoch"], each["step"], each["train_loss"], each["validation_metric"]) for each in told]


def test_from_any_checkpoint_it_ends_at_the_same_bits(project: Any, train: Any) -> None:
    """Broken: samples are left out or seen twice, or the optimizer begins anew, and it is another model."""
    whole = train("whole", schedule=FALLING)
    steps = sorted(project.steps_saved("whole"))
    assert 3 * STEPS in steps
    assert any(step % STEPS for step in steps)
    for step in steps:
        again = train(f"from_{step}", ("whole", step), schedule=FALLING)
        assert weights(again) == weights(whole), step
        assert again.metrics == whole.metrics
        assert (again.epoch, history(project, again)) == (whole.epoch, history(project, whole))
        trails = [project.store.read(ref.artifacts["trail"]) for ref in (again, whole)]
        assert trails[0] == trails[1]
        assert min(project.steps_saved(f"from_{step}"), default=step + 1) > step, "no step is done again"
    told = MlflowClient(project.tracking_uri).get_run(again.tracking_run).data
    assert told.tags["mlops.resumed_from"] == f"{place_of(project, 'whole')}@{3 * STEPS}"


def test_more_epochs_are_as_if_they_had_been_asked_for(train: Any) -> None:
    """Broken: whoever wants to train on has to begin from the start, or gets another model than the long training."""
    long = train("long", epochs=3)
    train("short", epochs=1)
    assert weights(train("on", ("short", STEPS), epochs=3)) == weights(long)


def test_other_settings_of_the_rest_count(project: Any, train: Any) -> None:
    """Broken: the learning rate that was asked for is that of the optimizer's state."""
    train("first", epochs=1)
    train("still", ("first", STEPS), epochs=2, learning_rate=1e-30)
    train("moving", ("first", STEPS), epochs=2)
    first, still, moving = (newest(project, key) for key in ("first", "still", "moving"))
    assert all(torch.equal(first[name], still[name]) for name in first)
    assert not all(torch.equal(first[name], moving[name]) for name in first)


def newest(project: Any, key: str) -> dict[str, torch.Tensor]:
    from mlops.trainer.checkpoint.listing import read_listing
    from mlops.trainer.checkpoint.loading import load_whole

    found: dict[str, torch.Tensor] = load_whole(
        project.store, read_listing(project.store, place_of(project, key)).complete[-1], "model"
    )["model"]
    return found


def test_the_best_epoch_may_be_one_of_before(project: Any, train: Any) -> None:
    """Broken: the best weights of the other training are not there, and worse ones pass for the best."""
    first = train("first", epochs=1)
    spoilt = train("on", ("first", STEPS), epochs=3, learning_rate=30.0)
    assert spoilt.epoch == 1, history(project, spoilt)
    assert weights(spoilt) == weights(first)
    again = train("further", ("on", 3 * STEPS), epochs=4, learning_rate=30.0)
    assert (again.epoch, weights(again)) == (1, weights(first)), history(project, again)
    assert "lost_best" not in again.artifacts


def test_it_is_made_again_without_the_other_one(project: Any, train: Any) -> None:
    """Broken: once the other training is removed, nobody can tell what this one was, or make it again."""
    train("first", epochs=1)
    on = train("on", ("first", STEPS), epochs=3, learning_rate=30.0)
    project.store.delete(list(project.store.list(place_of(project, "first"))))
    assert on.artifacts["start"].key.startswith(f"{place_of(project, 'on')}/start/")
    Saved.load(project.store.read(on.artifacts["start"]), on.artifacts["start"].key)
    again = train("again", ("on/start", STEPS), epochs=3, learning_rate=30.0)
    assert weights(again) == weights(on)
    assert history(project, again) == history(project, on)


def test_from_a_bucket_it_ends_at_the_same_bits(
    project: Any, toy_features: FeaturesRef, s3: str, run_step: Any, config: Any
) -> None:
    """Broken: the copy that a training takes first is made in folders only."""
    there = replace(project, store=Store(f"{s3}/resumed"))
    for key in project.store.list(""):
        there.store.put(key, project.store.get(key))

    def run(key: str, epochs: int, **changes: Any) -> Any:
        section = config(**{"processes": 1, "epochs": epochs, **changes})
        return run_step(there, there.step_input("train", section, toy_features, key))

    whole, _ = run("whole", 3), run("first", 1)
    on = run("on", 3, resume_from={"training": place_of(project, "first"), "step": STEPS})
    assert weights(on) == weights(whole)
    assert any("/start/" in key for key in there.store.list(place_of(project, "on")))


@pytest.mark.gang
def test_killed_it_goes_on_by_other_processes(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: a try after the first begins at the other training's checkpoint, or from nothing where that is gone."""
    exact = {"elastic": "exact", "logical_shards": 4, "epochs": 3, "checkpoint": EVERY}
    exact["loss"] = "include.toy.model:slow_loss"

    def start(key: str, processes: int, **changes: Any) -> Any:
        section = config(**{**exact, "processes": processes, **changes})
        document = project.step_input("train", section, toy_features, key)
        return project.start(document, processes=processes, name=key)

    whole = start("whole", 1).result()
    step = max(step for step in project.steps_saved("whole") if step % STEPS and step < 2 * STEPS)
    on = {"resume_from": {"training": place_of(project, "whole"), "step": step}}
    struck = start("on", 2, **on)
    struck.wait_until(lambda: max(project.steps_saved("on"), default=0) > step)
    struck.kill()
    project.store.delete(list(project.store.list(place_of(project, "whole"))))
    last = start("on", 2, **on)
    assert weights(last.result()) == weights(whole), last.log
    assert "going on after step" in last.log
    folder = Path(project.store.uri.removeprefix("file://"), place_of(project, "on"), "events")
    noted = sorted((TrainingEvent.load(file.read_bytes()) for file in folder.iterdir()), key=lambda event: event.at)
    assert [each.kind for each in noted] == ["started", "resumed", "started", "resumed", "ended"]
    assert f"{place_of(project, 'on')}/start/" in noted[1].said
    assert f"{place_of(project, 'on')}/checkpoints/" in noted[3].said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 8}, "seed is 8 here and was 7 there"),
        ({"model_args": {"hidden": 9}}, "model_args is {'hidden': 9} here and was {'hidden': 8} there"),
        ({"global_batch": 8, "weight_decay": 0.5}, "global_batch is 8 here and was 16 there; weight_decay is 0.5"),
        ({"metrics": ["mrr"]}, "metrics is ['mrr'] here and was [] there"),
        ({"epochs": 1}, "epochs is 1, and 2 were begun: ask for more"),
    ],
)
def test_what_does_not_fit_is_named(project: Any, train: Any, changes: Any, message: str) -> None:
    """Broken: it trains on with samples in another order, or another optimizer than it says."""
    train("first", epochs=2)
    failure = train("on", ("first", 2 * STEPS), **changes)
    assert isinstance(failure, Failure), failure
    assert (failure.type, failure.retryable) == ("BadConfigError", False)
    assert message in failure.message
    assert "give them to train.initialise" in failure.message
    assert not project.steps_saved("on/start")


def test_other_samples_are_refused(
    project: Any, toy_features: FeaturesRef, binary_features: FeaturesRef, run_step: Any, config: Any
) -> None:
    """Broken: the rest of an epoch is dealt from other samples than its beginning."""
    rows = {"processes": 1, "objective": "regression", "metric": "rmse", "epochs": 1}
    run_step(project, project.step_input("train", config(**rows), binary_features, "first"))
    (step,) = {*project.steps_saved("first")}
    start = {"training": place_of(project, "first"), "step": step}
    section = config(**rows, resume_from=start)
    assert isinstance(run_step(project, project.step_input("train", section, binary_features, "same")), CheckpointRef)
    failure = run_step(project, project.step_input("train", section, toy_features, "on"))
    assert isinstance(failure, Failure)
    assert "the samples are not those that it has learnt from" in failure.message


def test_samples_that_are_cut_otherwise_are_refused(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any, train: Any
) -> None:
    """Broken: sequences of another length lie in equal shards, and half of an epoch is left out."""
    train("first", epochs=1)
    manifest = json.loads(project.store.read(toy_features.artifacts["manifest"]))
    manifest["splits"]["train"]["context"] = 4
    told = project.store.put_artifact(toy_features.place, "manifest.json", json.dumps(manifest).encode())
    others = replace(toy_features, artifacts={**toy_features.artifacts, "manifest": told})
    project.store.put(f"{others.place}/ref.json", json.dumps(others.to_wire()).encode())
    section = config(processes=1, epochs=2, resume_from={"training": place_of(project, "first"), "step": STEPS})
    failure = run_step(project, project.step_input("train", section, others, "on"))
    assert isinstance(failure, Failure)
    assert "the samples are not those that it has learnt from" in failure.message


SGD = """

def configure(model, learning_rate, weight_decay):
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum={momentum})
"""


@pytest.mark.parametrize(("after", "differs"), [("0.1", True), ("0.9 + 0", False)])
def test_an_optimizer_of_the_recipe_is_the_same(project: Any, train: Any, after: str, differs: bool) -> None:
    """Broken: the options that the recipe has now are those of the checkpoint, and nothing is said of it."""
    file = project.home / "include/toy/model.py"
    code = file.read_text()
    own = {"configure_optimizer": "include.toy.model:configure"}
    file.write_text(code + SGD.format(momentum="0.9"))
    train("first", epochs=1, **own)
    file.write_text(code + SGD.format(momentum=after))
    found = train("on", ("first", STEPS), epochs=2, **own)
    assert isinstance(found, Failure) == differs, found
    if differs:
        assert "momentum=0.1" in found.message
        assert "momentum=0.9" in found.message


def test_the_best_weights_are_kept_whole(project: Any, train: Any) -> None:
    """Broken: one damaged file below the training's own place loses the best model, though the other one has it."""
    first = train("first", epochs=2)
    train("on", ("first", 2 * STEPS), epochs=3, learning_rate=30.0)
    spoilt = train("further", ("on", 3 * STEPS), epochs=4, learning_rate=30.0)
    assert (spoilt.epoch, weights(spoilt)) == (first.epoch, weights(first))
    root = Path(project.store.uri.removeprefix("file://"))
    for key in list(project.store.list(place_of(project, "further"))):
        if "/start/" not in key:
            project.store.delete([key])
    (file,) = (root / place_of(project, "further")).glob(f"start/checkpoints/*-{first.epoch * STEPS:08d}*/*.bin")
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.unlink()  # a file of its own: it was a link to the other one's
    file.write_bytes(data)
    again = train("further", ("on", 3 * STEPS), epochs=4, learning_rate=30.0)
    assert (again.epoch, weights(again)) == (first.epoch, weights(first))


def test_what_is_not_there_or_damaged_is_named(project: Any, train: Any) -> None:
    train("first", epochs=1)
    failure = train("on", ("first", 8))
    assert isinstance(failure, Failure)
    assert f"{place_of(project, 'first')} has no checkpoint of step 8; it has 7, " in failure.message
    failure = train("on", ("nobody", 8))
    assert isinstance(failure, Failure)
    assert "it has none at all" in failure.message
    (file,) = Path(project.store.uri.removeprefix("file://"), place_of(project, "first")).glob(
        "checkpoints/step-00000007*/*.bin"
    )
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    failure = train("on", ("first", 7))
    assert isinstance(failure, Failure)
    assert failure.type == "DamagedCheckpointError"
    assert file.name in failure.message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"training": "../../train/x", "step": 1}, "training"),
        ({"training": "pipelines/../train/x", "step": 1}, "training"),
        ({"training": PLACE, "step": 0}, "step"),
        ({"training": PLACE}, "step"),
    ],
)
def test_bad_settings_are_refused_at_once(config: Any, given: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_section(Train, config() | {"resume_from": given}, "train")


def test_it_brings_the_weights_itself(config: Any) -> None:
    start = {"training": PLACE, "step": 1}
    with pytest.raises(SpecError, match="resume_from brings the weights"):
        check_section(Train, config() | {"resume_from": start, "initialise": {"model": "toy/1"}}, "train")


def test_the_copy_is_not_used_where_it_is_damaged(project: Any, train: Any) -> None:
    """Broken: it goes on from an older checkpoint, or anew, and says that it went on from this one."""
    train("first", epochs=2)
    train("on", ("first", 2 * STEPS), epochs=2)
    root = Path(project.store.uri.removeprefix("file://"))
    for key in list(project.store.list(place_of(project, "on"))):
        if "/start/" not in key:
            project.store.delete([key])
    for file in (root / place_of(project, "on")).glob(f"start/checkpoints/step-{2 * STEPS:08d}*/*.bin"):
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        file.write_bytes(data)
    failure = train("on", ("first", 2 * STEPS), epochs=2)
    assert isinstance(failure, Failure)
    assert "remove that folder, and the next try takes it from the other training again" in failure.message


def seconds_told(project: Any, ref: CheckpointRef) -> list[float]:
    client = MlflowClient(tracking_uri=project.tracking_uri)
    return [each.value for each in client.get_metric_history(ref.tracking_run, "training_seconds")]


def test_goodput_counts_what_a_training_has_done_itself(
    project: Any, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: what was lost with a process would count as done, or what another training has done as its own."""
    hours = 36_000.0
    spent = Spent.seconds.fget
    assert spent is not None
    end_epoch = Trainer._end_epoch

    def dies(self: Trainer, state: Any) -> None:
        if state.epoch == 2:
            raise KeyboardInterrupt
        end_epoch(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(Spent, "seconds", property(lambda self: hours + spent(self)))
        patch.setattr(Trainer, "_end_epoch", dies)
        with pytest.raises(KeyboardInterrupt):
            train("killed")
    assert max(project.steps_saved("killed")) < 2 * STEPS
    resumed = train("killed")
    told = seconds_told(project, resumed)
    assert min(told) >= hours
    assert max(told) < hours + 600
    fresh = train("fresh", from_=("killed", 7))
    assert max(seconds_told(project, fresh)) < 600
    run = MlflowClient(tracking_uri=project.tracking_uri).get_run(fresh.tracking_run)
    assert run.data.params["num_steps"] == str(3 * STEPS)
