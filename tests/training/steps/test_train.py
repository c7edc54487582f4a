from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from mlflow import MlflowClient
from warm import wait_until_warm

from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.contract.sections.train import Train
from mlops.contract.step import Failure
from mlops.features.fitted import read_manifest
from mlops.trainer.parallel import Ranks
from mlops.trainer.recipe import Recipe


def test_a_killed_training_goes_on_in_the_same_run(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: a spot preemption would show up as a second run in MLflow, or leave gaps or doubles in its curves."""
    section = config(loss="include.toy.model:slow_loss")
    document = project.step_input("train", section, toy_features, "killed")
    first = project.start(document, processes=2, name="killed")
    first.wait_until(lambda: len(project.steps_saved("killed")) >= 1)
    first.kill()
    assert len(project.steps_saved("killed")) < 3, "killed too late to prove anything"
    second = project.start(document, processes=2, name="killed")
    resumed = second.result()
    assert isinstance(resumed, CheckpointRef), second.log
    assert "going on after step" in second.log

    client = MlflowClient(tracking_uri=project.tracking_uri)
    experiment = client.get_experiment_by_name(project.pipeline)
    runs = client.search_runs([experiment.experiment_id], "tags.`mlops.run_key` = 'killed'")
    assert [run.info.run_id for run in runs] == [resumed.tracking_run]
    assert runs[0].info.status == "FINISHED"
    steps = [m.step for m in client.get_metric_history(resumed.tracking_run, "validation_ndcg_at_10")]
    assert sorted(steps) == [1, 2, 3], "one value per epoch, none twice"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_warm_process_trains_to_the_same_bits(
    project: Any, toy_features: FeaturesRef, config: Any, processes: int
) -> None:
    """Broken: a model could not be made again, for its process was started in another way."""
    wait_until_warm()
    trained = []
    for warm in (True, False):
        document = project.step_input("train", config(processes=processes), toy_features, f"warm_{warm}")
        started = project.start(document, processes=processes, name=f"warm_{warm}", warm=warm)
        trained.append(started.result())
        assert isinstance(trained[-1], CheckpointRef), started.log
        assert started.process.is_warm is warm
    assert trained[0].artifacts["weights"].sha256 == trained[1].artifacts["weights"].sha256
    assert trained[0].metrics == trained[1].metrics


def test_a_training_is_tracked_with_all_it_came_from(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any
) -> None:
    ref = run_step(project, project.step_input("train", config(processes=1), toy_features))
    assert isinstance(ref, CheckpointRef), ref
    history = json.loads(project.store.read(ref.artifacts["history"]))
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert ref.metrics["ndcg@10"] == max(record["validation_metric"] for record in history) > 0.85
    run = MlflowClient(tracking_uri=project.tracking_uri).get_run(ref.tracking_run)
    dataset = ref.parent.parent.parent
    expected = {
        "mlops.dataset_version": dataset.version,
        "mlops.dataset_place": dataset.place,
        "mlops.features_version": ref.parent.version,
        "mlops.seed": "7",
        "mlops.airflow.dag_id": project.pipeline,
        "mlops.airflow.try_number": "1",
        "mlops.git_commit": "unknown",
    }
    assert {name: run.data.tags[name] for name in expected} == expected
    assert {"mlops.lock.training/requirements.txt", "mlops.hardware.cpu", "mlops.torch"} <= set(run.data.tags)
    drawn = {"loss", "learning_rate", "gradient_norm", "training_throughput_samples_per_sec", "data_loading_latency_ms"}
    drawn |= {"train_loss", "validation_ndcg_at_10", "model_flops_per_sec", "system/cpu_utilization_percentage"}
    assert drawn <= set(run.data.metrics)
    assert run.data.params["learning_rate"] == "0.01"
    assert run.data.params["model_args.hidden"] == "8"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "include.toy.model:build_list"}, "must return a torch.nn.Module, got list"),
        ({"model": "include.toy.model:build_idle"}, "does not depend on the parameter spare"),
        ({"model": "include.toy.modle:build_model"}, "modle"),
        ({"model_args": {}}, "failed on num_features=4"),
        ({"loss": "include.toy.model:broken_loss"}, "epoch 1, step"),
        ({"loss": "include.toy.model:mean_loss"}, "one value per sample"),
        ({"loss": "include.toy.model:number_loss"}, "must return a tensor"),
        ({"metric": "auc"}, "metric must be measured by ndcg@K or mrr, for the objective is ranking, got 'auc'"),
    ],
    ids=[
        "no module",
        "idle parameter",
        "no such file",
        "missing argument",
        "loss not finite",
        "loss of wrong shape",
        "loss is no tensor",
        "metric",
    ],
)
def test_a_recipe_that_cannot_work_fails_for_good(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any, changes: dict[str, Any], message: str
) -> None:
    """Broken: retries would repeat a failure that only its author can mend, or the message would not say what."""
    failure = run_step(project, project.step_input("train", {**config(), **changes}, toy_features))
    assert isinstance(failure, Failure)
    assert message in failure.message
    assert not failure.retryable


def test_losses_of_any_size_are_added_up(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: squared errors of large values would end a training, or their mean differ with the number of ranks."""
    section = config(loss="include.toy.model:huge_loss", epochs=1)
    started = project.start(project.step_input("train", section, toy_features), processes=2)
    ref = started.result()
    assert isinstance(ref, CheckpointRef), started.log
    [epoch] = json.loads(project.store.read(ref.artifacts["history"]))
    assert epoch["train_loss"] == pytest.approx(3e30, rel=1e-6)


@pytest.mark.parametrize("settings", [{"micro_batch_rows": 15}, {"global_batch": 400}], ids=["budget", "no budget"])
def test_settings_reach_the_passes_over_groups(
    project: Any,
    toy_features: FeaturesRef,
    config: Any,
    settings: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken: padding would fill memory whatever the user asks for, or all of a batch would be padded at once."""
    monkeypatch.setattr("mlops.trainer.recipe.PASS_WORTH_ROWS", 100)
    recipe = Recipe(
        config=Train.model_validate(config(**settings)),
        ranks=Ranks(),
        home=project.home,
        store=project.store,
        features=toy_features,
        manifest=read_manifest(project.store, toy_features),
    )
    [step, *_] = recipe.loader().epoch(1)
    sizes = [batch.labels.numel() for batch in step.batches]
    assert len(sizes) > 1
    assert max(sizes) <= settings.get("micro_batch_rows", 1500)


def test_the_loss_names_the_samples_that_broke_it(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any
) -> None:
    section = config(loss="include.toy.model:broken_loss")
    failure = run_step(project, project.step_input("train", section, toy_features))
    assert failure.type == "NonFiniteLossError"
    assert 7 in failure.details["samples"]


@pytest.mark.parametrize("every_steps", [None, 1])
def test_nothing_that_came_after_the_loss_broke_is_kept_or_blamed(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any, every_steps: int | None
) -> None:
    """
    Broken: the numbers of a step are looked at while the next one runs on its weights, and those would be saved, or an
    error that they cause would hide the cause.
    """
    checkpointing = {"every_steps": every_steps, "every_minutes": 10, "keep_latest": 3, "peers": 0}
    section = config(loss="include.toy.model:brittle_loss", processes=1, checkpoint=checkpointing)
    failure = run_step(project, project.step_input("train", section, toy_features))
    assert isinstance(failure, Failure)
    assert failure.type == "NonFiniteLossError", failure.message
    assert failure.details["samples"] == [7]
    saved = project.steps_saved("key")
    # A save is left out while the one before is still being written.
    assert max(saved, default=0) in (range(1, failure.details["step"]) if every_steps else [0])
    assert ("checkpoint is that of step" in failure.message) == bool(saved)


def test_an_operation_without_a_deterministic_algorithm_is_refused(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any
) -> None:
    """Broken: the user would read torch's advice, which names neither the place nor our setting, and it be retried."""
    section = config(loss="include.toy.model:scattered_loss", processes=1)
    failure = run_step(project, project.step_input("train", section, toy_features))
    assert isinstance(failure, Failure)
    assert failure.type == "NonDeterministicError"
    assert not failure.retryable
    for words in (
        "put_ has no",
        "include/toy/model.py:",
        "in scattered_loss",
        "index_put",
        "train.deterministic: warn",
    ):
        assert words in failure.message


def test_where_it_is_only_warned_of_all_say_so(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any
) -> None:
    """Broken: nobody could tell later why the same training gave other bits."""
    section = config(loss="include.toy.model:scattered_loss", processes=1, deterministic="warn", epochs=1)
    ref = run_step(project, project.step_input("train", section, toy_features))
    assert isinstance(ref, CheckpointRef), ref
    assert json.loads(project.store.read(ref.artifacts["environment"]))["nondeterministic"] == ["put_"]
    run = MlflowClient(tracking_uri=project.tracking_uri).get_run(ref.tracking_run)
    assert run.data.tags["mlops.nondeterministic"] == "put_"


def test_without_an_mlflow_server_in_the_settings_nothing_is_trained(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any
) -> None:
    """Broken: hours of training would end in an error that was there from the start."""
    failure = run_step(project, project.step_input("train", config(), toy_features), tracking_uri="")
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert "MLFLOW_TRACKING_URI" in failure.message
    assert not project.steps_saved("key")


def test_a_training_that_mlflow_missed_is_told_to_it_later(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a training would need MLflow all the while, or be done again for its sake."""
    for module in ("publish", "train"):
        monkeypatch.setattr(f"mlops.steps.{module}.TRACKING_SECONDS", 1.0)
    document = project.step_input("train", config(processes=1), toy_features)
    failure = run_step(project, document, tracking_uri="http://127.0.0.1:9")
    assert isinstance(failure, Failure)
    assert failure.outage == "MLflow", "its task waits"
    done = project.steps_saved("key")
    assert 75 in done

    for module in ("publish", "train"):
        monkeypatch.setattr(f"mlops.steps.{module}.TRACKING_SECONDS", 60.0)
    monkeypatch.setattr("mlops.trainer.loop.Trainer._train_epoch", None)
    ref = run_step(project, document)
    assert isinstance(ref, CheckpointRef), ref
    assert project.steps_saved("key") == done
    client = MlflowClient(tracking_uri=project.tracking_uri)
    steps = [metric.step for metric in client.get_metric_history(ref.tracking_run, "validation_ndcg_at_10")]
    assert sorted(steps) == [1, 2, 3]


def test_failure_on_any_rank_reaches_the_result(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: the user would read of a closed connection instead of the loss that was not finite."""
    section = config(loss="include.toy.model:broken_loss")
    started = project.start(project.step_input("train", section, toy_features), processes=2)
    failure = started.result()
    assert isinstance(failure, Failure)
    assert failure.type == "NonFiniteLossError", started.log


def test_what_a_recipe_brings_of_its_own_is_used(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any
) -> None:
    """Broken: a setting would be taken and ignored."""
    own = {
        "metrics": ["include.toy.model:MEAN_SCORE"],
        "configure_optimizer": "include.toy.model:plain_descent",
        "curriculum": "include.toy.model:nothing_yet",
    }
    section = config(processes=1, early_stopping={"patience": 1, "min_improvement": 0.0}, **own)
    ref = run_step(project, project.step_input("train", section, toy_features))
    assert isinstance(ref, CheckpointRef), ref
    history = json.loads(project.store.read(ref.artifacts["history"]))
    # Weights of 0 for all samples: the model stays as it is, and the second epoch is no better than the first.
    assert [epoch["train_loss"] for epoch in history] == [0.0, 0.0]
    assert {"mean_score"} == set(history[0]["further_metrics"])
    run = MlflowClient(tracking_uri=project.tracking_uri).get_run(ref.tracking_run)
    assert run.data.metrics["validation_mean_score"] == history[0]["further_metrics"]["mean_score"]


@pytest.mark.gang
def test_another_machine_goes_on_with_as_many_threads(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: after an eviction the training would go on by other sums on a node with more cores, and say otherwise."""
    section = config(loss="include.toy.model:slow_loss", processes=1)
    document = project.step_input("train", section, toy_features, "threads")
    two, one = {"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1"}
    first = project.start(document, name="threads", environment=two)
    first.wait_until(lambda: project.steps_saved("threads"))
    first.kill()
    second = project.start(document, name="threads", environment=one)
    ref = second.result()
    assert isinstance(ref, CheckpointRef), second.log
    assert "the training has had 2 threads, and goes on so: here it would be 1" in second.log
    assert json.loads(project.store.read(ref.artifacts["environment"]))["num_threads"] == 2
    calm = replace(document, run=replace(document.run, run_key="calm"))
    undisturbed = project.start(calm, name="calm", environment=two).result()
    assert undisturbed.artifacts["weights"].sha256 == ref.artifacts["weights"].sha256


@pytest.mark.gang
def test_a_training_that_went_on_elsewhere_says_so(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: the record names the last machine only, and nobody can tell why it gives other bits all night."""
    section = config(loss="include.toy.model:slow_loss", processes=1)
    document = project.step_input("train", section, toy_features, "moved")
    first = project.start(document, name="moved")
    first.wait_until(lambda: project.steps_saved("moved"))
    first.kill()
    (project.home / "requirements.txt").write_text("other==1\n")
    second = project.start(document, name="moved")
    ref = second.result()
    assert isinstance(ref, CheckpointRef), second.log
    assert "a part of this training may have been done elsewhere" in second.log
    (other,) = json.loads(project.store.read(ref.artifacts["environment"]))["other_environments"]
    assert [said.partition(" then")[0].rpartition(" ")[0] for said in other["differences"]] == [
        "lock file: requirements.txt"
    ]


NORMED = """

def build_normed(config):
    hidden = nn.Linear(config.num_features, config.hidden)
    return nn.Sequential(hidden, nn.BatchNorm1d(config.hidden), nn.Linear(config.hidden, 1), nn.Flatten(-2))
"""


@pytest.mark.parametrize(("processes", "left"), [(1, 1), (2, 1), (2, 3)])
@pytest.mark.gang
def test_a_batch_norm_trains_whatever_is_left_for_the_last_step(
    project: Any, binary_features: FeaturesRef, config: Any, processes: int, left: int
) -> None:
    """Broken: on one night in 32 the training ends in the last step of its first epoch."""
    num_rows = binary_features.num_samples["train"]
    global_batch = next(size for size in range(64, num_rows) if num_rows % size == left)
    started = project.start(normed(project, binary_features, config, processes, global_batch), processes=processes)
    assert isinstance(started.result(), CheckpointRef), started.log


@pytest.mark.gang
@pytest.mark.parametrize("processes", [1, 2])
def test_a_batch_norm_over_single_rows_is_refused(
    project: Any, binary_features: FeaturesRef, config: Any, processes: int
) -> None:
    document = normed(project, binary_features, config, processes, global_batch=processes)
    failure = project.start(document, processes=processes).result()
    assert isinstance(failure, Failure), failure
    assert not failure.retryable
    assert "a batch norm cannot learn from a forward pass over one sample: give each process two" in failure.message


def normed(project: Any, features: FeaturesRef, config: Any, processes: int, global_batch: int) -> Any:
    model = project.home / "include/toy/model.py"
    model.write_text(model.read_text() + NORMED)
    settings = {"model": "include.toy.model:build_normed", "objective": "binary", "metric": "auc", "epochs": 1}
    section = config(**settings, processes=processes, global_batch=global_batch)
    return project.step_input("train", section, features)


def test_the_epoch_of_the_lowest_loss_is_the_best(
    project: Any, binary_features: FeaturesRef, run_step: Any, config: Any
) -> None:
    """Broken: where less is better, training would go on until the model is at its worst, and keep that."""
    # At such a rate the model is soon worse than it was.
    section = config(
        processes=1, objective="binary", metric="log_loss", epochs=8, learning_rate=0.3, model_args={"hidden": 64},
        early_stopping={"patience": 2, "min_improvement": 0.0},
    )  # fmt: skip
    ref = run_step(project, project.step_input("train", section, binary_features))
    assert isinstance(ref, CheckpointRef), ref
    values = [epoch["validation_metric"] for epoch in json.loads(project.store.read(ref.artifacts["history"]))]
    assert len(values) < 8, "stopped early"
    assert ref.epoch == 1 + values.index(min(values)) == len(values) - 2
    assert ref.metrics["log_loss"] == min(values) < max(values)


def test_where_both_copies_of_the_best_are_lost_the_next_best_is_published_and_said(
    project: Any, toy_features: FeaturesRef, config: Any, run_step: Any
) -> None:
    """Broken: two flipped bits would lose the training, or a lesser model pass for the best one unseen."""
    # Quicker than it can learn: the last epoch is not the best one.
    section = config(processes=1, epochs=4, learning_rate=2.0)
    document = project.step_input("train", section, toy_features)
    whole = run_step(project, document)
    history = json.loads(project.store.read(whole.artifacts["history"]))
    first = max(history, key=lambda epoch: epoch["validation_metric"])
    assert first["epoch"] < 4
    assert "lost_best" not in whole.artifacts
    keys = list(project.store.list(f"{whole.place}/checkpoints"))
    damaged = [key for key in keys if f"-{first['step']:08d}-" in key and key.endswith(".bin")]
    assert len(damaged) == 2, "the checkpoint and the copy"
    for key in damaged:
        data = bytearray(project.store.get(key))
        data[5] ^= 1  # the weights come first
        project.store.put(key, bytes(data))
    project.store.delete([f"{whole.place}/ref.json"])
    again = run_step(project, document)
    assert json.loads(project.store.read(again.artifacts["lost_best"]))["epoch"] == first["epoch"]
    left = {int(key.split("step-")[1][:8]) for key in keys if "/step-" in key} - {first["step"]}
    best_left = max((epoch for epoch in history if epoch["step"] in left), key=lambda epoch: epoch["validation_metric"])
    assert again.metrics["ndcg@10"] == best_left["validation_metric"]
    assert again.artifacts["weights"].sha256 != whole.artifacts["weights"].sha256


def test_more_processes_than_logical_shards_are_refused(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: a node that comes later, or a changed setting, ends the training in an error of torch's."""
    section = config(elastic="exact", logical_shards=1, processes=1)
    failure = project.start(project.step_input("train", section, toy_features), processes=2).result()
    assert isinstance(failure, Failure)
    assert (failure.type, failure.retryable) == ("BadConfigError", False), failure.message
    assert "too few for 2 processes: raise train.logical_shards" in failure.message
