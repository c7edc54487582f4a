"""What steps tell Airflow's metrics. ``tests/end_to_end/test_language_model.py`` has an Airflow send it."""

from __future__ import annotations

import atexit
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk._shared.observability.metrics.otel_logger import flush_otel_metrics
from airflow.sdk.observability.metrics import otel_logger
from airflow.sdk.observability.stats import initialize
from collector import Collector
from opentelemetry import metrics

from mlops.contract.refs import CheckpointRef, DatasetRef, FeaturesRef, ModelVersionRef, PredictionsRef, Ref, StudyRef
from mlops.contract.step import Failure
from mlops_provider.exceptions import StepFailedError, StepLostError
from mlops_provider.operators.callbacks import count_failed, count_tried_again
from mlops_provider.telemetry import (
    FAILURES,
    NAMES,
    PRODUCTION,
    measures_of,
    tell_failure,
    tell_production,
    tell_result,
)

TAGS = {"pipeline": "flights", "step": "evaluate", "team": "ads"}


def told(ref: Ref) -> dict[str, float]:
    return {":".join([each.name.removeprefix("mlops."), *each.tags.values()]): each.value for each in measures_of(ref)}


def every(version: ModelVersionRef) -> list[Ref]:
    """A result of each kind."""
    checkpoint, snapshot = version.ancestor(CheckpointRef), version.ancestor(DatasetRef)
    study = StudyRef(
        place="s", name="s", trials={"complete": 3, "pruned": 2}, best_trial=0, best_value=0.5, parameters={},
        tracking_run="r", parent=version.ancestor(FeaturesRef),
    )  # fmt: skip
    report = replace(
        version.parent,
        champion="2",
        metrics={
            "auc": 0.9,
            "candidate.auc": 0.9,
            "candidate.ndcg@10": 0.7,
            "candidate.auc.low": 0.8,
            "champion.auc": 0.85,
            "difference.auc": 0.05,
            "difference.auc.low": 0.01,
            "difference.auc.high": 0.09,
        },
    )
    predictions = PredictionsRef(
        place="p", model="m", model_version="3", model_sha256="0" * 64, num_rows=7, num_unanswered=1, parent=snapshot
    )
    return [snapshot, version.ancestor(FeaturesRef), study, checkpoint, report, version, predictions]


def test_each_result_tells_its_numbers(version_ref: ModelVersionRef) -> None:
    """Broken: whoever watches pipelines by Prometheus would see tasks, and not what the models are worth."""
    found = [told(ref) for ref in every(version_ref)]
    names = {name.partition(":")[0] for each in found for name in each}
    assert names == {name.removeprefix("mlops.") for name in NAMES if name not in (FAILURES, PRODUCTION)}
    assert found[2] == {"search.trials:complete": 3, "search.trials:pruned": 2}
    passed = {"evaluation.passed": float(version_ref.parent.passed)}
    assert found[4] == passed | {
        "evaluation.value:auc": 0.9,
        "evaluation.value:ndcg_at_10": 0.7,
        "evaluation.champion:auc": 0.85,
        "evaluation.difference:auc": 0.05,
        "evaluation.difference_low:auc": 0.01,
        "evaluation.difference_high:auc": 0.09,
    }
    assert found[5] == {}, "what is registered, or a canary, is not in production"


def test_what_is_not_finite_or_not_there_is_not_told(version_ref: ModelVersionRef) -> None:
    """Broken: a first night, without a champion, or an infinite value would show as 0, or end in an error."""
    first = replace(version_ref.parent, champion=None, metrics={"candidate.auc": math.inf, "auc": math.inf})
    assert told(first) == {"evaluation.passed": float(first.passed)}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    for name, value in collector.environment.items():
        monkeypatch.setenv(name, value)
    initialize(factory=otel_logger.get_otel_logger, export_legacy_names=False)
    yield collector
    metrics.get_meter_provider().shutdown()  # type: ignore[attr-defined]
    collector.close()
    atexit.unregister(flush_otel_metrics)
    initialize(factory=NoStatsLogger, export_legacy_names=False)


def test_opentelemetry_takes_them(collector: Collector, version_ref: ModelVersionRef) -> None:
    """Broken: a name or a tag that OpenTelemetry refuses would be dropped, or fail the step that tells it."""
    for ref in every(version_ref):
        tell_result(ref, TAGS)
    tell_production(version_ref)
    tell_failure("NonFiniteLossError", TAGS, for_good=True)
    tell_failure("NonFiniteLossError", TAGS, for_good=True)
    metrics.get_meter_provider().force_flush()  # type: ignore[attr-defined]
    found = collector.ours()
    assert {each.name.removeprefix("airflow.") for each in found} == set(NAMES)
    assert all(each.tags.items() >= TAGS.items() for each in found if not each.name.endswith("production.version"))
    assert [each for each in found if each.is_counter] == [
        ("airflow.mlops.step.failures", 2.0, {**TAGS, "error": "NonFiniteLossError", "for_good": "true"}, True)
    ]
    (low,) = [each for each in found if each.name.endswith("difference_low")]
    assert (low.value, low.tags) == (0.01, {**TAGS, "metric": "auc"})


def test_tries_are_counted_by_what_becomes_of_them(collector: Collector) -> None:
    """Broken: a night that fails by its last lost process would count as one that is tried again."""
    failed: Any = SimpleNamespace(metric_tags=TAGS, failure=Failure("NonFiniteLossError", "NaN", False, {}))
    lost: Any = SimpleNamespace(metric_tags=TAGS, failure=None)
    count_failed({"task": failed, "exception": StepFailedError("NaN")})
    count_failed({"task": lost, "exception": StepLostError("killed")})
    count_tried_again({"task": lost, "exception": StepLostError("killed")})
    metrics.get_meter_provider().force_flush()  # type: ignore[attr-defined]
    assert {(each.tags["error"], each.tags["for_good"]): each.value for each in collector.ours()} == {
        ("NonFiniteLossError", "true"): 1.0,
        ("StepLostError", "true"): 1.0,
        ("StepLostError", "false"): 1.0,
    }
