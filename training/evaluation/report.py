"""The report that people read: one HTML file, complete in itself, offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mlops_provider.refs import CheckpointRef, DatasetRef, FeaturesRef
from mlops_provider.step import RunIdentity
from training.evaluation.comparison import Comparison
from training.evaluation.figures import draw
from training.evaluation.gate import CONFIDENCE, RESAMPLES

MAX_SLICES = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A line of the metric table."""

    name: str
    value: str
    interval: str


def render(
    comparison: Comparison,
    *,
    run: RunIdentity,
    checkpoint: CheckpointRef,
    history: Sequence[Mapping[str, float]],
    training_metric: str,
    git_commit: str,
    tracking_uri: str,
    registered_model: str,
) -> str:
    """:param history: the ``history`` artifact of the checkpoint"""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    dataset, features = checkpoint.ancestor(DatasetRef), checkpoint.ancestor(FeaturesRef)
    return environment.get_template("report.html.j2").render(
        comparison=comparison,
        run=run,
        registered_model=registered_model,
        rows=_rows(comparison),
        counts=_counts(comparison),
        figures=draw(comparison, history, training_metric),
        slices=comparison.slices[:MAX_SLICES],
        num_more_slices=max(0, len(comparison.slices) - MAX_SLICES),
        lineage={
            "Data": f"{dataset.name}, {dataset.num_rows:,} rows, {dataset.interval_start} to {dataset.interval_end}",
            "Snapshot": dataset.version,
            "Features": features.version,
            "Checkpoint": f"{checkpoint.place}, epoch {checkpoint.epoch} of {history[-1]['epoch']}, "
            f"seed {checkpoint.seed}, {checkpoint.world_size} processes",
            "Weights (SHA-256)": checkpoint.artifacts["weights"].sha256,
            "Code": git_commit,
            "MLflow run": f"{checkpoint.tracking_run} at {tracking_uri}",
            "Airflow run": f"{run.dag_id}, {run.run_id}",
        },
    )


def _rows(comparison: Comparison) -> list[Row]:
    names = {
        "candidate": "Candidate",
        "champion": f"Champion, version {comparison.champion_version}",
        "difference": "Difference",
    }
    metric = comparison.metric.upper()
    rows = []
    for name, interval in comparison.intervals.items():
        sign = "+" if name == "difference" else ""
        rows.append(
            Row(
                name=f"{names[name]}, {metric}",
                value=f"{interval.value:{sign}.4f}",
                interval=f"{interval.low:{sign}.4f} to {interval.high:{sign}.4f}",
            )
        )
    for name, value in comparison.log_losses().items():
        rows.append(Row(name=f"{names[name]}, log loss", value=f"{value:.4f}", interval=""))
    return rows


def _counts(comparison: Comparison) -> str:
    kind = "documents" if comparison.metric == "perplexity" else "rows"
    rows = f"{len(comparison.labels):,} held-out {kind}"
    text = f"{rows} in {comparison.num_samples:,} queries" if comparison.grouped else rows
    if comparison.num_unmeasured:
        text += f"; {comparison.num_unmeasured:,} queries without any relevant document are left out"
    if comparison.num_apart:
        text += f"; {comparison.num_apart:,} rows that the champion's feature set does not keep are left out"
    resampled = "queries" if comparison.grouped else kind
    return f"{text}. Intervals: {CONFIDENCE:.0%}, from {RESAMPLES:,} paired bootstrap resamples of {resampled}."
