from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlops.contract.refs import (
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    RefError,
    StudyRef,
    ValidationRef,
    ref_from_wire,
)

GOLDEN = Path(__file__).parent / "golden"


def test_wire_form_is_the_published_one(version_ref: ModelVersionRef, study_ref: StudyRef) -> None:
    """Stored refs of old runs could not be read any more if a field were renamed or dropped."""
    assert version_ref.to_wire() == json.loads((GOLDEN / "model_version_ref.json").read_text())
    assert study_ref.to_wire() == json.loads((GOLDEN / "study_ref.json").read_text())


@pytest.mark.parametrize("chain", ["version_ref", "tuned_version_ref"])
def test_wire_round_trip_keeps_every_field(chain: str, request: pytest.FixtureRequest) -> None:
    ref = request.getfixturevalue(chain)
    assert ref_from_wire(json.loads(json.dumps(ref.to_wire()))) == ref


def test_a_checkpoint_comes_from_features_or_a_study(tuned_version_ref: ModelVersionRef) -> None:
    """Broken: a model could claim to come from what no training takes."""
    wire = tuned_version_ref.ancestor(CheckpointRef).to_wire()
    wire["parent"] = wire["parent"]["parent"]["parent"]
    with pytest.raises(RefError, match="expected a FeaturesRef or StudyRef, got a ref of kind 'validation'"):
        CheckpointRef.from_wire(wire)


def test_lineage_leads_back_to_the_exact_snapshot(version_ref: ModelVersionRef) -> None:
    assert [ref.kind for ref in version_ref.lineage()] == [
        "model_version", "report", "checkpoint", "features", "validation", "dataset"
    ]  # fmt: skip
    assert version_ref.ancestor(DatasetRef).version == "cd" * 32


def test_digest_covers_the_ancestors(version_ref: ModelVersionRef) -> None:
    """Two models that differ only in their data must not share a run key."""
    wire = version_ref.to_wire()
    wire["parent"]["parent"]["parent"]["parent"]["parent"]["version"] = "00" * 32
    assert ref_from_wire(wire).digest() != version_ref.digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"kind": "features"}, "expected a ModelVersionRef, got a ref of kind 'features'", id="other kind"),
        pytest.param({"colour": "red"}, "has no field 'colour'", id="unknown field"),
        pytest.param({"name": None}, "lacks the field 'name'", id="missing field"),
        pytest.param({"artifacts": 7}, "artifacts are 7, and not files by name", id="no artifacts"),
        pytest.param({"artifacts": {"report": {"key": "k"}}}, "not files by name", id="half an artifact"),
    ],
)
def test_wrong_document_is_refused_by_name(version_ref: ModelVersionRef, change: dict, message: str) -> None:
    wire = {**version_ref.to_wire(), **change}
    wire = {key: value for key, value in wire.items() if value is not None}
    with pytest.raises(RefError, match=message):
        ModelVersionRef.from_wire(wire)


@pytest.mark.parametrize("wire", [None, 3, [], {"kind": "nothing"}], ids=["none", "number", "list", "unknown kind"])
def test_what_is_no_ref_is_refused(wire: object) -> None:
    with pytest.raises(RefError, match="not a ref|expected"):
        ref_from_wire(wire)


def test_a_ref_fits_into_an_xcom(tuned_version_ref: ModelVersionRef) -> None:
    """The chain travels through Airflow's database at every step."""
    assert len(json.dumps(tuned_version_ref.to_wire())) < 4096


def test_no_such_ancestor_is_an_error(version_ref: ModelVersionRef) -> None:
    with pytest.raises(RefError, match="no CheckpointRef"):
        version_ref.ancestor(FeaturesRef).ancestor(CheckpointRef)
    assert version_ref.ancestor(ValidationRef).kind == "validation"
