"""Metrics and objectives of ours for tests, by their names."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlops.metrics.metric import Metric, load_metric
from mlops.metrics.predictions import Predictions
from mlops.objectives.objective import LoadedObjective, load_objective
from mlops.testing import no_recipe


def metric_of(name: str) -> Metric:
    return load_metric(name, no_recipe)


def objective_of(name: str, **settings: Any) -> LoadedObjective:
    return load_objective(name, settings, no_recipe)


def predictions_of(labels: Any, predicted: Any, offsets: Any = None, objective: str = "ranking") -> Predictions:
    """
    :param offsets: None: each row is a sample
    """
    labels, predicted = np.asarray(labels), np.asarray(predicted)
    offsets = np.arange(len(labels) + 1) if offsets is None else np.asarray(offsets)
    return objective_of(objective).predictions(labels, predicted, offsets)


def measure(name: str, labels: Any, predicted: Any, offsets: Any = None) -> float:
    return metric_of(name).measure(predictions_of(labels, predicted, offsets))
