"""
What steps tell Airflow's metrics: numbers of snapshots and models that Airflow itself cannot know.

Where ``[metrics]`` sends them, to OpenTelemetry or to StatsD with tags, is Airflow's; without that nothing is sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from mlops.contract.refs import (
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    PredictionsRef,
    Ref,
    ReportRef,
    StudyRef,
)
from mlops.contract.results import CHAMPION, DIFFERENCE, of_candidate

FAILURES: Final = "mlops.step.failures"
PRODUCTION: Final = "mlops.production.version"
_UNKNOWN: Final = re.compile(r"[^\w./-]", re.ASCII)
NAMES: Final[Mapping[str, str]] = {
    "mlops.snapshot.rows": "Rows of the snapshot that was taken, or found, last.",
    "mlops.snapshot.bytes": "Bytes of its objects, those that it shares with others included.",
    "mlops.features.columns": "Columns of the features.",
    "mlops.search.trials": "Trials of a search, by `state`.",
    "mlops.training.validation": "Best value on the validation split, by `metric`.",
    "mlops.training.processes": "Processes of the training when it ended.",
    "mlops.evaluation.value": "Value of the new model on held-out rows, by `metric`.",
    "mlops.evaluation.champion": "Value of the champion on the same rows, by `metric`.",
    "mlops.evaluation.difference": "Difference to the champion, in the metric's own direction, by `metric`.",
    "mlops.evaluation.difference_low": "Lower limit of its interval, by `metric`.",
    "mlops.evaluation.difference_high": "Upper limit of its interval, by `metric`.",
    "mlops.evaluation.passed": "1 where the gate passed, 0 where not.",
    PRODUCTION: "Version that was put into production, by `model` alone.",
    "mlops.predictions.rows": "Rows that were predicted.",
    "mlops.predictions.unanswered": "Rows that got no prediction.",
    FAILURES: "Counts tries that failed, by `error`, and whether it is `for_good`: no retry follows.",
}
"""The others have the tags ``pipeline``, ``step`` and ``team``. The last one is a counter, the others are gauges."""


class Measure(NamedTuple):
    name: str
    value: float
    tags: Mapping[str, str]


def measures_of(ref: Ref) -> Iterator[Measure]:
    """Say what of a step's result is told; values that are not finite are left out."""
    for name, value, tags in _told(ref):
        if value is not None and math.isfinite(value):
            yield Measure(f"mlops.{name}", float(value), {tag: _plain(said) for tag, said in tags.items()})


def _told(ref: Ref) -> Iterator[tuple[str, float | None, Mapping[str, str]]]:
    match ref:
        case DatasetRef():
            yield "snapshot.rows", ref.num_rows, {}
            yield "snapshot.bytes", ref.num_bytes, {}
        case FeaturesRef():
            yield "features.columns", ref.num_features, {}
        case StudyRef():
            for state, number in ref.trials.items():
                yield "search.trials", number, {"state": state}
        case CheckpointRef():
            yield "training.processes", ref.world_size, {}
            for metric in ref.metrics.keys() - {"train_loss"}:
                yield "training.validation", ref.metrics[metric], {"metric": metric}
        case ReportRef():
            yield "evaluation.passed", float(ref.passed), {}
            for metric, value in of_candidate(ref.metrics).items():
                tags, difference = {"metric": metric}, f"{DIFFERENCE}{metric}"
                yield "evaluation.value", value, tags
                yield "evaluation.champion", ref.metrics.get(f"{CHAMPION}{metric}"), tags
                yield "evaluation.difference", ref.metrics.get(difference), tags
                yield "evaluation.difference_low", ref.metrics.get(f"{difference}.low"), tags
                yield "evaluation.difference_high", ref.metrics.get(f"{difference}.high"), tags
        case PredictionsRef():
            yield "predictions.rows", ref.num_rows, {}
            yield "predictions.unanswered", ref.num_unanswered, {}


def _plain(text: str) -> str:
    """Return the text of a tag as StatsD takes it, too: ``ndcg_at_10``."""
    return _UNKNOWN.sub("_", text.replace("@", "_at_"))


def tell_result(ref: Ref, tags: Mapping[str, str]) -> None:
    """Tell what a step has made."""
    from airflow.sdk.observability.stats import gauge

    for measure in measures_of(ref):
        gauge(measure.name, measure.value, tags={**tags, **measure.tags})


def tell_production(version: ModelVersionRef) -> None:
    """Tell which version is in production now, whoever has put it there: a pipeline, or somebody who went back."""
    from airflow.sdk.observability.stats import gauge

    gauge(PRODUCTION, float(version.version), tags={"model": version.name})


def tell_failure(error: str, tags: Mapping[str, str], *, for_good: bool) -> None:
    """
    Count a try that failed.

    :param error: name of its class
    :param for_good: whether no retry can help
    """
    from airflow.sdk.observability.stats import incr

    incr(FAILURES, tags={**tags, "error": error, "for_good": str(for_good).lower()})
