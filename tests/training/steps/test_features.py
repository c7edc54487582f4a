from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mlops_provider.refs import DatasetRef, FeaturesRef, ValidationRef
from mlops_provider.step import BadConfigError, BadDataError, RunIdentity, StepInput
from training.data.shards import open_split
from training.data.snapshots import write_snapshot
from training.features.fitted import held_out, load_fitted
from training.process import Deployment
from training.steps import StepContext, features
from training.store import Store

RECIPE = """
import narwhals as nw
from training.features.feature_set import FeatureSet
from training.features.transforms import Standardise, Vocabulary

FEATURES = FeatureSet(
    label="grade", group_by=("query",), min_group_size=2, order_by=("at",),
    derived={"double": nw.col("value") * FACTOR},
    transforms=[Standardise("double"), Vocabulary("kind")],
)
UNFAIR = FeatureSet(
    label="grade", order_by=("at",), transforms=[Standardise("gap")],
    derived={"gap": nw.col("value") - nw.col("value").mean()},
)
EMPTY = FeatureSet(label="grade", where=nw.col("value") < 50, order_by=("at",), transforms=[Standardise("value")])
TYPO = FeatureSet(label="grade", order_by=("at",), transforms=[Standardise("valeu")])
NO_SET = {"label": "grade"}
"""

Run = Callable[..., FeaturesRef]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    recipe = tmp_path / "project/include/features_toy"
    recipe.mkdir(parents=True)
    (recipe / "features.py").write_text(RECIPE.replace("FACTOR", "2"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "project"
    for name in [name for name in sys.modules if name.startswith(("include.features_toy", "_bundle_"))]:
        del sys.modules[name]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path / 'store'}")


@pytest.fixture
def table() -> pl.DataFrame:
    """Ten days of thirteen rows: six queries of two, and a row alone."""
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return pl.DataFrame(
        [
            {
                "at": start + timedelta(days=d, minutes=i),
                "query": f"{d}-{i // 2}",
                "value": float(d * 13 + i),
                "kind": "abc"[i % 3],
                "grade": i % 5,
            }
            for d in range(10)
            for i in range(13)
        ]
    )


@pytest.fixture
def run(home: Path, store: Store, table: pl.DataFrame, tmp_path: Path) -> Run:
    manifest = write_snapshot(
        store, table, name="toy", interval_start="2024-01-01T00:00:00+00:00", interval_end="2024-01-11T00:00:00+00:00",
        timezone="UTC", event_time="at", sources={},
    )  # fmt: skip
    dataset = DatasetRef(
        place="d", artifacts={"manifest": store.put_artifact("d", "manifest.json", manifest.to_json())}, name="toy",
        version=manifest.version, schema_hash=manifest.schema_hash, num_rows=manifest.num_rows,
        num_bytes=manifest.num_bytes, interval_start=manifest.interval_start, interval_end=manifest.interval_end,
    )  # fmt: skip
    validation = ValidationRef(place="v", schema_sha256="", num_checks=1, parent=dataset)

    def run_features(name: str = "FEATURES", validation_days: int = 2, test_days: int = 3) -> FeaturesRef:
        identity = RunIdentity(
            pipeline="toy", run_key="k", interval_start="", interval_end=manifest.interval_end, timezone="UTC",
            dag_id="toy", task_id="features", run_id="r", try_number=1,
        )  # fmt: skip
        settings = {
            "feature_set": f"include.features_toy.features:{name}",
            "split": {"validation_days": validation_days, "test_days": test_days},
        }
        context = StepContext(
            input=StepInput(step="features", run=identity, config=settings, ref=validation),
            deployment=Deployment(home=home, store=store.uri, tracking_uri="", result_path=tmp_path / "r", rank=0),
            store=store,
            scratch=tmp_path,
        )
        return features.run(context)

    return run_features


def test_splits_are_materialised(run: Run, store: Store, tmp_path: Path) -> None:
    """What training reads: rows of the right days, queries whole, single rows left out."""
    ref = run()

    assert ref.num_samples == {"train": 30, "validation": 12, "test": 18}
    assert ref.num_features == 5
    train = open_split(store, ref, "train", tmp_path)
    assert train.features.shape == (60, 5)
    assert np.diff(train.offsets).tolist() == [2] * 30
    # Fitted on the training split alone: there, and only there, the mean is 0.
    assert abs(train.features[:, 0].mean()) < 1e-6
    assert open_split(store, ref, "test", tmp_path).features[:, 0].min() > train.features[:, 0].max()


def test_again_gives_the_same_ref(run: Run) -> None:
    """Otherwise a retry would train on other bytes."""
    assert run() == run()


def test_manifest_says_what_the_shards_hold(run: Run, store: Store) -> None:
    manifest = json.loads(store.read(run().artifacts["manifest"]))

    assert manifest["feature_names"] == ["double", "kind=a", "kind=b", "kind=c", "kind=<other>"]
    assert manifest["grouped"] is True
    assert manifest["splits"]["test"]["days"] == ["2024-01-08", "2024-01-09", "2024-01-10"]


def test_stored_features_outlive_the_checkout(run: Run, store: Store, home: Path, tmp_path: Path) -> None:
    """Otherwise the champion would be evaluated with the candidate's features."""
    ref = run()
    (home / "include/features_toy/features.py").write_text(RECIPE.replace("FACTOR", "-3"))

    fitted = load_fitted(store, ref, tmp_path / "scratch")
    frame = held_out(store, ref)

    table = fitted.apply(frame)
    stored = open_split(store, ref, "test", tmp_path)
    np.testing.assert_array_equal(table.features.view(np.uint32), stored.features.view(np.uint32))
    np.testing.assert_array_equal(table.offsets, stored.offsets)
    assert fitted.rows(frame)["grade"].to_list() == stored.labels.tolist()


def test_changed_code_is_another_version(run: Run, home: Path) -> None:
    """Otherwise two meanings of a feature could not be told apart."""
    before = run().version
    path = home / "include/features_toy/features.py"
    path.write_text(path.read_text() + "# changed\n")

    assert run().version != before


def test_an_unknown_split_is_refused(run: Run, store: Store) -> None:
    with pytest.raises(BadDataError, match="no split 'tset', only test, train, validation"):
        held_out(store, run(), "tset")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        pytest.param({"name": "NOTHING"}, BadConfigError, "has no 'NOTHING'", id="no such name"),
        pytest.param({"name": "NO_SET"}, BadConfigError, "is a dict, not a FeatureSet", id="not a set"),
        pytest.param({"name": "TYPO"}, BadConfigError, "no column 'valeu'; there are at, query, value", id="column"),
        pytest.param({"name": "UNFAIR"}, BadConfigError, "served values of 'gap' differ", id="serving parity"),
        pytest.param({"name": "EMPTY"}, BadDataError, "no samples in the split 'validation'", id="empty split"),
        pytest.param({"test_days": 8}, BadDataError, "10 days with rows, too few", id="window"),
    ],
)
def test_bad_input_is_refused(run: Run, settings: dict[str, object], error: type[Exception], message: str) -> None:
    """The user must learn from the message what to change; a retry cannot help."""
    with pytest.raises(error, match=message):
        run(**settings)
