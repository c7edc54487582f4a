"""Figures of a classification by several labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from mlops.contract.objective_settings import MultilabelSettings
from mlops.metrics.binary import auc, probabilities
from mlops.metrics.classes import CALIBRATION_BINS
from mlops.metrics.predictions import Predictions
from mlops.objectives.figures.axes import SOFT, Numbers, colour_of, mean_parts, new_axes, new_bars

Models = Mapping[str, Predictions]
MOST_LABELS: Final = 20
"""Labels that are shown, those that the candidate is worst at."""


def figures(models: Models, metric: str) -> list[tuple[str, Figure]]:
    """Draw how well rows with each label are told from those without, what is found of it, and whether probabilities
    hold."""
    found = [
        ("F1 of each label", _by_label(models, _f1, "F1")),
        ("Area under the ROC curve of each label", _by_label(models, _auc, "AUC")),
        ("Calibration, all labels together", _calibration(models)),
    ]
    return [(title, figure) for title, figure in found if figure is not None]


def _by_label(models: Models, measure: Callable[[Predictions], Numbers], axis: str) -> Figure | None:
    """Bars of the candidate, marks of the champion; the worst at the top. None where nothing can be measured."""
    settings = models["candidate"].settings
    assert isinstance(settings, MultilabelSettings), "of this objective"
    values = {name: measure(each) for name, each in models.items()}
    positive = (models["candidate"].labels > 0).sum(axis=0)
    shown = [
        number for number in np.argsort(values["candidate"], kind="stable") if np.isfinite(values["candidate"][number])
    ]
    if not shown:
        return None
    shown = shown[:MOST_LABELS]
    names = [f"{settings.labels[number]} ({positive[number]:,} rows)" for number in shown]
    champion = values["champion"][shown] if "champion" in values else None
    figure, axes = new_bars(names, values["candidate"][shown], champion)
    axes.set(xlabel=axis, xlim=(0, 1.02))
    return figure


def _f1(model: Predictions) -> Numbers:
    actual, predicted = model.labels > 0, model.predicted > 0
    right, counted = 2.0 * (actual & predicted).sum(axis=0), actual.sum(axis=0) + predicted.sum(axis=0)
    found: Numbers = np.divide(right, counted, out=np.full(len(right), np.nan), where=counted > 0)
    return found


def _auc(model: Predictions) -> Numbers:
    return np.array([auc(labels, scores) for labels, scores in zip(model.labels.T, model.predicted.T, strict=True)])


def _calibration(models: Models) -> Figure:
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", label="perfect")
    for name, each in models.items():
        probability, happened = probabilities(each.predicted).reshape(-1), each.labels.reshape(-1) > 0
        means = mean_parts(probability, happened, CALIBRATION_BINS)
        axes.plot(*means, color=colour_of(name), label=name, marker="o", markersize=3)
    axes.set(xlabel="predicted probability", ylabel="share that is positive", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left")
    return figure
