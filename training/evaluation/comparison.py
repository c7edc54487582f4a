"""The candidate and the champion on the same held-out rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from training.evaluation.gate import Interval, Verdict, bootstrap, decide
from training.evaluation.scoring import Scored, aligned
from training.evaluation.slices import Slice, slice_columns, slices
from training.trainer.metrics import IntArray, cutoff_of, log_loss, measure, ndcg


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateConfig:
    """The ``evaluate`` section of a pipeline."""

    registered_model: str
    alias: str
    metric: str
    min_improvement: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All that was measured; N rows, Q queries. Where there is no champion its parts are None."""

    metric: str
    grouped: bool
    champion_version: str | None
    labels: npt.NDArray[np.float32]
    offsets: IntArray
    candidate: npt.NDArray[np.float32]
    """``[N]`` scores"""
    champion: npt.NDArray[np.float32] | None
    intervals: dict[str, Interval]
    """Of ``candidate``, ``champion`` and ``difference``."""
    verdict: Verdict
    slices: list[Slice]
    num_unmeasured: int
    """Queries without any relevant document, left out of the mean."""
    num_apart: int
    """Rows that only the candidate's feature set keeps, left out."""

    @property
    def num_samples(self) -> int:
        return len(self.offsets) - 1

    def log_losses(self) -> dict[str, float]:
        """Log loss by model, of a classification."""
        if self.metric != "auc":
            return {}
        models = {"candidate": self.candidate, "champion": self.champion}
        return {name: log_loss(self.labels, scores) for name, scores in models.items() if scores is not None}

    def metrics(self) -> dict[str, float]:
        """Flat numbers, for the ref and for MLflow."""
        found = {f"{name}.log_loss": value for name, value in self.log_losses().items()}
        found[self.metric] = self.intervals["candidate"].value
        for name, interval in self.intervals.items():
            found |= {
                f"{name}.{self.metric}": interval.value,
                f"{name}.{self.metric}.low": interval.low,
                f"{name}.{self.metric}.high": interval.high,
            }
        return found


def compare(
    config: EvaluateConfig,
    rows: pl.DataFrame,
    scored: Scored,
    champion: Scored | None,
    champion_version: str | None,
    *,
    grouped: bool,
    days_seen: int = 0,
) -> Comparison:
    """
    Measure, resample, slice and decide.

    :param rows: the raw held-out rows that ``scored.rows`` points into
    :param days_seen: held-out days that the champion was trained on
    :raises BadDataError: where the metric cannot be measured on these rows
    """
    num_rows, champion_scores = len(scored.rows), None
    if champion is not None:
        scored, champion_scores = aligned(scored, champion)
    models = [scored.scores] + ([] if champion_scores is None else [champion_scores])
    values = [measure(config.metric, scored.labels, scores, scored.offsets) for scores in models]
    cutoff = cutoff_of(config.metric)
    per_query = ndcg(scored.labels, scored.scores, scored.offsets, cutoff) if cutoff else np.empty(0)
    kept = rows[scored.rows]
    return Comparison(
        metric=config.metric,
        grouped=grouped,
        champion_version=champion_version,
        labels=scored.labels,
        offsets=scored.offsets,
        candidate=scored.scores,
        champion=champion_scores,
        intervals=bootstrap(config.metric, scored.labels, scored.offsets, scored.scores, champion_scores),
        verdict=decide(
            metric=config.metric,
            candidate=values[0],
            champion=values[1] if champion is not None else None,
            champion_version=champion_version,
            min_improvement=config.min_improvement,
            days_seen=days_seen,
        ),
        slices=slices(
            config.metric,
            kept,
            slice_columns(kept),
            labels=scored.labels,
            offsets=scored.offsets,
            candidate=scored.scores,
            champion=champion_scores,
        ),
        num_unmeasured=int(np.isnan(per_query).sum()),
        num_apart=num_rows - len(scored.rows),
    )
