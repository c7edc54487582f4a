"""The comparison of the candidate and the champion on the same held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl

from mlops.contract.objectives import check_fit
from mlops.contract.sections.evaluate import Evaluate
from mlops.contract.step import BadConfigError
from mlops.evaluation.bias import group_differences
from mlops.evaluation.bootstrap import Estimate, estimate
from mlops.evaluation.rules import judge
from mlops.evaluation.serving_benchmark import ServingBenchmark
from mlops.evaluation.slice_metrics import slice_columns, slices
from mlops.evaluation.verdict import Measured, Verdict
from mlops.metrics.metric import Metric, load_metric
from mlops.metrics.predictions import Predictions
from mlops.objectives.objective import LoadedObjective
from mlops.predictor.predictor import Predictor
from mlops.predictor.scored import Scored, aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def load_metrics(config: Evaluate, model: Predictor, own: Callable[[str], object]) -> list[Metric]:
    """
    Load ``evaluate.metric`` and then ``evaluate.metrics``, and check that they and the fairness setting fit the model.

    :param own: loads code of a recipe by its import path
    :raises BadConfigError: if something cannot be measured for the model's objective
    """
    objective = model.objective
    found = [load_metric(name, own) for name in dict.fromkeys([config.metric, *config.metrics])]
    for metric in found:
        check_fit(metric.name, metric.spec, objective.name, objective.kind)
    if config.fairness and objective.kind != "logit":
        raise BadConfigError(
            f"evaluate.fairness compares predicted classes, and the objective is {objective.name!r}; remove it"
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All measured values on N rows, and the verdict. Without a champion its parts are None."""

    objective: LoadedObjective
    """Of the candidate."""
    training_metric: str
    """Name for people of the metric that chose the candidate's best epoch."""
    grouped: bool
    candidate: Predictions
    champion: Predictions | None
    measured: Measured
    verdict: Verdict
    feature_importance: Mapping[str, Mapping[str, float]]
    """How much each feature contributes to the predictions, by its name, of ``candidate`` and ``champion``; empty where
    a learner does not say, and of the champion only where it could be opened here."""
    column_importance: Mapping[str, Mapping[str, float]]
    """What is lost of the metric where a raw column is shuffled, by column, of ``candidate`` and ``champion``; of the
    latter only where it could be opened here."""
    num_apart: int
    """Number of rows that are left out, because only the candidate's feature set keeps them."""

    @property
    def metric(self) -> str:
        return self.measured.metric

    def figures(self) -> list[tuple[str, Figure]]:
        """Draw the figures of the candidate's objective, and return title and figure of each."""
        models, champion = {"candidate": self.candidate}, self.champion
        # What another objective predicts may be measured by the same metric, and be of another form.
        if champion is not None and (
            isinstance(champion.settings, type(self.candidate.settings))
            or champion.predicted.shape == self.candidate.predicted.shape
        ):
            models["champion"] = champion
        draw = self.objective.figures()
        return draw(models, self.metric) if draw else []

    @property
    def rows_are(self) -> str:
        """Word for rows in texts for people."""
        return "documents" if self.objective.spec.inputs == "tokens" else "rows"

    @property
    def samples_are(self) -> str:
        """Word for samples in texts for people."""
        return "queries" if self.grouped else self.rows_are

    @property
    def num_samples(self) -> int:
        return self.candidate.num_samples

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
            "num_rows": self.candidate.num_rows,
            "num_samples": self.num_samples,
            "num_unmeasured": self.num_unmeasured,
            "slices": [
                {"column": each.column, "value": each.value, "num_samples": each.num_samples}
                | (_intervals(each.estimate) if each.estimate else {})
                for each in measured.slices
            ],
            "fairness": [asdict(each) for each in measured.groups],
            "serving": asdict(measured.serving),
            "feature_importance": {name: dict(each) for name, each in self.feature_importance.items()},
            "column_importance": {name: dict(each) for name, each in self.column_importance.items()},
        }


def compare(
    config: Evaluate,
    model: Predictor,
    metrics: Sequence[Metric],
    rows: pl.DataFrame,
    scored: Scored,
    champion: Scored | None,
    champion_version: str | None,
    serving: ServingBenchmark,
    *,
    own: Callable[[str], object],
    periods_seen: int = 0,
    periods_started_from: int = 0,
    feature_importance: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    column_importance: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> Comparison:
    """
    Measure, resample, slice and decide.

    :param model: the candidate
    :param metrics: those of :func:`load_metrics`
    :param rows: the raw held-out rows that ``scored.rows`` points into
    :param own: loads code of a recipe by its import path
    :param periods_seen: held-out periods that the champion was trained on
    :param periods_started_from: those that the weights were trained on which the candidate started from
    :param feature_importance: see :attr:`Comparison.feature_importance`
    :param column_importance: see :attr:`Comparison.column_importance`
    :raises BadDataError: where a metric cannot be measured on these rows
    :raises BadConfigError: where a rule or a slice is about something that is not there
    """
    num_rows, of_champion = len(scored.rows), None
    if champion is not None:
        scored, of_champion = aligned(scored, champion)
    of_candidate, kept = scored.predictions, rows[scored.rows]
    model.objective.functions.check_labels(of_candidate.labels)
    measured = Measured(
        metric=metrics[0].name,
        champion_version=champion_version,
        estimates={metric.name: estimate(metric, of_candidate, of_champion) for metric in metrics},
        slices=slices(
            metrics[0],
            kept,
            config.slices or slice_columns(kept.drop(model.unknown, strict=False)),
            of_candidate,
            of_champion,
        ),
        groups=group_differences(
            kept,
            config.fairness,
            labels=of_candidate.labels,
            candidate=of_candidate.predicted,
            champion=None if of_champion is None else of_champion.predicted,
        ),
        serving=serving,
    )
    return Comparison(
        objective=model.objective,
        training_metric=model.description.metric_title,
        grouped=model.description.grouped,
        candidate=of_candidate,
        champion=of_champion,
        measured=measured,
        verdict=judge(
            config.rules, measured, own, periods_seen=periods_seen, periods_started_from=periods_started_from
        ),
        feature_importance=feature_importance,
        column_importance=column_importance,
        num_apart=num_rows - len(scored.rows),
    )


def _intervals(found: Estimate) -> dict[str, Any]:
    return {name: asdict(interval) for name, interval in found.intervals().items()}
