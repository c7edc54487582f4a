"""The comparison of the candidate and the champion on the same held-out rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.contract.objectives import OBJECTIVE_METRICS
from mlops.contract.sections.evaluate import Evaluate
from mlops.contract.step import BadConfigError
from mlops.evaluation.bias import group_differences
from mlops.evaluation.bootstrap import Estimate, MetricFunction, estimate, estimate_own
from mlops.evaluation.rules import judge
from mlops.evaluation.scoring import Scored, aligned
from mlops.evaluation.serving_benchmark import ServingBenchmark
from mlops.evaluation.slice_metrics import slice_columns, slices
from mlops.evaluation.verdict import Measured, Verdict
from mlops.trainer.metrics import IntArray, check_metric, fits


def check_objective(config: Evaluate, objective: str, *, grouped: bool) -> None:
    """
    Check that the metrics and the fairness setting fit the model's objective.

    :raises BadConfigError: if something cannot be measured for the model's objective
    """
    for metric in (config.metric, *config.metrics):
        check_metric(metric, objective, grouped=grouped)
    if config.fairness and objective != "binary":
        raise BadConfigError(
            f"evaluate.fairness compares predicted classes, and the objective is {objective!r}; remove it"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All measured values on N rows, and the verdict. Without a champion its parts are None."""

    grouped: bool
    labels: npt.NDArray[np.float32]
    offsets: IntArray
    candidate: npt.NDArray[np.float32]
    """``[N]`` scores of the candidate."""
    champion: npt.NDArray[np.float32] | None
    measured: Measured
    verdict: Verdict
    num_apart: int
    """Number of rows that are left out, because only the candidate's feature set keeps them."""

    @property
    def metric(self) -> str:
        return self.measured.metric

    @property
    def objective(self) -> str:
        return next(objective for objective in OBJECTIVE_METRICS if fits(self.metric, objective))

    @property
    def rows_are(self) -> str:
        """Word for rows in texts for people."""
        return "documents" if self.objective == "language_model" else "rows"

    @property
    def samples_are(self) -> str:
        """Word for samples in texts for people."""
        return "queries" if self.grouped else self.rows_are

    @property
    def num_samples(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_unmeasured(self) -> int:
        """Number of queries without any relevant document, which are left out of the mean."""
        return self.num_samples - self.measured.estimate(None).num_samples

    def metrics(self) -> dict[str, float]:
        """Return flat numbers, for the ref and for MLflow."""
        found = {self.metric: self.measured.estimate(None).candidate.value}
        for metric, each in self.measured.estimates.items():
            for name, interval in each.intervals().items():
                found |= {
                    f"{name}.{metric}": interval.value,
                    f"{name}.{metric}.low": interval.low,
                    f"{name}.{metric}.high": interval.high,
                }
        return found

    def latency(self) -> dict[str, float]:
        """Return the latencies, apart from :meth:`metrics` because they differ each time they are measured."""
        serving = self.measured.serving
        return {"latency_p50_ms": serving.latency_p50_ms, "latency_p99_ms": serving.latency_p99_ms}

    def document(self) -> dict[str, Any]:
        """Return all but the scores as JSON."""
        measured = self.measured
        return {
            "metric": self.metric,
            "verdict": asdict(self.verdict),
            "champion": measured.champion_version,
            "metrics": {name: _intervals(each) for name, each in measured.estimates.items()},
            "num_rows": len(self.labels),
            "num_samples": self.num_samples,
            "num_unmeasured": self.num_unmeasured,
            "slices": [
                {"column": each.column, "value": each.value, "num_samples": each.num_samples}
                | (_intervals(each.estimate) if each.estimate else {})
                for each in measured.slices
            ],
            "fairness": [asdict(each) for each in measured.groups],
            "serving": asdict(measured.serving),
        }


def compare(
    config: Evaluate,
    rows: pl.DataFrame,
    scored: Scored,
    champion: Scored | None,
    champion_version: str | None,
    serving: ServingBenchmark,
    *,
    grouped: bool,
    own_metrics: MetricFunction | None = None,
    days_seen: int = 0,
) -> Comparison:
    """
    Measure, resample, slice and decide.

    :param rows: the raw held-out rows that ``scored.rows`` points into
    :param own_metrics: the recipe's function
    :param days_seen: held-out days that the champion was trained on
    :raises BadDataError: where a metric cannot be measured on these rows
    :raises BadConfigError: where a rule or a slice is about something that is not there
    """
    num_rows, champion_scores = len(scored.rows), None
    if champion is not None:
        scored, champion_scores = aligned(scored, champion)
    labels, offsets, kept = scored.labels, scored.offsets, rows[scored.rows]
    estimates: dict[str, Estimate] = {
        metric: estimate(metric, labels, offsets, scored.scores, champion_scores)
        for metric in dict.fromkeys([config.metric, *config.metrics])
    }
    if own_metrics is not None:
        own = estimate_own(own_metrics, labels, offsets, scored.scores, champion_scores)
        if twice := sorted(estimates.keys() & {each.metric for each in own}):
            raise BadConfigError(f"evaluate.metric_function returns {twice[0]!r}, which is measured already; rename it")
        estimates |= {each.metric: each for each in own}
    measured = Measured(
        metric=config.metric,
        champion_version=champion_version,
        estimates=estimates,
        slices=slices(
            config.metric,
            kept,
            config.slices or slice_columns(kept),
            labels=labels,
            offsets=offsets,
            candidate=scored.scores,
            champion=champion_scores,
        ),
        groups=group_differences(
            kept, config.fairness, labels=labels, candidate=scored.scores, champion=champion_scores
        ),
        serving=serving,
    )
    return Comparison(
        grouped=grouped,
        labels=labels,
        offsets=offsets,
        candidate=scored.scores,
        champion=champion_scores,
        measured=measured,
        verdict=judge(config.rules, measured, days_seen),
        num_apart=num_rows - len(scored.rows),
    )


def _intervals(found: Estimate) -> dict[str, Any]:
    return {name: asdict(interval) for name, interval in found.intervals().items()}
