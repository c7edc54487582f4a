from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl
import pytest

from mlops.contract.refs import (
    INPUT,
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    ReportRef,
    ValidationRef,
)
from mlops.contract.sections.ingest import KeySplit, TimeSplit
from mlops.contract.step import RunIdentity, StepInput
from mlops.data.snapshots.snapshot import write_snapshot
from mlops.data.sources.window import Window
from mlops.evaluation.periods_seen import periods_seen, periods_started_from
from mlops.store import Store

BY_TIME = TimeSplit(validation=1, test=2)
BY_KEY = KeySplit(key="user", validation=0.3, test=0.3)
Trained = Callable[[int, TimeSplit | KeySplit], CheckpointRef]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}")


@pytest.fixture
def trained(store: Store) -> Trained:
    """Makes the checkpoint of a model of the six days up to a day of January, on a split."""

    def train(last_day: int, split: TimeSplit | KeySplit) -> CheckpointRef:
        window = Window.before(datetime(2024, 1, last_day + 1, tzinfo=UTC), 6, "UTC")
        rows = [(window.start + timedelta(days=day), user) for day in range(6) for user in range(20)]
        table = pl.LazyFrame(rows, schema=["at", "user"], orient="row")
        with tempfile.TemporaryDirectory() as scratch:
            manifest = write_snapshot(
                store, nw.from_native(table), name="toy", window=window, event_time="at", sources={}, split=split,
                creator={}, engine="polars", scratch=Path(scratch),
            )  # fmt: skip
        dataset = DatasetRef(
            place="p", artifacts={"manifest": store.put_artifact("p", "manifest.json", manifest.to_json())}, name="toy",
            version=manifest.version, schema_hash="", num_rows=120, num_bytes=1, interval_start="", interval_end="",
        )  # fmt: skip
        validation = ValidationRef(place="v", schema_sha256="", num_checks=1, parent=dataset)
        features = FeaturesRef(place="f", version="", num_features=1, num_samples={}, parent=validation)
        return CheckpointRef(
            place="t", epoch=0, metrics={}, seed=0, world_size=1, tracking_run="", parent=features
        )  # fmt: skip

    return train


@pytest.mark.parametrize(
    ("champion", "candidate", "num_days"),
    [
        pytest.param((9, BY_TIME), (10, BY_TIME), 0, id="the night before"),
        pytest.param((11, BY_TIME), (10, BY_TIME), 1, id="a later night"),
        pytest.param((16, BY_TIME), (10, BY_TIME), 0, id="long after"),
        pytest.param((12, BY_KEY), (10, BY_KEY), 0, id="the same keys held out"),
        pytest.param((10, KeySplit(key="user", validation=0.3, test=0.1)), (10, BY_KEY), 6, id="fewer keys held out"),
        pytest.param((10, BY_TIME), (10, BY_KEY), 4, id="another kind of split"),
    ],
)
def test_days_that_the_champion_has_seen_are_counted(
    store: Store, trained: Trained, champion: Any, candidate: Any, num_days: int
) -> None:
    """Otherwise a champion that was fitted on the test rows would look unbeatable, and nobody would know why."""
    assert periods_seen(store, trained(*champion), trained(*candidate)) == num_days


def started_from(store: Store, candidate: CheckpointRef, base: CheckpointRef) -> CheckpointRef:
    """A training's ref, with its input, which names the version whose weights it started from."""
    report = ReportRef(place="e", passed=True, reason="", metrics={}, champion=None, parent=base)
    version = ModelVersionRef(place="r", name="toy", version="1", semantic_version="1.0.0", parent=report)
    identity = RunIdentity(
        pipeline="toy", run_key="k", interval_start="", interval_end="", timezone="UTC", dag_id="toy", task_id="train",
        run_id="r", try_number=1, user="",
    )  # fmt: skip
    told = StepInput(step="train", run=identity, config={}, ref=candidate.parent, baselines={"initialise": version})
    artifact = store.put_artifact("t", "input.json", told.dump().encode())
    return replace(candidate, artifacts={INPUT: artifact})


def test_days_that_the_weights_have_seen_which_it_started_from_are_counted(store: Store, trained: Trained) -> None:
    """Broken: a candidate that has learnt the rows which it is measured on would win, and nobody would know why."""
    candidate = trained(10, BY_TIME)
    assert periods_started_from(store, candidate) == 0
    assert periods_started_from(store, started_from(store, candidate, trained(9, BY_TIME))) == 0
    later = started_from(store, candidate, trained(11, BY_TIME))
    assert periods_started_from(store, later) == 1
    through_another = started_from(store, trained(9, BY_TIME), trained(12, BY_TIME))
    assert periods_started_from(store, started_from(store, candidate, through_another)) == 2
