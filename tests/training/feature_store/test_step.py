"""The features step with ``features.online``, in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import pytest
from committed_refs import commit_lineage

from mlops.contract.refs import DatasetRef, FeaturesRef, ValidationRef
from mlops.contract.sections.ingest import TimeSplit
from mlops.contract.step import Failure, RunIdentity, StepInput, read_result
from mlops.data.snapshots.snapshot import write_snapshot
from mlops.data.sources.window import Window
from mlops.feature_store.repository import open_view, read_rows
from mlops.features.fitted import load_fitted
from mlops.store import Store

RECIPE = """
from mlops import FeatureSet, Standardise, Vocabulary

FEATURES = FeatureSet(
    label="bought", order_by=("at", "user"), entity=("user",), transforms=[Standardise("price"), Vocabulary("kind")]
)
NO_ENTITY = FeatureSet(label="bought", order_by=("at", "user"), transforms=[Standardise("price")])
"""
END = datetime(2024, 1, 11, tzinfo=UTC)


@pytest.fixture
def rows() -> pl.DataFrame:
    """Ten days of five users' visits; user 4 came last on the first day."""
    rng = np.random.default_rng(0)
    visits = [
        {"at": END - timedelta(days=day, minutes=user + 1), "user": user, "price": float(rng.normal()), "kind": kind}
        for day in range(10)
        for user, kind in enumerate("abcab")
        if user != 4 or day == 9
    ]
    return pl.DataFrame(visits).with_columns(bought=pl.int_range(pl.len()) % 2)


@pytest.fixture
def run(store: Store, rows: pl.DataFrame, tmp_path: Path) -> Any:
    """Runs the step; its result and its log."""
    recipe = tmp_path / "home/include/visits"
    recipe.mkdir(parents=True)
    (recipe / "features.py").write_text(RECIPE)
    manifest = write_snapshot(
        store, nw.from_native(rows.lazy()), name="visits", event_time="at", window=Window.before(END, 10, "UTC"),
        sources={}, split=TimeSplit(validation=2, test=2), creator={}, engine="polars", scratch=tmp_path,
    )  # fmt: skip
    dataset = DatasetRef(
        place="ingest", artifacts={"manifest": store.put_artifact("ingest", "manifest.json", manifest.to_json())},
        name="visits", version=manifest.version, schema_hash=manifest.schema_hash, num_rows=manifest.num_rows,
        num_bytes=manifest.num_bytes, interval_start=manifest.interval_start, interval_end=manifest.interval_end,
    )  # fmt: skip
    validation = ValidationRef(place="validate", schema_sha256="", num_checks=1, parent=dataset)

    def run_step(feature_set: str = "FEATURES", experiment: str = "") -> tuple[Any, str]:
        identity = RunIdentity(
            pipeline="visits", run_key="20240111T000000Z-0123456789ab", interval_start=manifest.interval_start,
            interval_end=manifest.interval_end, timezone="UTC", dag_id="visits", task_id="features", run_id="r",
            try_number=1, experiment=experiment,
        )  # fmt: skip
        config = {
            "feature_set": f"include.visits.features:{feature_set}",
            "online": {"store": "sqlite", "connection": None, "ttl_hours": 48},
        }
        document = StepInput(step="features", run=identity, config=config, ref=validation)
        commit_lineage(store, validation)
        (tmp_path / "input.json").write_text(document.dump())
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "MLOPS_HOME": str(tmp_path / "home"),
            "MLOPS_STORE": store.uri,
            "MLOPS_RESULT_PATH": str(tmp_path / "result.json"),
        }
        command = [sys.executable, "-m", "mlops.steps", tmp_path / "input.json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return read_result(tmp_path / "result.json"), done.stdout + done.stderr

    return run_step


@pytest.mark.gang
def test_the_step_publishes_what_a_server_computes(run: Any, store: Store, rows: pl.DataFrame, tmp_path: Path) -> None:
    """Reading a row online or computing it from the raw row gives the same bits."""
    ref, log = run()

    assert isinstance(ref, FeaturesRef), log
    assert "feature store: 4 of 4 entities written" in log
    assert "feast" not in log.lower(), "Feast's own notices are not the user's business"
    view = open_view(store, "visits")
    found = read_rows(store, view, [{"user": user} for user in range(5)])
    fitted = load_fitted(store, ref, tmp_path)
    for user in range(4):
        newest = rows.filter(pl.col("user") == user).sort("at").tail(1)
        assert found[user].features_place == ref.place
        assert found[user].event_time == newest["at"][0]
        served = fitted.apply(newest.drop("bought")).features[0]
        assert np.array([*found[user].features.values()], np.float32).tobytes() == served.tobytes()
    assert found[4] is None, "last seen ten days ago"


@pytest.mark.gang
def test_an_experiment_leaves_what_is_served_alone(run: Any, store: Store) -> None:
    """Broken: a feature that somebody tries out would be answered to the model in production."""
    ref, log = run(experiment="ana/visits")
    assert isinstance(ref, FeaturesRef), log
    assert ref.place.startswith("experiments/ana/visits/features/")
    assert "feature store" not in log
    given = ("blobs/", "ingest/", "validate/")
    made = [key for key in store.list("") if not key.startswith(given)]
    assert all(key.startswith("experiments/ana/visits/features/") for key in made), made


@pytest.mark.gang
def test_a_set_without_entity_cannot_be_published(run: Any, store: Store) -> None:
    failure, log = run("NO_ENTITY")

    assert isinstance(failure, Failure), log
    assert not failure.retryable
    assert "features.online is set and FeatureSet.entity is empty" in failure.message
    assert store.committed("pipelines/visits/features/20240111T000000Z-0123456789ab") is None
