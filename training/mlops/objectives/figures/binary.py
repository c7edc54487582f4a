"""Figures of a classification in two classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from mlops.metrics.binary import probabilities
from mlops.metrics.classes import CALIBRATION_BINS
from mlops.metrics.predictions import Predictions
from mlops.objectives.figures.axes import CANDIDATE, CHAMPION, SOFT, colour_of, new_axes

Models = Mapping[str, Predictions]
MAX_POINTS: Final = 400


def figures(models: Models, metric: str) -> list[tuple[str, Figure]]:
    """Draw what is gained and lost at each threshold, where there are both labels; and whether probabilities hold."""
    positive = models["candidate"].labels > 0
    both = bool(positive.any()) and not positive.all()
    curves = [("ROC curve", _roc(models)), ("Precision and recall", _precision(models))] if both else []
    return [*curves, ("Calibration", _calibration(models)), ("Scores by label", _spread(models))]


def _roc(models: Models) -> Figure:
    from sklearn.metrics import roc_curve  # half a second of imports, that a ranking does without

    figure, axes = new_axes()
    for name, each in models.items():
        false_rate, true_rate, _ = roc_curve(each.labels > 0, each.predicted)
        axes.plot(*_thinned(false_rate, true_rate), color=colour_of(name), label=name)
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", label="chance")
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.legend(loc="lower right")
    return figure


def _precision(models: Models) -> Figure:
    from sklearn.metrics import precision_recall_curve

    figure, axes = new_axes()
    for name, each in models.items():
        precision, recall, _ = precision_recall_curve(each.labels > 0, each.predicted)
        axes.plot(*_thinned(recall, precision), color=colour_of(name), label=name)
    axes.axhline(float((models["candidate"].labels > 0).mean()), color=SOFT, linestyle="--", label="chance")
    axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.02))
    axes.legend(loc="upper right")
    return figure


def _calibration(models: Models) -> Figure:
    from sklearn.calibration import calibration_curve

    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", label="perfect")
    reach = 0.0
    for name, each in models.items():
        observed, predicted = calibration_curve(
            each.labels > 0, probabilities(each.predicted), n_bins=CALIBRATION_BINS, strategy="quantile"
        )
        axes.plot(predicted, observed, color=colour_of(name), label=name, marker="o", markersize=3)
        reach = max(reach, *observed, *predicted)
    reach = min(1.0, 1.05 * reach)
    axes.set(xlabel="predicted probability", ylabel="share that is positive", xlim=(0, reach), ylim=(0, reach))
    axes.legend(loc="upper left")
    return figure


def _spread(models: Models) -> Figure:
    figure, axes = new_axes()
    candidate = models["candidate"]
    probability = probabilities(candidate.predicted)
    bins = np.linspace(0, 1, 31).tolist()
    for positive, colour in ((False, CHAMPION), (True, CANDIDATE)):
        share = probability[(candidate.labels > 0) == positive]
        label = f"label {int(positive)} ({len(share):,} rows)"
        # The density of no rows would be 0 / 0.
        axes.hist(share, bins, density=len(share) > 0, color=colour, alpha=0.55, label=label)
    axes.set(xlabel="candidate's probability", ylabel="density")
    axes.legend(loc="upper right")
    return figure


def _thinned(*curves: Any) -> list[Any]:
    """Thin out curves: a million points draw the same line as some hundreds, in a page of 40 MB."""
    kept = np.unique(np.linspace(0, len(curves[0]) - 1, MAX_POINTS).astype(np.int64))
    return [curve[kept] for curve in curves]
