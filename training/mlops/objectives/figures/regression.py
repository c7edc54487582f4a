"""Figures of a regression: predictions against labels, residuals, and the calibration of quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from mlops.contract.objective_settings import RegressionSettings
from mlops.metrics.predictions import Predictions
from mlops.metrics.regression import point
from mlops.objectives.figures.axes import CANDIDATE, SOFT, colour_of, new_axes

Models = Mapping[str, Predictions]
MAX_POINTS: Final = 400
"""Rows that are drawn as points."""
NUM_BINS: Final = 12
"""Parts of equal counts, by prediction, whose means are compared."""
TAIL: Final = 0.5
"""Percent of the residuals that are left out of the histogram at each end."""


def figures(models: Models, metric: str) -> list[tuple[str, Figure]]:
    """Draw how near the predictions are to the labels, and whether quantiles hold."""
    found = [("Predicted and actual", _against(models)), _residuals(models)]
    if any(_quantiles(each) for each in models.values()):
        found.append(("Calibration of the quantiles", _calibration(models)))
    return found


def _against(models: Models) -> Figure:
    """Points are rows of the candidate; lines are the means of rows of about equal predictions."""
    figure, axes = new_axes()
    candidate = models["candidate"]
    # The same rows each time that the report is made.
    rows = np.random.default_rng(0).permutation(candidate.num_rows)[:MAX_POINTS]
    axes.scatter(point(candidate)[rows], candidate.labels[rows], s=6, color=CANDIDATE, alpha=0.25, linewidths=0)
    for name, each in models.items():
        predicted, actual = _means(each)
        axes.plot(predicted, actual, color=colour_of(name), label=f"{name}, mean", marker="o", markersize=3)
    shown = np.concatenate([point(candidate)[rows], candidate.labels[rows]])
    low, high = np.percentile(shown, [1, 99]) if len(shown) else (0.0, 1.0)
    margin = 0.05 * (high - low) or 1.0
    limits = (low - margin, high + margin)
    axes.plot(limits, limits, color=SOFT, linestyle="--", label="perfect")
    axes.set(xlabel="prediction", ylabel="label", xlim=limits, ylim=limits)
    axes.legend(loc="upper left")
    return figure


def _means(model: Predictions) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    predicted = point(model).astype(np.float64)
    parts = np.array_split(np.argsort(predicted, kind="stable"), min(NUM_BINS, model.num_rows))
    return np.array([predicted[part].mean() for part in parts]), np.array([model.labels[part].mean() for part in parts])


def _residuals(models: Models) -> tuple[str, Figure]:
    figure, axes = new_axes()
    residuals = {name: point(each).astype(np.float64) - each.labels for name, each in models.items()}
    together = np.concatenate(list(residuals.values()))
    # Outwards to a residual that there is: of a few rows all are shown.
    low, high = np.percentile(together, TAIL, method="lower"), np.percentile(together, 100 - TAIL, method="higher")
    if low == high:
        margin = 0.05 * abs(low) or 1.0
        low, high = low - margin, high + margin
    bins = np.linspace(low, high, 41).tolist()
    for name, values in residuals.items():
        axes.hist(values, bins, density=True, histtype="step", color=colour_of(name), label=name, linewidth=1.4)
    axes.axvline(0, color=SOFT, linestyle="--")
    axes.set(xlabel="prediction less label", ylabel="density")
    axes.legend(loc="best")
    return f"Residuals; {100 - 2 * TAIL:g}% of them are shown", figure


def _quantiles(model: Predictions) -> list[float]:
    return model.settings.quantiles if isinstance(model.settings, RegressionSettings) else []


def _calibration(models: Models) -> Figure:
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", label="perfect")
    for name, each in models.items():
        if levels := _quantiles(each):
            below = each.labels[:, None] <= each.predicted.reshape(each.num_rows, -1)
            axes.plot(levels, below.mean(axis=0), color=colour_of(name), label=name, marker="o", markersize=4)
    axes.set(xlabel="level of the quantile", ylabel="share of labels not above it", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left")
    return figure
