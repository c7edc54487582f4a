"""Figures of a classification in several classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mlops.contract.objective_settings import MulticlassSettings
from mlops.metrics.classes import CALIBRATION_BINS, class_probabilities
from mlops.metrics.predictions import Predictions
from mlops.objectives.figures.axes import CANDIDATE, CHAMPION, INK, SOFT, colour_of, mean_parts, new_axes, new_bars

Models = Mapping[str, Predictions]
MOST_CLASSES: Final = 16
"""Classes that are told from each other, the most frequent ones; the others are one."""
MOST_CURVES: Final = 4
"""Classes whose probabilities are looked at one by one, the most frequent ones."""
OTHERS: Final = "others"


def figures(models: Models, metric: str) -> list[tuple[str, Figure]]:
    """Draw what is taken for what, how much of each class is found, and whether probabilities hold."""
    return [
        ("Confusion: percent of a class taken for each", _confusion(models["candidate"])),
        ("Share of each class that is found", _recall(models)),
        ("Calibration of the most probable class", _calibration(models)),
        ("Calibration of the most frequent classes, candidate", _reliability(models["candidate"])),
    ]


def _names(model: Predictions) -> list[str]:
    settings = model.settings
    assert isinstance(settings, MulticlassSettings), "of this objective"
    return settings.classes


def _frequent(model: Predictions, most: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the classes with most rows, in ascending order; no class without any."""
    counts = np.bincount(model.labels.astype(np.int64), minlength=model.predicted.shape[1])
    chosen = np.argsort(-counts, kind="stable")[:most]
    return np.sort(chosen[counts[chosen] > 0])


def _merged(model: Predictions) -> tuple[Sequence[str], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the names that are shown, and of each row the place of its class and of the predicted one."""
    kept = _frequent(model, MOST_CLASSES)
    place = np.full(model.predicted.shape[1], len(kept))
    place[kept] = np.arange(len(kept))
    labels, chosen = place[model.labels.astype(np.int64)], place[model.predicted.argmax(axis=1)]
    names = [_names(model)[number] for number in kept]
    return [*names, OTHERS] if max(labels.max(), chosen.max()) == len(kept) else names, labels, chosen


def _confusion(model: Predictions) -> Figure:
    names, labels, chosen = _merged(model)
    size = len(names)
    table = np.zeros((size, size))
    np.add.at(table, (labels, chosen), 1)
    rows = table.sum(axis=1, keepdims=True)
    shares = np.divide(table, rows, out=np.zeros_like(table), where=rows > 0)
    figure, axes = new_axes()
    for (actual, predicted), share in np.ndenumerate(shares):
        if not share:
            continue
        colour = CANDIDATE if actual == predicted else CHAMPION
        corner = (predicted - 0.5, actual - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, alpha=0.1 + 0.5 * float(share), linewidth=0))
        text = f"{100 * share:.0f}" if share >= 0.005 else "·"
        axes.text(predicted, actual, text, ha="center", va="center", color=INK, fontsize=7 if size > 10 else 9)
    turned = 90 if max(map(len, names)) * size > 48 else 0
    axes.set_xticks(range(size), names, rotation=turned)
    axes.set_yticks(range(size), names)
    axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), xlabel="predicted", ylabel="label", aspect="equal")
    return figure


def _recall(models: Models) -> Figure:
    """Bars of the candidate, marks of the champion; the classes that are found least at the top."""
    names, labels, chosen = _merged(models["candidate"])
    found = _shares(labels, labels == chosen, len(names))
    order = np.argsort(found, kind="stable")
    marks = None
    if (champion := models.get("champion")) is not None:
        right = champion.predicted.argmax(axis=1) == champion.labels
        marks = _shares(labels, right, len(names))[order]
    rows = np.bincount(labels, minlength=len(names))
    figure, axes = new_bars([f"{names[place]} ({rows[place]:,} rows)" for place in order], found[order], marks)
    axes.set(xlabel="share that is found", xlim=(0, 1.02))
    return figure


def _shares(classes: npt.NDArray[np.int64], right: npt.NDArray[np.bool_], size: int) -> npt.NDArray[np.float64]:
    rows = np.bincount(classes, minlength=size)
    return np.bincount(classes, right, size) / np.maximum(rows, 1)


def _calibration(models: Models) -> Figure:
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", label="perfect")
    for name, each in models.items():
        probability = class_probabilities(each.predicted).max(axis=1)
        observed = each.predicted.argmax(axis=1) == each.labels
        means = mean_parts(probability, observed, CALIBRATION_BINS)
        axes.plot(*means, color=colour_of(name), label=name, marker="o", markersize=3)
    axes.set(xlabel="probability of the most probable class", ylabel="share that is right", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left")
    return figure


def _reliability(model: Predictions) -> Figure:
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", label="perfect")
    probabilities = class_probabilities(model.predicted)
    for number, style in zip(_frequent(model, MOST_CURVES), ("-", "--", ":", "-."), strict=False):
        predicted, observed = mean_parts(probabilities[:, number], model.labels == number, CALIBRATION_BINS)
        label = _names(model)[number]
        axes.plot(predicted, observed, color=CANDIDATE, linestyle=style, marker="o", markersize=3, label=label)
    axes.set(xlabel="predicted probability", ylabel="share of that class", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left")
    return figure
