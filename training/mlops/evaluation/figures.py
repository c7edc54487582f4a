"""The figures of the report, as SVG that takes the page's colours, light or dark, and its font."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mlops.evaluation.comparison import Comparison
from mlops.objectives.figures.axes import CANDIDATE, CHAMPION, INK, SOFT, new_axes, new_bars

CSS_COLOURS: Final = {
    INK: "currentColor",
    SOFT: "var(--line)",
    CANDIDATE: "var(--candidate)",
    CHAMPION: "var(--champion)",
}
MOST_NAMES: Final = 12
"""Columns or features of which something is drawn, the first."""
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    # A name with dollars is no formula.
    "text.parse_math": False,
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


def draw(comparison: Comparison, history: Sequence[Mapping[str, float]], metric: str) -> list[tuple[str, str]]:
    """
    Draw the figures of the report, and return the title and SVG of each.

    :param history: of the candidate's training, by epoch
    :param metric: name for people of the metric that chose the best epoch
    """
    with mpl.rc_context(STYLE):
        figures = [
            *comparison.figures(),
            *_columns(comparison.column_importance, comparison.measured.estimate(None).title),
            *_features(comparison.feature_importance),
            *([] if taken_as_it_is(history) else [_training(history, metric)]),
        ]
        return [(title, _svg(figure)) for title, figure in figures]


def _features(by_model: Mapping[str, Mapping[str, float]]) -> list[tuple[str, Figure]]:
    """Draw what the models look at; nothing where the candidate's learner does not say, or it looks at nothing."""
    if not by_model.get("candidate"):
        return []
    return [_by_name(by_model, "What predictions rest on", "share of what all features contribute")]


def _columns(by_model: Mapping[str, Mapping[str, float]], metric: str) -> list[tuple[str, Figure]]:
    """Draw what the metric loses where a column is shuffled. A single column has nothing to be compared with."""
    if len({name for values in by_model.values() for name in values}) < 2:
        return []
    return [_by_name(by_model, "What is lost where a column is shuffled", f"{metric} lost")]


def _by_name(by_model: Mapping[str, Mapping[str, float]], title: str, label: str) -> tuple[str, Figure]:
    """Draw a number for each name: bars of the candidate, marks of the champion."""
    candidate, champion = by_model.get("candidate", {}), by_model.get("champion", {})
    names = sorted({*candidate, *champion}, key=lambda name: -max(candidate.get(name, 0.0), champion.get(name, 0.0)))
    first = names[:MOST_NAMES]
    bars = np.array([candidate.get(name, 0.0) for name in first])
    marks = np.array([champion.get(name, np.nan) for name in first]) if champion else None
    figure, axes = new_bars(first, bars, marks)
    axes.locator_params(axis="x", nbins=6)
    axes.set(xlabel=label)
    return title + (f"; {MOST_NAMES} of {len(names)}" if len(names) > MOST_NAMES else ""), figure


def taken_as_it_is(history: Sequence[Mapping[str, float]]) -> bool:
    """Whether a model was not trained here: its weights were brought, and measured."""
    return history[-1]["epoch"] == 0


def _training(history: Sequence[Mapping[str, float]], metric: str) -> tuple[str, Figure]:
    figure, axes = new_axes()
    epochs = [record["epoch"] for record in history]
    # A script of the recipe's own need not report it, and a learner need not know it.
    losses = [(record["epoch"], loss) for record in history if (loss := record.get("train_loss")) is not None]
    axes.plot(*np.reshape(losses, (-1, 2)).T, color=CHAMPION, marker="o", markersize=4)
    axes.set(xlabel="epoch", ylabel="training loss")
    axes.yaxis.label.set_color(CHAMPION)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    other = axes.twinx()
    values = [record["validation_metric"] for record in history]
    # Both scales are their own: of two epochs the lines may lie on each other.
    other.plot(epochs, values, color=CANDIDATE, marker="o", markersize=4, linestyle="--")
    other.set_ylabel(f"validation {metric}", color=CANDIDATE, labelpad=10)
    other.grid(visible=False)
    return "Training", figure


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
