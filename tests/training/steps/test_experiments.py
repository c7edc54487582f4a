"""What is tried out takes what a pipeline has made, lies apart from it, and never enters its runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from committed_refs import chain, commit_lineage
from committed_snapshots import commit_snapshot, store_snapshot, visits
from polars.testing import assert_frame_equal

from mlops.contract.refs import CheckpointRef, DatasetRef, FeaturesRef, Ref, ReportRef, ValidationRef
from mlops.contract.step import BadDataError, RunIdentity, StepInput
from mlops.data.snapshots.garbage import collect
from mlops.data.snapshots.snapshot import Snapshot
from mlops.integrity.inventory import take_inventory
from mlops.process import ProcessSettings
from mlops.steps.execution import find_committed
from mlops.store import Store

PLACES = {"": "pipelines/visits", "ana/wider": "experiments/ana/wider"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def deployment(tmp_path: Path, store: Store) -> ProcessSettings:
    return ProcessSettings(
        home=tmp_path, store=store.uri, tracking_uri="", result_path=tmp_path / "result.json", rank=0
    )  # fmt: skip


def document(experiment: str, ref: Ref | None = None, step: str = "validate") -> StepInput:
    run = RunIdentity(
        pipeline="visits", run_key="key", interval_start="2024-01-01T00:00:00+00:00",
        interval_end="2024-01-02T00:00:00+00:00", timezone="UTC", dag_id="visits", task_id=step, run_id="r",
        try_number=1, experiment=experiment,
    )  # fmt: skip
    return StepInput(step=step, run=run, config={}, ref=ref)


def dataset(place: str) -> DatasetRef:
    return DatasetRef(
        place=place, name="visits", version="1" * 64, schema_hash="2" * 64, num_rows=10, num_bytes=100,
        interval_start="2024-01-01T00:00:00+00:00", interval_end="2024-01-02T00:00:00+00:00",
    )  # fmt: skip


@pytest.mark.parametrize(("experiment", "folder"), PLACES.items())
def test_results_lie_apart(experiment: str, folder: str) -> None:
    found = document(experiment)
    assert found.place == f"{folder}/validate/key"
    assert StepInput.load(found.dump()) == found


def test_what_the_pipeline_has_made_is_found(store: Store, deployment: ProcessSettings) -> None:
    """Broken: an experiment would make again what a night has made."""
    night = ValidationRef(
        place="pipelines/visits/validate/key", schema_sha256="3" * 64, num_checks=1, parent=dataset("pipelines/d")
    )  # fmt: skip
    own = replace(night, place="experiments/ana/wider/validate/key")
    ingested = dataset("pipelines/d")
    commit_lineage(store, ingested)
    assert find_committed(document("ana/wider", ingested), deployment) is None
    store.commit(own)
    assert find_committed(document("ana/wider", ingested), deployment) == own
    assert find_committed(document("", ingested), deployment) is None, "a night does not take an experiment's"
    assert find_committed(document("bo/wider", ingested), deployment) is None, "nor does another person"
    store.commit(night)
    assert find_committed(document("bo/wider", ingested), deployment) == night
    assert find_committed(document("ana/wider", ingested), deployment) == own, "what follows from it stays"


def test_an_evaluation_is_the_experiments_own(store: Store, deployment: ProcessSettings) -> None:
    """Broken: a model would be shown beside the champion of the night that it was trained in."""
    refs = chain()
    commit_lineage(store, refs[CheckpointRef])
    store.commit(replace(refs[ReportRef], place="pipelines/visits/evaluate/key"))
    asked = document("ana/wider", refs[CheckpointRef], "evaluate")
    assert find_committed(asked, deployment) is None
    assert find_committed(replace(asked, run=replace(asked.run, experiment="")), deployment) is not None


def test_a_pipelines_run_does_not_go_on_from_an_experiment(store: Store, deployment: ProcessSettings) -> None:
    """Broken: by an edited XCom, what somebody tried out on a laptop would be registered past the gate."""
    tried = dataset("experiments/ana/wider/ingest/key")
    commit_lineage(store, tried)
    assert find_committed(document("ana/wider", tried), deployment) is None
    with pytest.raises(BadDataError, match="comes from the experiment experiments/ana/wider/ingest/key"):
        find_committed(document("", tried), deployment)
    validated = ValidationRef(
        place="pipelines/visits/validate/forged", schema_sha256="3" * 64, num_checks=1, parent=tried
    )  # fmt: skip
    commit_lineage(store, validated)
    with pytest.raises(BadDataError, match="only where it was asked to judge it: mlops register"):
        find_committed(document("", validated, "features"), deployment)


def test_a_run_judges_the_experiment_that_it_was_asked_to_judge_and_no_other(
    store: Store, deployment: ProcessSettings
) -> None:
    """Broken: who may start a run could have it register what another one was asked for."""
    refs, folder = chain(), "experiments/ana/visits"
    features = replace(refs[FeaturesRef], place=f"{folder}/features/key")
    checkpoint = replace(refs[CheckpointRef], place=f"{folder}/train/key", parent=features)
    report = replace(refs[ReportRef], place="pipelines/visits/evaluate/key", parent=checkpoint)
    commit_lineage(store, checkpoint)

    def judge(adopts: str, ref: Ref = checkpoint, step: str = "evaluate") -> Ref | None:
        asked = document("", ref, step)
        return find_committed(replace(asked, run=replace(asked.run, adopts=adopts)), deployment)

    assert judge(checkpoint.place) is None
    for other in ("", f"{folder}/train/other", "experiments/bo/visits/train/key"):
        with pytest.raises(BadDataError, match="was asked to judge"):
            judge(other)
    store.commit(report)
    assert judge("", report, "register") is None, "the evaluation was asked"
    forged = replace(report, place="experiments/ana/visits/evaluate/key")
    store.commit(forged)
    with pytest.raises(BadDataError, match="was asked to judge"):
        judge("", forged, "register")


def test_garbage_collection_and_verification_know_its_snapshots(store: Store) -> None:
    """Broken: a week later the data of an experiment would be gone."""
    rows = visits(1, 3)
    ref = commit_snapshot(store, rows, last_day=3, owner="experiments/ana/wider")
    store_snapshot(store, visits(4, 6), last_day=6)  # nothing names its blobs
    assert collect(store, grace=timedelta(0)).removed
    assert_frame_equal(Snapshot.open(store, ref).read(), rows, check_row_order=False)
    assert ref.place in take_inventory(store).refs
    store.delete(list(store.list("experiments/ana/wider")))
    assert len(collect(store, grace=timedelta(0)).removed) == 2, "a blob for each day, once nothing names it"
