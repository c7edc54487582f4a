"""``mlops lint --with-data``, in the training runtime."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlops.commands.__main__ import main
from mlops.contract.refs import DatasetRef, FeaturesRef, ValidationRef, canonical_json
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.shard_writing import write_split
from mlops.store import Store

MODEL = """
from torch import nn


class Counting(nn.Linear):
    calls = 0

    def forward(self, rows):
        self.calls += self.training
        return super().forward(rows).squeeze(-1) / (1 + self.calls)


def build_sound(config):
    return nn.Sequential(nn.Linear(config.num_features, 1), nn.Flatten(-2))


def build_counting(config):
    return Counting(config.num_features, 1)
"""


@pytest.fixture
def lint(tmp_path: Path, config: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    recipe = tmp_path / "include" / "counted"
    recipe.mkdir(parents=True)
    (recipe / "model.py").write_text(MODEL)
    monkeypatch.setenv("MLOPS_HOME", str(tmp_path))
    monkeypatch.setenv("MLOPS_STORE", f"file://{tmp_path}/store")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(factory: str) -> int:
        section = config(model=f"include.counted.model:{factory}", model_args={}, objective="binary", metric="auc")
        return main(["lint", "counted", json.dumps(section)])

    yield run
    for name in [name for name in sys.modules if name.split(".")[0] == "include"]:
        del sys.modules[name]


def commit_features(store: Store, place: str) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 4)).astype(np.float32)
    table = FeatureTable(
        features=features, labels=(features[:, 0] > 0).astype(np.float32), offsets=np.arange(61, dtype=np.int64)
    )
    split = write_split(store, place, "train", table)
    manifest = canonical_json({"grouped": False, "feature_names": ["a", "b", "c", "d"], "splits": {"train": split}})
    dataset = DatasetRef(
        place="ingest/x", name="x", version="1" * 64, schema_hash="2" * 64, num_rows=1, num_bytes=1,
        interval_start="2013-01-09T05:00:00+00:00", interval_end="2013-02-08T05:00:00+00:00",
    )  # fmt: skip
    validation = ValidationRef(place="validate/x", schema_sha256="3" * 64, num_checks=1, parent=dataset)
    store.commit(
        FeaturesRef(
            place=place,
            artifacts={"manifest": store.put_artifact(place, "manifest.json", manifest)},
            version="4" * 64,
            num_features=4,
            num_samples={"train": 60},
            parent=validation,
        )
    )


def test_a_recipe_is_tried_on_its_newest_features(
    lint: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Broken: what a checkpoint cannot hold would be found when a night's training was preempted, or never."""
    assert lint("build_sound") == 0
    assert "no features are committed" in capsys.readouterr().out
    commit_features(Store(f"file://{tmp_path}/store"), "pipelines/counted/features/key")
    assert lint("build_sound") == 0
    assert "ok with pipelines/counted/features/key" in capsys.readouterr().out
    assert lint("build_counting") == 2
    assert "calls (Counting)" in capsys.readouterr().err
