"""The report that people read: one HTML file, complete in itself, offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mlops.contract.refs import CheckpointRef, DatasetRef, FeaturesRef, StudyRef
from mlops.contract.settings import settings_text
from mlops.contract.step import RunIdentity
from mlops.evaluation.bootstrap import CONFIDENCE, FEWER_RESAMPLES, RESAMPLES
from mlops.evaluation.comparison import Comparison
from mlops.evaluation.cost import Cost, cost_of
from mlops.evaluation.figures import draw, taken_as_it_is
from mlops.evaluation.holdout_drift import ColumnDrift
from mlops.evaluation.verdict import RuleOutcome

MAX_SLICES = 24
MAX_DRIFTS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Background:
    """The context of a comparison: its run, and the candidate's checkpoint and history."""

    run: RunIdentity
    checkpoint: CheckpointRef
    history: Sequence[Mapping[str, float]]
    """The ``history`` artifact of the checkpoint."""
    training_metric: str
    drifts: Sequence[ColumnDrift]
    """Drift of the columns since the champion; empty without one."""
    gpu: str
    """Name of the device that the candidate was trained on, or ``none``."""
    price_per_gpu_hour: float | None
    git_commit: str
    tracking_uri: str
    registered_model: str

    @property
    def cost(self) -> Cost | None:
        return cost_of(self.history, self.checkpoint.world_size, self.gpu, self.price_per_gpu_hour)

    @property
    def was_trained_elsewhere(self) -> bool:
        return taken_as_it_is(self.history)

    @property
    def _training(self) -> str:
        checkpoint = self.checkpoint
        if self.was_trained_elsewhere:
            return "weights that were trained elsewhere, taken as they are"
        return (
            f"epoch {checkpoint.epoch} of {self.history[-1]['epoch']}, seed {checkpoint.seed}, "
            f"{checkpoint.world_size} process{'es' if checkpoint.world_size > 1 else ''}"
        )

    def lineage(self) -> dict[str, str]:
        checkpoint, run = self.checkpoint, self.run
        dataset, features = checkpoint.ancestor(DatasetRef), checkpoint.ancestor(FeaturesRef)
        rows = {
            "Data": f"{dataset.name}, {dataset.num_rows:,} rows, {dataset.interval_start} to {dataset.interval_end}",
            "Snapshot": dataset.version,
            "Features": features.version,
        }
        if isinstance(study := checkpoint.parent, StudyRef):
            rows["Search"] = (
                f"{settings_text(study.parameters)}; the best of {sum(study.trials.values())} trials, see MLflow run "
                f"{study.tracking_run}"
            )
        return rows | {
            "Checkpoint": f"{checkpoint.place}, {self._training}",
            "Weights (SHA-256)": checkpoint.artifacts["weights"].sha256,
            "Code": self.git_commit,
            "MLflow run": f"{checkpoint.tracking_run} at {self.tracking_uri}",
            "Airflow run": f"{run.dag_id}, {run.run_id}",
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdBar:
    """A rule's value beside its threshold; places in percent of the bar's width."""

    value: float
    low: float
    high: float
    threshold: float
    good_from: float
    good_to: float

    @classmethod
    def of(cls, outcome: RuleOutcome) -> ThresholdBar | None:
        """Return the bar of an outcome; None if it has nothing to compare, e.g. without a champion."""
        value, threshold = outcome.value, outcome.threshold
        if value is None or threshold is None:
            return None
        low = value if outcome.low is None else outcome.low
        high = value if outcome.high is None else outcome.high
        first, last = min(low, threshold), max(high, threshold)
        # What is compared with nothing at all begins at nothing.
        first, last = (0.0, last) if outcome.low is None else (first, last)
        reach = (last - first) or 1.0
        first, last = (first if outcome.low is None else first - reach / 10), last + reach / 10

        def place(number: float) -> float:
            return round(100 * (number - first) / (last - first), 2)

        mark = place(threshold)
        return cls(
            value=place(value),
            low=place(low),
            high=place(high),
            threshold=mark,
            good_from=mark if outcome.must_exceed else 0.0,
            good_to=100.0 if outcome.must_exceed else mark,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the metric table."""

    model: str
    value: str
    interval: str


def render(comparison: Comparison, background: Background) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    serving = comparison.measured.serving
    found = [each for each in comparison.measured.slices if each.estimate]
    return environment.get_template("report.html.j2").render(
        comparison=comparison,
        measured=comparison.measured,
        background=background,
        rules=[(outcome, ThresholdBar.of(outcome)) for outcome in comparison.verdict.outcomes],
        metric=comparison.measured.estimate(None).title,
        table=_table(comparison),
        counts=_counts(comparison),
        figures=draw(comparison, background.history, background.training_metric),
        slices=found[:MAX_SLICES],
        num_more_slices=max(0, len(found) - MAX_SLICES),
        unmeasured=[each for each in comparison.measured.slices if not each.estimate],
        serving=serving,
        odd=[each for each in serving.disturbances if each.is_bad],
        num_refused=sum(bool(each.num_refused) for each in serving.disturbances),
        drifts=background.drifts[:MAX_DRIFTS],
        num_more_drifts=max(0, len(background.drifts) - MAX_DRIFTS),
        confidence=CONFIDENCE,
    )


def _table(comparison: Comparison) -> dict[str, list[Row]]:
    """Return the rows of the metric table by metric."""
    table = {}
    for found in comparison.measured.estimates.values():
        rows = []
        for name, interval in found.intervals().items():
            sign = "+" if name == "difference" else ""
            model = f"champion, version {comparison.measured.champion_version}" if name == "champion" else name
            value, low, high = (f"{number:{sign}.4f}" for number in (interval.value, interval.low, interval.high))
            rows.append(Row(model=model, value=value, interval=f"{low} to {high}"))
        table[found.title + (", lower is better" if found.direction < 0 else "")] = rows
    return table


def _counts(comparison: Comparison) -> str:
    rows = f"{comparison.candidate.num_rows:,} held-out {comparison.rows_are}"
    text = f"{rows} in {comparison.num_samples:,} queries" if comparison.grouped else rows
    if comparison.num_unmeasured:
        text += f"; {comparison.num_unmeasured:,} queries without any relevant document are left out"
    if comparison.num_apart:
        text += f"; {comparison.num_apart:,} rows that the champion's feature set does not keep are left out"
    intervals = (
        f"Intervals: {CONFIDENCE:.0%}, from {RESAMPLES:,} paired bootstrap resamples of {comparison.samples_are}; "
        f"those of slices and of slow metrics from {FEWER_RESAMPLES}."
    )
    return f"{text}. {intervals}"
