"""What is said of two results that are not the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlops.contract.environments import compare_environments, that_count, that_must_agree, why_not_here
from mlops.contract.refs import FeaturesRef, canonical_json
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.shard_writing import write_split
from mlops.reproduction.features import compare_features
from mlops.reproduction.weights import first_difference
from mlops.store import Store

THEN: dict[str, Any] = {
    "library": "1" * 64,
    "locks": {"training/requirements.txt": "2" * 64, "requirements.txt": "3" * 64},
    "packages": {"numpy": "2.3.0", "rich": "14.0"},
    "python": "3.11.7",
    "torch": "2.13.0",
    "hardware": {"cpu": "AMD EPYC", "gpu": "NVIDIA H100"},
    "world_size": 4,
    "num_threads": 1,
}


@pytest.mark.parametrize(
    ("now", "said", "must_agree"),
    [
        ({}, [], False),
        (
            {"packages": {"numpy": "2.4.0", "pytest": "9.0"}},
            ["library: numpy 2.3.0 then, 2.4.0 now"],
            True,
        ),
        (
            {"locks": {**THEN["locks"], "requirements.txt": "4" * 64}},
            ["lock file: requirements.txt 333333333333 then, 444444444444 now"],
            False,
        ),
        ({"hardware": {"cpu": "AMD EPYC", "gpu": "none"}}, ["hardware class: gpu NVIDIA H100 then, none now"], False),
        (
            {"world_size": 2, "library": "5" * 64},
            ["library code: library 111111111111 then, 555555555555 now", "world size: world_size 4 then, 2 now"],
            False,
        ),
    ],
    ids=["nothing", "packages", "a lock of another runtime", "hardware", "world size and code"],
)
def test_the_likeliest_reason_comes_first(now: dict[str, Any], said: list[str], must_agree: bool) -> None:
    """Broken: the reason for other bits would be looked for in the wrong place."""
    found = that_count(compare_environments(THEN, {**THEN, **now}))
    assert [str(difference) for difference in found] == said
    assert bool(that_must_agree(found)) == must_agree


def test_processes_that_would_share_a_gpu_are_refused() -> None:
    """Broken: a training of eight GPUs would end, on one, in an error of the driver's after all features were made."""
    assert why_not_here(2, 0) is None, "processors are shared"
    assert why_not_here(2, 2) is None
    assert (why_not_here(8, 1) or "").startswith("to train in 8 processes takes as many GPUs, and this machine has 1")


def test_a_tensor_is_compared_to_the_bit() -> None:
    """Broken: a difference that rounding hides would pass for none; or NaN, which equals nothing, for one."""
    state = {"layer": {"weight": torch.tensor([1.0, float("nan"), 0.0]), "bias": torch.zeros(2)}, "step": 3}
    assert first_difference(state, {**state, "layer": {**state["layer"]}}) is None
    minus = {**state, "layer": {**state["layer"], "weight": torch.tensor([1.0, float("nan"), -0.0])}}
    assert (first_difference(state, minus) or "").startswith("layer.weight differs")
    moved = {**state, "layer": {**state["layer"], "bias": torch.tensor([0.0, 0.25])}}
    assert first_difference(state, moved) == "layer.bias differs, by at most 0.25; so do 0 of the other 1 tensors"
    assert first_difference(state, {**state, "step": 4}) == "step differs, 3 then, 4 now"
    wider = {**state, "layer": {**state["layer"], "bias": torch.zeros(3)}}
    assert "of shape [2] then and [3] now" in (first_difference(state, wider) or "")


@pytest.fixture
def features(tmp_path: Path) -> Any:
    """Makes features of three rows in each split, with one value of a fitted state."""
    store = Store(f"file://{tmp_path}/store")

    def make(place: str, value: float, fitted: float, like: FeaturesRef) -> FeaturesRef:
        splits = {}
        for name in ("train", "test"):
            rows = np.arange(6, dtype=np.float32).reshape(3, 2)
            rows[2, 1] = value if name == "test" else 0
            table = FeatureTable(features=rows, labels=np.zeros(3, np.float32), offsets=np.arange(4, dtype=np.int64))
            splits[name] = write_split(store, place, name, table)
        manifest = {"grouped": False, "feature_names": ["price", "rating"], "splits": splits}
        state = {"transforms": [{"column": "price", "mean": fitted}]}
        artifacts = {
            "manifest": store.put_artifact(place, "manifest.json", canonical_json(manifest)),
            "state": store.put_artifact(place, "state.json", json.dumps(state).encode()),
        }
        return dataclasses.replace(like, place=place, artifacts=artifacts)

    return store, make


def test_features_that_differ_are_named_with_their_first_row(
    features: Any, toy_features: FeaturesRef, tmp_path: Path
) -> None:
    """Broken: a feature that is computed in another way would be one of hundreds, in one of millions of rows."""
    store, make = features
    then = make("then", 5.0, 0.5, toy_features)
    assert compare_features(store, then, make("same", 5.0, 0.5, toy_features), tmp_path) == []
    assert compare_features(store, then, make("now", 5.25, 0.75, toy_features), tmp_path) == [
        "the fitted state differs, first in state.transforms[0].mean: 0.5 then, 0.75 now",
        "the shards of the split test differ: rating, first in row 2, by at most 0.25",
    ]
