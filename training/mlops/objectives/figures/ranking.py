"""Figures of a ranking: quality by depth, and by query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mlops.contract.metrics import parts_of
from mlops.metrics.predictions import Predictions
from mlops.metrics.ranking import ndcg
from mlops.objectives.figures.axes import CANDIDATE, CHAMPION, INK, SOFT, colour_of, new_axes

Models = Mapping[str, Predictions]
CUTOFF: Final = 10
"""Cutoff for metrics that name none."""
MAX_CUTOFF: Final = 20


def figures(models: Models, metric: str) -> list[tuple[str, Figure]]:
    """Draw NDCG by depth, and how it is spread over the queries."""
    return [("NDCG by depth", _depths(models, metric)), _per_query(models, metric)]


def _cutoff(metric: str) -> int:
    name, number = parts_of(metric)
    return int(number) if name == "ndcg" else CUTOFF


def _values(model: Predictions, cutoff: int) -> npt.NDArray[np.float64]:
    return ndcg(model.labels, model.predicted, model.offsets, cutoff)


def _depths(models: Models, metric: str) -> Figure:
    figure, axes = new_axes()
    cutoff = _cutoff(metric)
    longest = int(np.diff(models["candidate"].offsets).max())
    cutoffs = range(1, min(MAX_CUTOFF, max(longest, cutoff)) + 1)
    for name, each in models.items():
        found = np.stack([_values(each, k) for k in cutoffs])
        # Not defined where no document of a query is relevant, whatever the depth.
        found = found[:, np.isfinite(found[0])]
        means = found.mean(axis=1) if found.size else np.full(len(cutoffs), np.nan)
        axes.plot(cutoffs, means, color=colour_of(name), label=name, marker="o", markersize=3)
    axes.axvline(cutoff, color=SOFT, linestyle="--")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="K, documents from the top", ylabel="NDCG@K")
    axes.legend(loc="lower right")
    return figure


def _per_query(models: Models, metric: str) -> tuple[str, Figure]:
    figure, axes = new_axes()
    cutoff = _cutoff(metric)
    values = _values(models["candidate"], cutoff)
    if "champion" not in models:
        axes.hist(values[np.isfinite(values)], np.linspace(0, 1, 31).tolist(), color=CANDIDATE)
        axes.set(xlabel=f"NDCG@{cutoff} of a query", ylabel="queries")
        return "Quality per query", figure
    difference = values - _values(models["champion"], cutoff)
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
