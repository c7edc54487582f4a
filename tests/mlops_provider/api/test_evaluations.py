"""What somebody who may edit XComs can put in place of an evaluation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from odd_values import with_odd_values

from mlops.contract.refs import Artifact, ModelVersionRef, ReportRef
from mlops_provider.api.evaluations import evaluation_of, interval_of, judged


def _report(version_ref: ModelVersionRef) -> ReportRef:
    metrics = {"ndcg@10": 0.5, "candidate.ndcg@10": 0.5, "difference.ndcg@10": 0.1, "difference.ndcg@10.low": 0.02}
    page = Artifact(key="blobs/r.html", sha256="ab" * 32, num_bytes=7)
    return replace(version_ref.ancestor(ReportRef), metrics=metrics, champion="6", artifacts={"report": page})


def test_no_value_at_any_place_of_it_is_an_error(version_ref: ModelVersionRef) -> None:
    """Broken: the nights of a pipeline, and the run, would be a 500 until that run has gone."""
    tried = 0
    for wire in with_odd_values(_report(version_ref).to_wire()):
        if (report := evaluation_of(wire)) is not None:
            assert interval_of(report), wire
            with suppress(ValueError):  # which the reader of all nights expects
                assert judged(report).interval == interval_of(report)
        tried += 1
    assert tried > 500


def test_what_was_not_edited_is_read(version_ref: ModelVersionRef) -> None:
    report = _report(version_ref)
    assert evaluation_of(report.to_wire()) == report
    assert evaluation_of("s3://elsewhere") is None
