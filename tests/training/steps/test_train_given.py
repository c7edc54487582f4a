"""Weights that something else has trained: taken as they are, measured, judged and made again as any others."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import torch
import toy_model
from mlflow import MlflowClient

from mlops.contract.refs import INPUT, CheckpointRef, FeaturesRef, ModelVersionRef, ReportRef
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import Failure, StepInput
from mlops.features.fitted import held_out
from mlops.predictor.packing import open_checkpoint
from mlops.trainer.checkpoint.weights import deserialise


@pytest.fixture
def given(project: Any, run_step: Any) -> Any:
    """Hands the weights of a checkpoint in as a file from elsewhere."""

    def take(trained: CheckpointRef, key: str, data: bytes | None = None, /, said: Any = None, **changes: Any) -> Any:
        data = project.store.read(trained.artifacts["weights"]) if data is None else data
        path = project.home / "elsewhere.bin"
        path.write_bytes(data)
        start = {"path": str(path), "sha256": hashlib.sha256(data).hexdigest(), **(said or {})}
        before = StepInput.load(project.store.read(trained.artifacts[INPUT]).decode()).config
        section = {**before, "epochs": 0, "initialise": start, **changes}
        found = run_step(project, project.step_input("train", section, trained.parent, key))
        path.unlink()
        return found

    return take


LEARNERS: dict[str, dict[str, Any]] = {
    "torch": {"metrics": ["mrr"]},
    "lightgbm": toy_model.train_by(
        "lightgbm",
        {"learner_settings": {"rounds_per_epoch": 5, "num_leaves": 7}, "objective": "regression", "metric": "rmse"},
    ),
}


@pytest.mark.parametrize("learner", LEARNERS)
def test_it_is_the_same_model_with_the_same_metric(
    project: Any, toy_checkpoint: Any, given: Any, learner: str, tmp_path: Path
) -> None:
    """Broken: what is judged is not what somebody has trained, or its metric on the validation split is another."""
    trained = toy_checkpoint(key="trained", **{**LEARNERS[learner], "epochs": 2})
    taken = given(trained, "given")
    assert isinstance(taken, CheckpointRef), taken
    assert taken.artifacts["weights"].sha256 == trained.artifacts["weights"].sha256
    assert taken.artifacts["initial_weights"].sha256 == trained.artifacts["weights"].sha256, "kept to make it again"
    metric = next(name for name in trained.metrics if name != "train_loss")
    assert taken.metrics == {metric: trained.metrics[metric]}
    assert (taken.epoch, taken.world_size) == (0, 1)
    history = json.loads(project.store.read(taken.artifacts["history"]))
    assert [(each["epoch"], each["validation_metric"]) for each in history] == [(0, taken.metrics[metric])]
    rows = held_out(project.store, trained.ancestor(FeaturesRef))
    whole, same = (open_checkpoint(project.store, ref, tmp_path).score(rows).predictions for ref in (trained, taken))
    assert (whole.predicted == same.predicted).all()


def test_processes_and_a_program_of_the_recipe_are_left_aside(toy_checkpoint: Any, given: Any) -> None:
    trained = toy_checkpoint(key="trained")
    taken = given(trained, "given", processes=4, nodes="1:2", parallel={"dp_shard": 2}, early_stopping={"patience": 1})
    assert isinstance(taken, CheckpointRef), taken


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no weights", "holds no state dict"),
        (pickle.dumps(print), "holds no state dict"),
    ],
)
def test_a_file_that_is_no_model_is_named(toy_checkpoint: Any, given: Any, data: bytes, message: str) -> None:
    failure = given(toy_checkpoint(key="trained"), "given", data)
    assert isinstance(failure, Failure)
    assert (message in failure.message, failure.retryable) == (True, False), failure.message


def test_trees_of_something_else_are_named(toy_checkpoint: Any, given: Any) -> None:
    failure = given(toy_checkpoint(key="trained", **LEARNERS["lightgbm"]), "given", b"{}")
    assert isinstance(failure, Failure)
    assert (failure.type, failure.retryable) == ("BadDataError", False)
    assert "this is no model of gradient-boosted trees" in failure.message


@pytest.mark.parametrize("change", ["reversed", "others", "none"])
def test_trees_of_columns_in_another_order_are_named(
    project: Any, toy_checkpoint: Any, given: Any, change: str
) -> None:
    """Broken: each column is taken for another one, and the gate is all that stands before it."""
    trained = toy_checkpoint(key="trained", **LEARNERS["lightgbm"])
    document = json.loads(project.store.read(trained.artifacts["weights"]))
    names = document["feature_names"]
    document["feature_names"] = {"reversed": names[::-1], "others": [f"f{n}" for n, _ in enumerate(names)]}.get(
        change, []
    )
    failure = given(trained, "given", json.dumps(document).encode())
    assert isinstance(failure, Failure)
    assert (failure.type, failure.retryable) == ("BadDataError", False), failure.message
    assert f"and the features have {', '.join(names)}, in this order" in failure.message


def test_no_trees_are_no_model(project: Any, toy_checkpoint: Any, given: Any) -> None:
    trained = toy_checkpoint(key="trained", **LEARNERS["lightgbm"])
    document = json.loads(project.store.read(trained.artifacts["weights"])) | {"outputs": []}
    failure = given(trained, "given", json.dumps(document).encode())
    assert isinstance(failure, Failure)
    assert "it has no trees" in failure.message


def changed(data: bytes, name: str, change: Any) -> bytes:
    state = deserialise(data, torch.device("cpu"))
    buffer = io.BytesIO()
    torch.save({**state, name: change(state[name])}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "0.weight",
            lambda value: value.index_fill(0, torch.tensor([0]), float("inf")),
            "values in 0.weight that are not",
        ),
        ("0.weight", lambda value: value[:3], "has another shape of 0.weight"),
        ("0.weight", lambda value: value.to_sparse(), "0.weight"),
    ],
    ids=["infinite", "shape", "sparse"],
)
def test_tensors_that_are_no_weights_are_named(
    project: Any, toy_checkpoint: Any, given: Any, name: str, change: Any, message: str
) -> None:
    trained = toy_checkpoint(key="trained")
    failure = given(trained, "given", changed(project.store.read(trained.artifacts["weights"]), name, change))
    assert isinstance(failure, Failure)
    assert (message in failure.message, failure.retryable) == (True, False), failure.message
    assert "leave_out" not in failure.message, "nothing can start anew where nothing is learnt"


NORMALISED = """
import torch
from torch import nn


class Normalised(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.normalise = nn.BatchNorm1d(num_features)
        self.head = nn.Linear(num_features, 1)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
        self.register_buffer("near", torch.eye(4).to_sparse(), persistent=False)
        self.register_buffer("steps", torch.ones(4, dtype=torch.float8_e4m3fn))

    def forward(self, features):
        rows = self.normalise(features.flatten(0, -2)).view_as(features)
        return self.head(rows).squeeze(-1) + self.mask.softmax(-1)[0, 1]


def build_model(config):
    return Normalised(config.num_features)
"""


def test_buffers_that_are_not_finite_are_named_and_masks_are_taken(
    project: Any, toy_checkpoint: Any, given: Any
) -> None:
    """Broken: a model with a spoilt mean is judged by scores that mean nothing; or no model with a mask is taken."""
    (project.home / "include/toy/normalised.py").write_text(NORMALISED)
    trained = toy_checkpoint(key="trained", model="include.toy.normalised:build_model", model_args={})
    data = project.store.read(trained.artifacts["weights"])
    taken = given(trained, "given", data)
    assert isinstance(taken, CheckpointRef), taken
    assert taken.artifacts["weights"].sha256 == trained.artifacts["weights"].sha256
    for name, value in (("normalise.running_mean", float("inf")), ("mask", float("nan"))):
        spoilt = changed(data, name, lambda tensor, value=value: torch.full_like(tensor, value))
        failure = given(trained, f"spoilt_{name}", spoilt)
        assert isinstance(failure, Failure)
        assert f"the weights have values in {name} that are not finite" in failure.message
        assert (failure.type, failure.retryable) == ("BadDataError", False)


TIED = """
from torch import nn


class Tied(nn.Sequential):
    def forward(self, features):
        return super().forward(features).squeeze(-1)


def build_model(config):
    model = Tied(nn.Linear(config.num_features, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    model[2].weight = model[1].weight
    return model
"""


def test_one_parameter_has_one_value(project: Any, toy_checkpoint: Any, given: Any) -> None:
    """Broken: one of two tensors is dropped, and the model that is judged is not the one that was brought."""
    (project.home / "include/toy/tied.py").write_text(TIED)
    trained = toy_checkpoint(key="trained", model="include.toy.tied:build_model", model_args={})
    data = project.store.read(trained.artifacts["weights"])
    taken = given(trained, "given", data)
    assert isinstance(taken, CheckpointRef), taken
    failure = given(trained, "changed", changed(data, "2.weight", lambda value: value + 1))
    assert isinstance(failure, Failure)
    assert "has other values of 2.weight than of 1.weight, which in the model are one parameter" in failure.message


START = {"path": "weights.pt", "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "epochs: 0 takes the weights of initialise as they are; say which, or 1 epoch or more"),
        ({"initialise": {**START, "leave_out": ["head.*"]}}, "nothing learns what initialise.leave_out leaves"),
        (
            {"initialise": START, "learner": "sklearn", "model": None, "learner_settings": {"estimator": "a.b:C"}},
            "what sklearn stores can run code",
        ),
        (
            {"initialise": {**START, "rename": {"a": "b"}}, "learner": "lightgbm", "model": None},
            "initialise.rename is of learner: torch",
        ),
        (
            {"initialise": {**START, "claimed": {"ndcg@10": 0.9, "ndcg_at_10": 0.8}}},
            "initialise.claimed must be of different names: MLflow calls ndcg@10 and ndcg_at_10 alike",
        ),
        ({"epochs": 1, "initialise": START, "learner": "lightgbm", "model": None}, "initialise is of learner: torch"),
    ],
)
def test_settings_that_lead_nowhere_are_refused(changes: dict[str, Any], message: str) -> None:
    usual = {"model": "include.toy.model:build_model", "objective": "binary", "metric": "auc", "epochs": 0}
    with pytest.raises(SpecError) as caught:
        check_section(Train, usual | changes, "train")
    assert message in str(caught.value)


def test_a_version_of_the_registry_is_taken_too(project: Any, toy_checkpoint: Any, given: Any) -> None:
    trained = toy_checkpoint(key="trained")
    found = {"model": "toy@champion", "found": {**asdict(trained.artifacts["weights"]), "version": "3"}}
    taken = given(trained, "given", initialise=found)
    assert isinstance(taken, CheckpointRef), taken
    assert taken.artifacts["weights"].sha256 == trained.artifacts["weights"].sha256
    assert "initial_weights" not in taken.artifacts


def test_what_is_claimed_is_kept_beside_what_is_measured(
    project: Any, run_step: Any, toy_checkpoint: Any, given: Any
) -> None:
    """Broken: nobody sees later that who brought the model had promised more; or it was judged by that."""
    said = {"known_as": "3.1", "claimed": {"ndcg@10": 0.999, "f1": 0.89}}
    taken = given(toy_checkpoint(key="trained", epochs=2), "given", said=said)
    evaluate = {
        "registered_model": project.pipeline, "metric": "ndcg@10", "metrics": [],
        "rules": [{"metric": "ndcg@10", "at_least": 0.1}], "slices": [], "fairness": [], "price_per_gpu_hour": None,
    }  # fmt: skip
    report = run_step(project, project.step_input("evaluate", evaluate, taken, "given"))
    assert isinstance(report, ReportRef), report
    page = project.store.read(report.artifacts["report"]).decode()
    assert "Nothing here: its weights were trained elsewhere." in page
    assert "weights that were trained elsewhere, taken as they are" in page
    assert "told no times" not in page
    registered = {"registered_model": project.pipeline}
    version = run_step(project, project.step_input("register", registered, report, "given"))
    assert isinstance(version, ModelVersionRef), version
    client = MlflowClient(tracking_uri=project.tracking_uri)
    tags = client.get_model_version(version.name, version.version).tags
    claimed = {name: value for name, value in tags.items() if name.startswith(("mlops.claimed.", "mlops.known_as"))}
    assert claimed == {"mlops.claimed.ndcg_at_10": "0.999", "mlops.claimed.f1": "0.89", "mlops.known_as": "3.1"}
    assert tags["mlops.metric.candidate.ndcg_at_10"] != "0.999"


def test_trees_of_other_columns_are_named(toy_checkpoint: Any, given: Any) -> None:
    """Broken: a library's own exception, tried again by Airflow, in which nobody sees which file is wrong."""
    rows = np.random.default_rng(0).normal(size=(200, 7))
    fitted = lightgbm.train({"verbose": -1}, lightgbm.Dataset(rows, rows[:, 0]), 2)
    document = {"feature_names": [f"f{n}" for n in range(7)], "outputs": [fitted.model_to_string()]}
    trained = toy_checkpoint(key="trained", **LEARNERS["lightgbm"])
    failure = given(trained, "given", json.dumps(document).encode())
    assert isinstance(failure, Failure)
    assert (failure.type, failure.retryable) == ("BadDataError", False), failure.message
    assert "was fitted to the columns f0, f1, f2" in failure.message


FOREIGN: list[tuple[dict[str, Any], str | None]] = [
    ({"objective": "binary"}, "binary sigmoid:1"),
    ({"objective": "poisson"}, "poisson"),
    ({"objective": "regression", "reg_sqrt": True}, "regression sqrt"),
    ({"objective": "regression", "alpha": 0.5}, None),
    ({"objective": "mae"}, None),
    ({"objective": lambda predicted, data: (predicted - data.get_label(), np.ones(len(predicted)))}, None),
]


@pytest.mark.parametrize(
    ("parameters", "named"), FOREIGN, ids=["binary", "poisson", "sqrt", "ours", "read alike", "own function"]
)
def test_trees_of_another_objective_are_named(
    project: Any, toy_checkpoint: Any, given: Any, parameters: dict[str, Any], named: str | None
) -> None:
    """Broken: logits, logarithms or square roots are judged, and served, as if they were what is predicted."""
    trained = toy_checkpoint(key="trained", **LEARNERS["lightgbm"])
    names = json.loads(project.store.read(trained.artifacts["weights"]))["feature_names"]
    rows = np.random.default_rng(0).normal(size=(200, len(names)))
    data = lightgbm.Dataset(rows, (rows[:, 0] > 0).astype(float))
    fitted = lightgbm.train({"verbose": -1, **parameters}, data, 2)
    document = {"feature_names": names, "outputs": [fitted.model_to_string()]}
    found = given(trained, "given", json.dumps(document).encode())
    if named is None:
        assert isinstance(found, CheckpointRef), found
        return
    assert isinstance(found, Failure)
    assert (found.type, found.retryable) == ("BadDataError", False), found.message
    assert f"LightGBM's objective {named!r}, and objective 'regression' would read them as those" in found.message
    assert "of 'regression'" in found.message
