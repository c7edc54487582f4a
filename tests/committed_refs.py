"""Refs that tests make, in the store as their steps would have left them: a step believes no others."""

from __future__ import annotations

from mlops.contract.refs import (
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    Ref,
    ReportRef,
    StudyRef,
    TrialRef,
    ValidationRef,
)
from mlops.store import Store


def commit_lineage(store: Store, *refs: Ref | None) -> None:
    """Commit refs and their parents; what is at their places already stays."""
    for ref in refs:
        for link in ref.lineage() if ref else ():
            store.commit(link)


def chain() -> dict[type[Ref], Ref]:
    """One ref of each kind, by its class."""
    dataset = DatasetRef(
        place="d", name="toy", version="1" * 64, schema_hash="2" * 64, num_rows=10, num_bytes=100,
        interval_start="2013-01-09T05:00:00+00:00", interval_end="2013-02-08T05:00:00+00:00",
    )  # fmt: skip
    validation = ValidationRef(place="v", schema_sha256="3" * 64, num_checks=1, parent=dataset)
    features = FeaturesRef(place="f", version="4" * 64, num_features=4, num_samples={"train": 8}, parent=validation)
    study = StudyRef(
        place="s", name="toy", trials={"complete": 3}, best_trial=1, best_value=0.8, parameters={"seed": 1},
        tracking_run="r", parent=features,
    )  # fmt: skip
    trial = TrialRef(
        place="t", number=0, state="complete", value=0.8, parameters={}, tracking_run="r", parent=features,
    )  # fmt: skip
    checkpoint = CheckpointRef(
        place="c", epoch=3, metrics={"ndcg@10": 0.91}, seed=7, world_size=2, tracking_run="r", parent=study
    )
    report = ReportRef(
        place="r", passed=False, reason="Worse.", metrics={"ndcg@10": 0.9172}, champion="1", parent=checkpoint
    )
    version = ModelVersionRef(place="m", name="toy", version="2", semantic_version="1.0.1", parent=report)
    refs: list[Ref] = [dataset, validation, features, study, trial, checkpoint, report, version]
    return {type(ref): ref for ref in refs}
