"""Pictures of a study."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import matplotlib as mpl
import optuna
from matplotlib import pyplot
from matplotlib.figure import Figure
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState
from optuna.visualization import matplotlib as plots

from mlops.tuning.study import Study

_SIZE: Final = (9.0, 5.0)
_ALL: Final[Mapping[str, Callable[..., Any]]] = {
    "history.png": plots.plot_optimization_history,
    "importance.png": plots.plot_param_importances,
    "parallel_coordinates.png": plots.plot_parallel_coordinate,
}


def draw_plots(study: Study, metric: str) -> dict[str, bytes]:
    """
    PNG files by name: the course of the study, which settings matter, and which go together.

    Only the first where there is nothing to compare: fewer than two complete trials, or all of one value.
    """
    mpl.use("agg")
    trials = study.by_number()
    values = {trial.value for trial in trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))}
    names = list(_ALL) if len(values) > 1 else ["history.png"]
    return {name: _draw(_ALL[name], trials, metric) for name in names}


def _draw(plot: Callable[..., Any], trials: optuna.Study, metric: str) -> bytes:
    named = {} if plot is plots.plot_param_importances else {"target_name": metric}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        figure: Figure = plot(trials, **named).figure
    figure.set_size_inches(_SIZE)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return png.getvalue()
