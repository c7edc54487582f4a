"""A training that starts from weights that there are, and learns some of them slower, or not at all."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

import pytest
import torch

from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.contract.step import Failure
from mlops.trainer.checkpoint.weights import deserialise, serialise

NAMES = ["0.bias", "0.weight", "3.bias", "3.weight"]
"""Of the toy model's parameters: two layers."""
STILL = {"learning_rate": 1e-12, "epochs": 1, "processes": 1}


@pytest.fixture
def trained(project: Any, toy_features: FeaturesRef, run_step: Any, config: Any) -> Any:
    def train(key: str, **changes: Any) -> Any:
        return run_step(project, project.step_input("train", config(**changes), toy_features, key))

    return train


@pytest.fixture
def first(trained: Any) -> CheckpointRef:
    found = trained("first", processes=1, epochs=2)
    assert isinstance(found, CheckpointRef), found
    return found


def found(ref: CheckpointRef, **changes: Any) -> dict[str, Any]:
    """The setting of a model in the registry, as the operator hands it on."""
    stored = {**asdict(ref.artifacts["weights"]), "version": "3"}
    return {"initialise": {"model": "toy@champion", "found": stored, **changes}}


def weights(project: Any, ref: CheckpointRef) -> dict[str, torch.Tensor]:
    return deserialise(project.store.read(ref.artifacts["weights"]), torch.device("cpu"))


def changed(project: Any, before: CheckpointRef, after: CheckpointRef, within: float = 1e-9) -> list[str]:
    one, other = weights(project, before), weights(project, after)
    assert sorted(one) == NAMES
    return [name for name in NAMES if not torch.allclose(one[name], other[name], rtol=0, atol=within)]


def test_it_starts_where_the_other_model_is(project: Any, trained: Any, first: CheckpointRef) -> None:
    assert changed(project, first, trained("alone", **STILL)) == NAMES, "by chance"
    assert changed(project, first, trained("from", **STILL, **found(first))) == []


def test_a_file_is_read_where_it_is_the_pinned_one(project: Any, trained: Any, first: CheckpointRef) -> None:
    data = project.store.read(first.artifacts["weights"])
    (project.home / "models").mkdir()
    (project.home / "models/first.pt").write_bytes(data)
    pinned = {"path": "models/first.pt", "sha256": hashlib.sha256(data).hexdigest()}
    assert changed(project, first, trained("from", **STILL, initialise=pinned)) == []
    (project.home / "models/first.pt").write_bytes(data + b"more")
    failure = trained("other", **STILL, initialise=pinned)
    assert isinstance(failure, Failure)
    assert "models/first.pt is not the file that was pinned: its SHA-256 is" in failure.message


def test_what_is_left_out_starts_anew(project: Any, trained: Any, first: CheckpointRef) -> None:
    after = trained("from", **STILL, **found(first, leave_out=["3.*"]))
    assert changed(project, first, after) == ["3.bias", "3.weight"]
    alone = weights(project, trained("alone", **STILL))
    assert torch.allclose(alone["3.weight"], weights(project, after)["3.weight"], atol=1e-9), "as build_model makes it"


@pytest.mark.parametrize(
    ("layout", "processes"),
    [({}, 1), ({}, 2), ({"parallel": {"dp_shard": 2}}, 2), ({"elastic": "exact"}, 2)],
    ids=["alone", "replicas", "sharded", "exact"],
)
def test_frozen_parameters_stay_and_others_learn_at_their_rates(
    project: Any, toy_features: FeaturesRef, config: Any, first: CheckpointRef, layout: dict[str, Any], processes: int
) -> None:
    section = config(
        **{"epochs": 1, **layout},
        processes=processes,
        freeze=["0.weight"],
        learning_rates=[{"parameters": "0.*", "factor": 1e-9}, {"parameters": "*", "factor": 0.5}],
        **found(first),
    )
    started = project.start(project.step_input("train", section, toy_features, "tuned"), processes=processes)
    ref = started.result()
    assert isinstance(ref, CheckpointRef), started.log
    assert torch.equal(weights(project, first)["0.weight"], weights(project, ref)["0.weight"])
    assert changed(project, first, ref, within=1e-6) == ["3.bias", "3.weight"]


def test_killed_it_goes_on_to_the_same_bits(
    project: Any, toy_features: FeaturesRef, config: Any, first: CheckpointRef
) -> None:
    """With an optimizer of several groups, and parameters that have no state in it."""
    section = config(
        loss="include.toy.model:slow_loss", processes=2, freeze=["0.bias"],
        learning_rates=[{"parameters": "0.*", "factor": 0.1}], **found(first),
    )  # fmt: skip
    whole = project.start(project.step_input("train", section, toy_features, "whole"), processes=2, name="whole")
    assert isinstance(whole.result(), CheckpointRef), whole.log
    document = project.step_input("train", section, toy_features, "killed")
    struck = project.start(document, processes=2, name="killed")
    struck.wait_until(lambda: len(project.steps_saved("killed")) >= 1)
    struck.kill()
    again = project.start(document, processes=2, name="killed")
    resumed = again.result()
    assert isinstance(resumed, CheckpointRef), again.log
    assert "going on after step" in again.log
    assert resumed.artifacts["weights"].sha256 == whole.result().artifacts["weights"].sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_args": {"hidden": 9}}, r"has another shape of 0.weight ([8, 4], the model's is [9, 4])"),
        (
            {"freeze": ["0.wieght"]},
            "train.freeze: '0.wieght' means no parameter of the model; did you mean '0.weight'?",
        ),
        ({"freeze": ["*"]}, "train.freeze leaves no parameter to learn"),
        (
            {"learning_rates": [{"parameters": "head.*", "factor": 0.1}]},
            "train.learning_rates: 'head.*' means no parameter",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_named(
    trained: Any, first: CheckpointRef, changes: dict[str, Any], message: str
) -> None:
    failure = trained("wrong", **STILL, **found(first), **changes)
    assert isinstance(failure, Failure)
    assert message in failure.message


@pytest.mark.parametrize("stage", ["0.*", "3.*"], ids=["first", "last"])
def test_a_stage_that_learns_nothing_stays_as_it_is(
    project: Any, toy_features: FeaturesRef, config: Any, first: CheckpointRef, stage: str
) -> None:
    """Broken: its process has no optimizer state, and the other one waited for it until the timeout."""
    section = config(epochs=1, processes=2, parallel={"pp": 2}, freeze=[stage], **found(first))
    started = project.start(project.step_input("train", section, toy_features, "stage"), processes=2)
    ref = started.result()
    assert isinstance(ref, CheckpointRef), started.log
    assert changed(project, first, ref) == [name for name in NAMES if name[0] != stage[0]]


TIED = """
from torch import nn


class Tied(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.inner, self.outer = nn.Linear(size, size), nn.Linear(size, size)
        self.outer.weight = self.inner.weight
        self.last = nn.Linear(size, 1)

    def forward(self, rows):
        return self.last(self.outer(self.inner(rows).tanh())).squeeze(-1)


def build_model(config):
    return Tied(config.num_features)
"""


def test_a_parameter_of_two_names_is_meant_by_either(project: Any, trained: Any) -> None:
    """Broken: it is listed under its first name alone, and what names it by the other one was done to nothing."""
    (project.home / "include/toy/model.py").write_text(TIED)
    own = {"processes": 1, "epochs": 1, "model_args": {}}
    before = weights(project, trained("before", **own, freeze=["*r.*"]))
    one = weights(project, trained("one", **own, freeze=["outer.weight"]))
    slow = weights(project, trained("slow", **own, learning_rates=[{"parameters": "outer.weight", "factor": 1e-9}]))
    assert torch.equal(before["inner.weight"], one["inner.weight"])
    assert torch.allclose(before["inner.weight"], slow["inner.weight"], rtol=0, atol=1e-6)
    assert not torch.equal(before["inner.bias"], one["inner.bias"])
    data = serialise(before)
    (project.home / "tied.pt").write_bytes(data)
    pinned = {"path": "tied.pt", "sha256": hashlib.sha256(data).hexdigest()}
    failure = trained("half", **own, initialise={**pinned, "leave_out": ["inner.*"]})
    assert isinstance(failure, Failure)
    assert "leave_out: inner.weight, outer.weight are one parameter; name all of them, or none" in failure.message


def test_weights_of_another_model_are_told_apart(project: Any, trained: Any) -> None:
    shapes = {"0.weight": (8, 4), "0.bias": (8,), "3.weight": (1, 8), "3.bias": (1,)}
    whole = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for name, data, message in [
        ("other.pt", serialise({"0.weight": torch.zeros(8, 4), "head": torch.zeros(3)}), "has no 0.bias, 3.weight"),
        ("none.pt", b"no file of torch", "holds no state dict"),
        ("list.pt", serialise([torch.zeros(2)]), "holds no state dict, a mapping of names to tensors"),
        ("whole.pt", serialise({**whole, "0.bias": torch.zeros(8, dtype=torch.int8)}), "has whole numbers where"),
        ("plain.pt", serialise({**whole, "0.bias": 3}), "has another shape of 0.bias (None, the model's is [8])"),
    ]:
        (project.home / name).write_bytes(data)
        pinned = {"path": name, "sha256": hashlib.sha256(data).hexdigest()}
        failure = trained(name.replace(".", "_"), **STILL, initialise=pinned)
        assert isinstance(failure, Failure)
        assert message in failure.message
    assert "has, and the model has not, head" in trained(
        "again", **STILL,
        initialise={"path": "other.pt", "sha256": hashlib.sha256((project.home / "other.pt").read_bytes()).hexdigest()},
    ).message  # fmt: skip
