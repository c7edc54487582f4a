"""Whole chains of refs, as fixtures."""

from __future__ import annotations

import dataclasses

import pytest

from mlops.contract.refs import (
    Artifact,
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    ReportRef,
    StudyRef,
    ValidationRef,
)


@pytest.fixture
def version_ref() -> ModelVersionRef:
    """A whole chain, from a dataset to a model version."""

    def artifact(name: str) -> Artifact:
        return Artifact(key=f"somewhere/{name}", sha256="ab" * 32, num_bytes=7)

    dataset = DatasetRef(
        place="pipelines/p/ingest/k1",
        artifacts={"manifest": artifact("manifest.json")},
        name="p",
        version="cd" * 32,
        schema_hash="ef" * 32,
        num_rows=10,
        num_bytes=1000,
        interval_start="2013-01-01T00:00:00+00:00",
        interval_end="2013-01-31T00:00:00+00:00",
    )
    validation = ValidationRef(place="pipelines/p/validate/k2", schema_sha256="12" * 32, num_checks=5, parent=dataset)
    features = FeaturesRef(
        place="pipelines/p/features/k3",
        version="34" * 32,
        num_features=4,
        num_samples={"train": 6, "validation": 2, "test": 2},
        parent=validation,
    )
    checkpoint = CheckpointRef(
        place="pipelines/p/train/k4",
        epoch=2,
        metrics={"ndcg@10": 0.5},
        seed=1,
        world_size=2,
        tracking_run="abc",
        parent=features,
    )
    report = ReportRef(
        place="pipelines/p/evaluate/k5",
        passed=True,
        reason="better",
        metrics={"ndcg@10": 0.5},
        champion=None,
        parent=checkpoint,
    )
    return ModelVersionRef(
        place="pipelines/p/register/k6", name="p", version="1", semantic_version="1.0.0", parent=report
    )


@pytest.fixture
def study_ref(version_ref: ModelVersionRef) -> StudyRef:
    return StudyRef(
        place="pipelines/p/tune/k7",
        artifacts={"trials": Artifact(key="somewhere/trials.json", sha256="ab" * 32, num_bytes=7)},
        name="p/k7",
        trials={"complete": 3, "pruned": 1, "failed": 0, "not begun": 1},
        best_trial=2,
        best_value=0.5,
        parameters={"learning_rate": 0.01, "schedule.warmup_steps": 100},
        tracking_run="def",
        parent=version_ref.ancestor(FeaturesRef),
    )


@pytest.fixture
def tuned_version_ref(version_ref: ModelVersionRef, study_ref: StudyRef) -> ModelVersionRef:
    """A chain with a study."""
    checkpoint = dataclasses.replace(version_ref.ancestor(CheckpointRef), parent=study_ref)
    report = dataclasses.replace(version_ref.ancestor(ReportRef), parent=checkpoint)
    return dataclasses.replace(version_ref, parent=report)
