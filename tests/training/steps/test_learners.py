"""Learners beside torch, from the training to the served answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlops.contract.refs import CheckpointRef, FeaturesRef, ReportRef
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops.features.fitted import held_out
from mlops.predictor.packing import open_checkpoint
from mlops.serving.model import ServedModel
from mlops.serving.package import package, served_example
from mlops.steps import train_learner

QUANTILES = {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]}
SMALL = {"rounds_per_epoch": 5, "num_leaves": 7}
CASES: dict[str, dict[str, Any]] = {
    "binary": {"objective": "binary", "metric": "auc"},
    "ranking": {"objective": "ranking", "metric": "ndcg@10"},
    "mse": {"objective": "regression", "metric": "rmse"},
    "poisson": {"objective": "regression", "metric": "poisson_deviance", "objective_settings": {"loss": "poisson"}},
    "quantiles": {"objective": "regression", "metric": "pinball", "objective_settings": QUANTILES},
}


@pytest.fixture
def boosted(project: Any, toy_checkpoint: Any) -> Any:
    """Trains the toy recipe by gradient-boosted trees."""

    def train(key: str = "train", case: str = "mse", **changes: Any) -> CheckpointRef:
        settings = {"learner": "lightgbm", "learner_settings": SMALL, "model": None, "model_args": {}, "epochs": 4}
        settings |= {"learning_rate": 1e-3, "global_batch": 32, "processes": 1, "schedule": {}}
        # What is torch's own is as where nobody sets it.
        plain = Train.model_validate({**CASES[case], "learner": "lightgbm"}).model_dump(mode="json")
        found = toy_checkpoint(binary=case == "binary", key=key, **{**plain, **settings, **CASES[case], **changes})
        assert isinstance(found, CheckpointRef)
        return found

    return train


def scored(project: Any, checkpoint: CheckpointRef, scratch: Path) -> Any:
    rows = held_out(project.store, checkpoint.ancestor(FeaturesRef))
    return open_checkpoint(project.store, checkpoint, scratch).score(rows).predictions


@pytest.mark.parametrize("case", CASES)
def test_trees_learn_every_objective_for_rows(project: Any, boosted: Any, tmp_path: Path, case: str) -> None:
    checkpoint = boosted(case=case)
    history = json.loads(project.store.read(checkpoint.artifacts["history"]))
    assert len(history) == 4
    name = CASES[case]["metric"]
    better = max if name in ("auc", "ndcg@10") else min
    assert checkpoint.metrics[name] == better(epoch["validation_metric"] for epoch in history)
    predictions = scored(project, checkpoint, tmp_path)
    assert np.isfinite(predictions.predicted).all()
    assert predictions.predicted.ndim == (2 if case == "quantiles" else 1)


def test_it_is_judged_registered_and_served(project: Any, boosted: Any, run_step: Any, tmp_path: Path) -> None:
    checkpoint = boosted()
    section = {
        "registered_model": project.pipeline, "metric": "rmse", "metrics": ["r2"],
        "rules": [{"metric": "r2", "at_least": 0.2}], "slices": [], "fairness": [], "price_per_gpu_hour": None,
    }  # fmt: skip
    report = run_step(project, project.step_input("evaluate", section, checkpoint))
    assert isinstance(report, ReportRef), report
    assert report.passed, report.reason
    scratch = tmp_path / "served"
    scratch.mkdir()
    folder = package(project.store, checkpoint, served_example(project.store, checkpoint, scratch), scratch)
    [data] = folder.rglob("serving.json")
    model = ServedModel(data.parent)
    rows = model.predictor.example(held_out(project.store, checkpoint.ancestor(FeaturesRef)))
    assert list(model.predict(rows.to_pandas())) == ["prediction"]
    required = {line.partition("==")[0] for line in (folder / "requirements.txt").read_text().split()}
    assert {"lightgbm", "polars", "mlflow"} <= required


def test_a_training_that_was_killed_ends_in_the_same_bits(
    project: Any, boosted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each epoch, before and after the save; with bagging, whose draws would tell."""
    settings = {"learner_settings": {**SMALL, "bagging_fraction": 0.6, "feature_fraction": 0.6}}
    whole = boosted("whole", **settings)
    save = train_learner.Saves.save

    for number, after in [(1, False), (2, True), (3, False), (4, True)]:

        def killed(self: Any, model: bytes, state: Any, number: int = number, after: bool = after) -> None:
            if len(state.history) == number and not after:
                raise KeyboardInterrupt
            save(self, model, state)
            if len(state.history) == number:
                raise KeyboardInterrupt

        key = f"killed{number}"
        with monkeypatch.context() as patch:
            patch.setattr(train_learner.Saves, "save", killed)
            with pytest.raises(KeyboardInterrupt):
                boosted(key, **settings)
        again = boosted(key, **settings)
        assert again.artifacts["weights"].sha256 == whole.artifacts["weights"].sha256
        assert again.metrics == whole.metrics


@pytest.mark.parametrize("damage", ["model", "model gone", "document", "document of nothing"])
def test_a_damaged_save_is_passed_over(
    project: Any, boosted: Any, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Broken: a training would end, or go on from a model that was never learnt."""
    whole = boosted("whole")
    save = train_learner.Saves.save

    def damaged(self: Any, model: bytes, state: Any) -> None:
        save(self, model, state)
        if len(state.history) == 3:
            break_save(project.store, self.place, 3, damage)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_learner.Saves, "save", damaged)
        with pytest.raises(KeyboardInterrupt):
            boosted("again")
    assert boosted("again").artifacts["weights"].sha256 == whole.artifacts["weights"].sha256


def break_save(store: Any, place: str, epoch: int, damage: str) -> None:
    keys = [key for key in store.list(f"{place}/checkpoints/epochs") if f"/{epoch:06d}." in key]
    [model], [document] = (
        [key for key in keys if key.endswith(".model")],
        [key for key in keys if key.endswith(".json")],
    )
    if damage == "model":
        store.put(model, store.get(model)[:-1] + b"?")
    elif damage == "model gone":
        store.delete([model])
    else:
        store.put(document, b"{" if damage == "document" else b"{}")


def test_the_best_of_what_is_whole_is_published(project: Any, boosted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a rotten file would be registered as the best model."""
    whole = boosted("whole")
    save = train_learner.Saves.save

    def rotting(self: Any, model: bytes, state: Any) -> None:
        save(self, model, state)
        if len(state.history) == 4:
            break_save(project.store, self.place, whole.epoch, "model")

    monkeypatch.setattr(train_learner.Saves, "save", rotting)
    second = boosted("rotten")
    history = json.loads(project.store.read(second.artifacts["history"]))
    ranking = sorted(history, key=lambda epoch: epoch["validation_metric"])
    assert [whole.epoch, second.epoch] == [epoch["epoch"] for epoch in ranking[:2]]
    assert json.loads(project.store.read(second.artifacts["lost_best"]))["epoch"] == whole.epoch
    assert second.artifacts["weights"].sha256 != whole.artifacts["weights"].sha256


def test_it_stops_where_it_no_longer_gets_better(project: Any, boosted: Any) -> None:
    checkpoint = boosted(epochs=200, learner_settings={**SMALL, "learning_rate": 0.9}, early_stopping={"patience": 2})
    assert len(json.loads(project.store.read(checkpoint.artifacts["history"]))) < 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner": "lightgb"}, "learner must be one of torch, lightgbm (did you mean 'lightgbm'?)"),
        (
            {"learner_settings": {"num_leafs": 3}},
            "unknown key 'learner_settings.num_leafs'; did you mean 'num_leaves'?",
        ),
        ({"learner_settings": {"num_leaves": 1}}, "learner_settings.num_leaves must be >= 2, got 1"),
        ({"processes": 2}, "processes is of learner: torch; remove it, or see learner_settings of lightgbm"),
        ({"model": "include.a.model:build"}, "model is of learner: torch"),
        ({"learner": "torch", "learner_settings": {}}, "learner: torch needs model"),
        ({"objective": "language_model", "metric": "perplexity"}, "the objective language_model predicts token_loss"),
    ],
)
def test_a_mistake_is_said_where_it_stands(changes: dict[str, Any], message: str) -> None:
    section = {"learner": "lightgbm", "objective": "regression", "metric": "mae", "learner_settings": SMALL, **changes}
    with pytest.raises(SpecError) as raised:
        check_section(Train, section, "train")
    assert message in str(raised.value)
