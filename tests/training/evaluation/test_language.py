from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
from turns import on_turn

from mlops.contract.refs import DatasetRef, ModelVersionRef, ReportRef
from mlops.contract.step import Failure
from mlops.data.snapshots.snapshot import Snapshot
from mlops.predictor.packing import open_checkpoint


@pytest.fixture
def library(project: Any) -> Any:
    corpus.write_project(project.home, 80)
    return project


@on_turn(0, 2)
def test_the_lower_perplexity_wins(library: Any, run_step: Any, config: Any, tmp_path: Path) -> None:
    """Broken: the model that knows less would go to production."""
    first = corpus.judged(library, run_step, "first", corpus.trained(library, run_step, config, "first", epochs=1))
    assert isinstance(first, ReportRef), first
    assert isinstance(corpus.promoted(library, run_step, first), ModelVersionRef)

    checkpoint = corpus.trained(library, run_step, config, "second", epochs=6)
    second = corpus.judged(library, run_step, "second", checkpoint)
    assert second.passed, second.reason
    rows = Snapshot.open(library.store, checkpoint.ancestor(DatasetRef)).read_split("test")
    scored = open_checkpoint(library.store, checkpoint, tmp_path).score(rows)
    assert scored.predictions.labels.tolist() == [len(text.encode()) + 1 for text in rows["text"]]
    assert second.metrics["perplexity"] == pytest.approx(
        np.exp(scored.predictions.predicted.sum() / scored.predictions.labels.sum()), rel=1e-5
    )
    assert second.metrics["champion.perplexity"] == pytest.approx(first.metrics["perplexity"], abs=1e-9)
    assert second.metrics["difference.perplexity.high"] < 0
    assert second.metrics["candidate.perplexity.low"] < second.metrics["perplexity"]
    serving = json.loads(library.store.read(second.artifacts["metrics"]))["serving"]
    assert 0 < serving["latency_p50_ms"] <= serving["latency_p99_ms"]
    refused = {each["value"]: each["num_refused"] == each["num_requests"] for each in serving["disturbances"]}
    assert refused == {"missing": True, "empty": True, "never seen": False, "very long": False}
    assert {each["column"] for each in serving["disturbances"]} == {"text"}
    assert not any(each["num_failed"] or each["num_not_finite"] for each in serving["disturbances"])
    html = library.store.read(second.artifacts["report"]).decode()
    assert f"{rows.height} held-out documents" in html
    assert "resamples of documents" in html
    assert isinstance(corpus.promoted(library, run_step, second), ModelVersionRef)

    third = corpus.judged(library, run_step, "third", corpus.trained(library, run_step, config, "third", epochs=2))
    assert not third.passed
    assert "not more than the 0.50% improvement" in third.reason


def test_other_tokens_are_no_contest(library: Any, run_step: Any, config: Any) -> None:
    """Broken: a vocabulary of words would look worse than one of bytes, whatever the model knows."""
    first = corpus.judged(library, run_step, "first", corpus.trained(library, run_step, config, "first", epochs=1))
    corpus.promoted(library, run_step, first)
    characters = corpus.trained(library, run_step, config, "second", "CHARACTERS", epochs=1)
    failure = corpus.judged(library, run_step, "second", characters)
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert f"the model in production, {library.pipeline} version 1 (champion), cannot be scored" in failure.message
    assert "its tokens are those of Bytes as it was then, and the candidate's are of Characters" in failure.message


@on_turn(1, 2)
def test_slices_and_drift_are_of_documents(project: Any, run_step: Any, config: Any) -> None:
    """Broken: where a language model knows little would not be seen, or the report quote the held-out documents."""
    corpus.write_project(project.home, 160)
    sized = "include/lm/sized.sql"
    (project.home / sized).write_text(
        "SELECT *, CASE WHEN LENGTH(text) < 350 THEN 'short' ELSE 'long' END AS size FROM library"
    )
    slices = {"slices": ["size"], "rules": [{"slices": 0.02, "min_samples": 10, "confidence": 0.95}]}
    good = corpus.trained(project, run_step, config, "good", transform=sized, epochs=4)
    first = corpus.judged(project, run_step, "good", good, **slices)
    assert isinstance(corpus.promoted(project, run_step, first), ModelVersionRef), first

    bad = corpus.trained(project, run_step, config, "bad", transform=sized, epochs=1)
    second = corpus.judged(project, run_step, "bad", bad, **slices)
    rows = Snapshot.open(project.store, bad.ancestor(DatasetRef)).read_split("test")
    scored = open_checkpoint(project.store, bad, project.home).score(rows)
    document = json.loads(project.store.read(second.artifacts["metrics"]))
    found = {each["value"]: each["candidate"]["value"] for each in document["slices"]}
    for size in ("short", "long"):
        part = (rows["size"] == size).to_numpy()
        assert part.sum() >= 10
        assert found[size] == pytest.approx(
            np.exp(scored.predictions.predicted[part].sum() / scored.predictions.labels[part].sum()), rel=1e-5
        )
    assert list(found.values()) == sorted(found.values(), reverse=True), "worst first"
    assert not second.passed
    assert "2 of 2 slices are clearly more than 2.00% worse in perplexity" in second.reason

    html = project.store.read(second.artifacts["report"]).decode()
    drift = html.partition("How the data changed since the champion")[2]
    assert "<td>length of text</td>" in drift
    assert "<td>size</td>" in drift, "of few values, a category"
    assert not [text for text in rows["text"] if text[:40] in html]
