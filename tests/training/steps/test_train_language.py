from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import corpus
import numpy as np
import pytest
from mlflow import MlflowClient
from turns import by_turns, on_turn

from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.contract.step import Failure
from mlops.data.shards.loader import Loader
from mlops.data.shards.shard_reading import open_source

PARALLEL = {"dp_replicate": -1, "dp_shard": 1, "tp": 1, "pp": 1}
SHARDED = {"parallel": {**PARALLEL, "dp_shard": 2}}


@pytest.fixture
def features(project: Any, run_step: Any) -> FeaturesRef:
    corpus.write_library(project.home)
    corpus.write_recipe(project.home)
    ref = corpus.tokens_of(project, run_step, corpus.ingested(project, run_step))
    assert isinstance(ref, FeaturesRef), ref
    return ref


@pytest.fixture
def train(project: Any, features: FeaturesRef, config: Any) -> Callable[..., Any]:
    """Starts a training, under torchrun where there are several processes."""

    def start(run_key: str, processes: int, **changes: Any) -> Any:
        section = corpus.lm_config(config, **changes)
        return project.start(project.step_input("train", section, features, run_key), processes=processes, name=run_key)

    return start


def result(started: Any) -> CheckpointRef:
    ref = started.result()
    assert isinstance(ref, CheckpointRef), started.log
    return ref


def weights(project: Any, ref: CheckpointRef) -> str:
    return hashlib.sha256(project.store.read(ref.artifacts["weights"])).hexdigest()


def history(project: Any, ref: CheckpointRef) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(project.store.read(ref.artifacts["history"]))
    return found


def test_the_epoch_of_the_lowest_perplexity_is_the_best(
    project: Any, features: FeaturesRef, run_step: Any, config: Any
) -> None:
    """Broken: the worst epoch would go to production."""
    # After a few epochs at such a rate the model is worse than it was.
    section = corpus.lm_config(
        config, processes=1, epochs=6, learning_rate=0.3, metrics=["include.lm.model:TOKENS"],
        early_stopping={"patience": 2, "min_improvement": 0.0},
    )  # fmt: skip
    ref = run_step(project, project.step_input("train", section, features))
    assert isinstance(ref, CheckpointRef), ref
    values = [epoch["validation_metric"] for epoch in history(project, ref)]
    assert ref.metrics["perplexity"] == min(values) < 40 < 257, "learnt something"
    assert ref.epoch == 1 + int(np.argmin(values))
    assert len(values) == 6 or min(values) not in values[-2:], "stopped after two epochs without improvement"
    sequences = features.num_samples["validation"]
    assert history(project, ref)[0]["further_metrics"] == {"tokens": 16.0 * sequences}
    client = MlflowClient(tracking_uri=project.tracking_uri)
    assert [m.value for m in client.get_metric_history(ref.tracking_run, "validation_perplexity")] == values
    model = json.loads(project.store.read(ref.artifacts["model"]))
    assert (model["vocab_size"], model["num_features"]) == (257, 16)


def test_no_number_of_ranks_changes_the_perplexity(project: Any, train: Any) -> None:
    """Broken: a training on eight machines could not be compared with one on a laptop."""
    # A rate at which nothing moves: the weights are the initial ones, whoever validates.
    still = {"learning_rate": 1e-30, "weight_decay": 0.0, "epochs": 1}
    alone, two, sharded = (
        result(started)
        for started in (train("one", 1, **still), train("two", 2, **still), train("sharded", 2, **still, **SHARDED))
    )
    assert alone.metrics["perplexity"] == two.metrics["perplexity"] == sharded.metrics["perplexity"]
    assert alone.metrics["train_loss"] == pytest.approx(two.metrics["train_loss"], rel=1e-6)


def test_exact_mode_ends_at_the_same_bits_at_any_number_of_processes(project: Any, train: Any) -> None:
    alone, three = (result(train(f"exact{number}", number, elastic="exact", epochs=2)) for number in (1, 3))
    assert weights(project, three) == weights(project, alone)
    assert three.metrics == alone.metrics


GROWING = {"sequence_lengths": [{"tokens": 4, "until": 0.3}, {"tokens": 8, "until": 0.6}], "epochs": 2}


ORDERED = {"sample_order": {"by": "include.lm.model:difficulty", "until": 0.5}, "epochs": 2}


@pytest.mark.parametrize(
    "curriculum",
    [
        pytest.param(GROWING, id="short sequences first", marks=on_turn(0, 2)),
        pytest.param(ORDERED, id="easy samples first", marks=on_turn(1, 2)),
    ],
)
def test_a_curriculum_is_learnt_to_the_same_bits_by_any_number_of_processes(
    project: Any, train: Any, curriculum: dict[str, Any]
) -> None:
    """Each sample in its step, at any number of processes."""
    alone, three = (result(train(f"first{number}", number, elastic="exact", **curriculum)) for number in (1, 3))
    whole = result(train("whole", 1, elastic="exact", epochs=2))
    assert weights(project, three) == weights(project, alone)
    steps = [history(project, ref)[-1]["step"] for ref in (alone, whole)]
    assert steps[0] == steps[1]


def test_any_number_of_ranks_sees_each_sequence_once(project: Any, features: FeaturesRef, tmp_path: Any) -> None:
    """Broken: the world size would change what is learnt."""
    source = open_source(project.store, features, "train", tmp_path)

    def seen(world_size: int) -> list[list[int]]:
        ranks = [
            Loader(source=source, global_batch=16, seed=7, rank=rank, world_size=world_size).epoch(1)
            for rank in range(world_size)
        ]
        return [
            sorted(
                int(sample)
                for step in steps
                for batch in step.batches
                for sample in batch.samples[batch.weights.numpy() > 0]
            )
            for steps in zip(*ranks, strict=True)
        ]

    assert seen(1) == seen(2) == seen(3)
    assert sorted(sample for step in seen(1) for sample in step) == list(range(features.num_samples["train"]))


LAYOUTS = [
    pytest.param(GROWING, id="DDP, short sequences first"),
    pytest.param(ORDERED, id="DDP, easy samples first"),
    pytest.param(SHARDED, id="FSDP2"),
]


@pytest.mark.parametrize("layout", by_turns(LAYOUTS, 3))
def test_a_killed_training_ends_at_the_same_bits(project: Any, train: Any, layout: dict[str, Any]) -> None:
    settings: dict[str, Any] = {
        "loss": "include.lm.model:slow_loss",
        "checkpoint": {"every_steps": 5, "every_minutes": 10, "keep_latest": 3, "peers": 0},
        **layout,
    }  # fmt: skip

    undisturbed = result(train("whole", 2, **settings))
    struck = train("struck", 2, **settings)
    struck.wait_until(lambda: project.steps_saved("struck"))
    struck.kill()
    assert not (struck.folder / "result.json").exists(), "killed too late to prove anything"
    resumed = train("struck", 2, **settings)
    assert weights(project, result(resumed)) == weights(project, undisturbed), resumed.log
    assert resumed.result().metrics == undisturbed.metrics
    assert "going on after step" in resumed.log


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"objective": "binary", "metric": "auc"}, "objective 'binary' does not fit the features, "
                     "which are tokens: it needs a FeatureSet", id="objective"),
        pytest.param({"model_args": {"width": 8, "vocab_size": 9}}, "vocab_size is set by the feature set; remove it",
                     id="argument"),
        pytest.param({"model": "include.lm.model:build_scorer"}, r"maps tokens \[16, 16\] to \[16, 1\]; logits over",
                     id="no logits"),
        pytest.param({"sequence_lengths": [{"tokens": 5, "until": 0.5}]}, "5 tokens do not divide the context of the "
                     "TokenSet, 16", id="length"),
        pytest.param({"sequence_lengths": [{"tokens": 8, "until": 0.5}], "loss": "include.lm.model:token_by_token"},
                     r"must return one value per sample, \[32\], got \[32, 8\]", id="loss of short sequences"),
        pytest.param({"sample_order": {"by": "include.lm.model:difficulty_of_tokens"}},
                     r"include.lm.model:difficulty_of_tokens returned the shape \(\d+, 16\) for", id="shape of order"),
        pytest.param({"sample_order": {"by": "include.lm.model:unknown_difficulty"}},
                     r"measures the training sample \d+ as nan; it must be a finite number", id="order of nothing"),
        pytest.param({"sample_order": {"by": "include.lm.model:TOKENS"}},
                     "train.sample_order.by: include.lm.model:TOKENS is a MetricSpec, not a function", id="no order"),
        pytest.param({"model_args": {}}, "failed on context=16, vocab_size=257, model_args={}", id="missing argument"),
    ],
)  # fmt: skip
def test_a_mistake_is_said(
    project: Any, features: FeaturesRef, run_step: Any, config: Any, changes: dict[str, Any], message: str
) -> None:
    section = corpus.lm_config(config, processes=1, **changes)
    failure = run_step(project, project.step_input("train", section, features))
    assert isinstance(failure, Failure)
    assert re.search(message, failure.message), failure.message
    assert not failure.retryable


def test_rows_are_no_tokens(project: Any, toy_features: FeaturesRef, run_step: Any, config: Any) -> None:
    section = config(processes=1, objective="language_model", metric="perplexity")
    failure = run_step(project, project.step_input("train", section, toy_features))
    assert "does not fit the features, which are rows" in failure.message
