"""The figures of the report, as SVG that takes the page's colours, light or dark, and its font."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from mlops.evaluation.comparison import Comparison
from mlops.trainer.metrics import CALIBRATION_BINS, cutoff_of, named, ndcg, probabilities

# Drawn in colours that nothing else has, each then replaced by a CSS value of the page.
INK, SOFT, CANDIDATE, CHAMPION = "#010101", "#020202", "#030303", "#040404"
CSS_COLOURS: Final = {
    INK: "currentColor",
    SOFT: "var(--line)",
    CANDIDATE: "var(--candidate)",
    CHAMPION: "var(--champion)",
}
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.size": 11,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": SOFT,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.figsize": (4.8, 3.3),
}
COLOURS: Final = {"candidate": CANDIDATE, "champion": CHAMPION}
CUTOFF: Final = 10
"""Cutoff for metrics that name none."""
MAX_CUTOFF: Final = 20
MAX_POINTS: Final = 400


def draw(comparison: Comparison, history: Sequence[Mapping[str, float]], metric: str) -> list[tuple[str, str]]:
    """Draw the figures of the report, and return the title and SVG of each."""
    figures_of = {"ranking": _ranking, "binary": _classification, "language_model": _documents}
    with mpl.rc_context(STYLE):
        figures = [*figures_of[comparison.objective](comparison), _training(history, metric)]
        return [(title, _svg(figure)) for title, figure in figures]


def _documents(comparison: Comparison) -> list[tuple[str, Figure]]:
    figure, axes = _axes()
    for name, losses in _models(comparison).items():
        values = np.exp(losses.astype(np.float64) / comparison.labels)
        axes.plot(np.sort(values), np.linspace(0, 1, len(values)), color=COLOURS[name], label=name)
    axes.set(xlabel="perplexity of a document", ylabel="share of the documents", xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="lower right")
    return [("Perplexity by document", figure)]


def _models(comparison: Comparison) -> dict[str, Any]:
    models = {"candidate": comparison.candidate, "champion": comparison.champion}
    return {name: scores for name, scores in models.items() if scores is not None}


def _classification(comparison: Comparison) -> list[tuple[str, Figure]]:
    return [
        ("ROC curve", _roc(comparison)),
        ("Precision and recall", _precision(comparison)),
        ("Calibration", _calibration(comparison)),
        ("Scores by label", _spread(comparison)),
    ]


def _roc(comparison: Comparison) -> Figure:
    from sklearn.metrics import roc_curve  # half a second of imports, that a ranking does without

    figure, axes = _axes()
    for name, scores in _models(comparison).items():
        false_rate, true_rate, _ = roc_curve(comparison.labels > 0, scores)
        axes.plot(*_thinned(false_rate, true_rate), color=COLOURS[name], label=name)
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", label="chance")
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.legend(loc="lower right")
    return figure


def _precision(comparison: Comparison) -> Figure:
    from sklearn.metrics import precision_recall_curve

    figure, axes = _axes()
    for name, scores in _models(comparison).items():
        precision, recall, _ = precision_recall_curve(comparison.labels > 0, scores)
        axes.plot(*_thinned(recall, precision), color=COLOURS[name], label=name)
    axes.axhline(float((comparison.labels > 0).mean()), color=SOFT, linestyle="--", label="chance")
    axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.02))
    axes.legend(loc="upper right")
    return figure


def _calibration(comparison: Comparison) -> Figure:
    from sklearn.calibration import calibration_curve

    figure, axes = _axes()
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", label="perfect")
    reach = 0.0
    for name, scores in _models(comparison).items():
        observed, predicted = calibration_curve(
            comparison.labels > 0, probabilities(scores), n_bins=CALIBRATION_BINS, strategy="quantile"
        )
        axes.plot(predicted, observed, color=COLOURS[name], label=name, marker="o", markersize=3)
        reach = max(reach, *observed, *predicted)
    reach = min(1.0, 1.05 * reach)
    axes.set(xlabel="predicted probability", ylabel="share that is positive", xlim=(0, reach), ylim=(0, reach))
    axes.legend(loc="upper left")
    return figure


def _spread(comparison: Comparison) -> Figure:
    figure, axes = _axes()
    probability = probabilities(comparison.candidate)
    bins = np.linspace(0, 1, 31).tolist()
    for positive, colour in ((False, CHAMPION), (True, CANDIDATE)):
        share = probability[(comparison.labels > 0) == positive]
        label = f"label {int(positive)} ({len(share):,} rows)"
        axes.hist(share, bins, density=True, color=colour, alpha=0.55, label=label)
    axes.set(xlabel="candidate's probability", ylabel="density")
    axes.legend(loc="upper right")
    return figure


def _ranking(comparison: Comparison) -> list[tuple[str, Figure]]:
    return [("NDCG by depth", _depths(comparison)), _per_query(comparison)]


def _depths(comparison: Comparison) -> Figure:
    figure, axes = _axes()
    cutoff = cutoff_of(comparison.metric) or CUTOFF
    longest = int(np.diff(comparison.offsets).max())
    cutoffs = range(1, min(MAX_CUTOFF, max(longest, cutoff)) + 1)
    for name, scores in _models(comparison).items():
        values = [np.nanmean(ndcg(comparison.labels, scores, comparison.offsets, k)) for k in cutoffs]
        axes.plot(cutoffs, values, color=COLOURS[name], label=name, marker="o", markersize=3)
    axes.axvline(cutoff, color=SOFT, linestyle="--")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="K, documents from the top", ylabel="NDCG@K")
    axes.legend(loc="lower right")
    return figure


def _per_query(comparison: Comparison) -> tuple[str, Figure]:
    figure, axes = _axes()
    cutoff = cutoff_of(comparison.metric) or CUTOFF
    values = ndcg(comparison.labels, comparison.candidate, comparison.offsets, cutoff)
    if comparison.champion is None:
        axes.hist(values[np.isfinite(values)], np.linspace(0, 1, 31).tolist(), color=CANDIDATE)
        axes.set(xlabel=f"NDCG@{cutoff} of a query", ylabel="queries")
        return "Quality per query", figure
    difference = values - ndcg(comparison.labels, comparison.champion, comparison.offsets, cutoff)
    difference = difference[np.isfinite(difference)]
    # Not one bar that dwarfs all others: most queries may come out the same.
    changed = difference[np.abs(difference) > 1e-9]
    edge = max(float(np.abs(changed).max(initial=0)), 0.01)
    bins = np.linspace(-edge, edge, 41).tolist()
    axes.hist(changed[changed > 0], bins, color=CANDIDATE)
    axes.hist(changed[changed < 0], bins, color=CHAMPION)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel=f"difference in NDCG@{cutoff}; right: candidate better", ylabel="queries")
    better, worse = int((changed > 0).sum()), int((changed < 0).sum())
    return f"Per query: {better:,} better, {worse:,} worse, {len(difference) - len(changed):,} the same", figure


def _thinned(*curves: Any) -> list[Any]:
    """Thin out curves: a million points draw the same line as some hundreds, in a page of 40 MB."""
    kept = np.unique(np.linspace(0, len(curves[0]) - 1, MAX_POINTS).astype(np.int64))
    return [curve[kept] for curve in curves]


def _training(history: Sequence[Mapping[str, float]], metric: str) -> tuple[str, Figure]:
    figure, axes = _axes()
    epochs = [record["epoch"] for record in history]
    # A script of the recipe's own need not tell it.
    losses = [(record["epoch"], record["train_loss"]) for record in history if "train_loss" in record]
    axes.plot(*np.reshape(losses, (-1, 2)).T, color=CHAMPION, marker="o", markersize=4)
    axes.set(xlabel="epoch", ylabel="training loss")
    axes.yaxis.label.set_color(CHAMPION)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    other = axes.twinx()
    values = [record["validation_metric"] for record in history]
    # Both scales are their own: of two epochs the lines may lie on each other.
    other.plot(epochs, values, color=CANDIDATE, marker="o", markersize=4, linestyle="--")
    other.set_ylabel(f"validation {named(metric)}", color=CANDIDATE, labelpad=10)
    other.grid(visible=False)
    return "Training", figure


def _axes() -> tuple[Figure, Axes]:
    # Not pyplot: its figures live until they are closed.
    figure = Figure(layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    svg = text[text.index("<svg") :]
    for colour, value in CSS_COLOURS.items():
        svg = svg.replace(colour, value)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px; font-family: inherit", svg)
    # The page sets the width; the viewBox keeps the proportions.
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"',
        r"<svg \1",
        re.sub(r'(<svg [^>]*?)height="[^"]*" ?', r"\1", svg, count=1),
        count=1,
    )
