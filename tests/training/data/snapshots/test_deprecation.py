"""Nothing new may start from a deprecated snapshot; what was made of it stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from committed_refs import commit_lineage
from committed_snapshots import commit_snapshot, visits

from mlops.contract.refs import DatasetRef, FeaturesRef, Ref, ValidationRef
from mlops.contract.section import SpecError
from mlops.contract.step import BadDataError, RunIdentity, StepInput
from mlops.data.snapshots.deprecation import deprecate
from mlops.data.snapshots.snapshot import Snapshot
from mlops.process import ProcessSettings
from mlops.steps.execution import execute
from mlops.store import Store
from mlops.store_errors import DamagedObjectError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def dataset(store: Store) -> DatasetRef:
    return commit_snapshot(store, visits(1, 2), last_day=2)


def run(store: Store, step: str, ref: Ref) -> Ref | None:
    """The step as its process runs it, less the process."""
    identity = RunIdentity(
        pipeline="visits",
        run_key="key",
        interval_start="2024-01-02T05:00:00+00:00",
        interval_end="2024-01-03T05:00:00+00:00",
        timezone="America/New_York",
        dag_id="visits",
        task_id=step,
        run_id="manual",
        try_number=1,
    )
    home = Path(store.uri.removeprefix("file://")).parent
    deployment = ProcessSettings(home=home, store=store.uri, tracking_uri="", result_path=home / "result.json", rank=0)
    commit_lineage(store, ref)
    return execute(StepInput(step=step, run=identity, config={}, ref=ref), deployment)


def lineage(dataset: DatasetRef) -> dict[str, Ref]:
    """What each step is given."""
    validation = ValidationRef(place="v", schema_sha256="0", num_checks=1, parent=dataset)
    features = FeaturesRef(place="f", version="0", num_features=1, num_samples={"train": 1}, parent=validation)
    return {"validate": dataset, "features": validation, "train": features}


@pytest.mark.parametrize("step", ["validate", "features", "train"])
def test_no_step_starts_new_work_from_it(store: Store, dataset: DatasetRef, step: str) -> None:
    """Validation may have passed long ago: the later steps must look too."""
    deprecate(store, "visits", dataset.version, reason="prices were in cents", by="ana@laptop")
    with pytest.raises(BadDataError) as caught:
        run(store, step, lineage(dataset)[step])
    message = str(caught.value)
    for told in (f"visits@{dataset.version[:12]}", "ana@laptop", "prices were in cents", "To ingest this night anew"):
        assert told in message
    assert not caught.value.retryable


def test_what_was_made_of_it_is_still_returned(store: Store, dataset: DatasetRef) -> None:
    """A cleared task of a finished night must not fail over it."""
    ref = lineage(dataset)["features"]
    made = FeaturesRef(
        place="pipelines/visits/features/key", version="0", num_features=1, num_samples={"train": 8}, parent=ref
    )  # type: ignore[arg-type]
    store.commit(made)
    deprecate(store, "visits", dataset.version, reason="prices were in cents", by="ana")
    assert run(store, "features", ref) == made


def test_it_can_be_read_to_rebuild_an_old_model(store: Store, dataset: DatasetRef) -> None:
    deprecate(store, "visits", dataset.version, reason="prices were in cents", by="ana")
    assert Snapshot.open(store, dataset).read().height == 8


def test_other_snapshots_are_not_touched(store: Store, dataset: DatasetRef) -> None:
    other = commit_snapshot(store, visits(1, 2, 3), last_day=3)
    deprecate(store, "visits", dataset.version, reason="prices were in cents", by="ana")
    with pytest.raises(SpecError, match="the key 'feature_set' is missing"):  # it came as far as its own empty settings
        run(store, "features", lineage(other)["features"])


def test_an_unreadable_mark_is_no_permission(store: Store, dataset: DatasetRef) -> None:
    store.put(f"pipelines/visits/deprecated/{dataset.version}.json", b"{")
    with pytest.raises(DamagedObjectError, match="delete it, and deprecate the snapshot again"):
        run(store, "features", lineage(dataset)["features"])
