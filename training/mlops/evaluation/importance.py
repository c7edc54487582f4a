"""
What a model rests on: by how much its metric gets worse where the values of a column are shuffled, and how much each
feature contributes to its predictions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from mlops.contract.step import StepError
from mlops.metrics.metric import Metric
from mlops.predictor.predictor import Predictor

logger = logging.getLogger(__name__)
MOST_ROWS: Final = 1_000
"""Rows that are looked at, about: it is for people to read, and decides nothing."""


def held_out_sample(model: Predictor, rows: pl.DataFrame) -> pl.DataFrame:
    """
    Return raw held-out rows of whole samples, evenly spread, about :data:`MOST_ROWS` of them.

    :param model: says what is a sample
    """
    arranged, offsets = model.samples(rows)
    step = max(1, round(arranged.height / MOST_ROWS))
    kept = np.zeros(arranged.height, bool)
    for sample in range(0, len(offsets) - 1, step):
        kept[offsets[sample] : offsets[sample + 1]] = True
    return arranged.filter(kept)


def column_importance(model: Predictor, sample: pl.DataFrame, metric: Metric) -> Mapping[str, float]:
    """
    Measure the importance of raw columns by permutation (Breiman 2001; of any model: Fisher, Rudin and Dominici 2019).

    Columns that say the same stand in for each other: each alone may then look as if it did not matter.

    :param sample: raw held-out rows, labelled
    :return: what is lost of the metric without each column, above 0 where the model is worse; empty where the model has
        no columns to shuffle, or its metric cannot be measured on so few rows
    """
    if not model.inputs or not sample.height:
        return {}
    try:
        whole = _measured(model, sample, metric)
        return {
            column: metric.direction
            * (whole - _measured(model, sample.with_columns(pl.col(column).shuffle(seed=0)), metric))
            for column in model.inputs
        }
    except StepError as error:  # of one class only, say
        logger.info("which columns the model rests on cannot be measured: %s", error)
        return {}


def feature_importance(model: Predictor, sample: pl.DataFrame) -> Mapping[str, float]:
    """
    Measure how much each feature contributes to the predictions of held-out rows, as the model's learner says.

    :param sample: raw held-out rows
    :return: shares of what all features contribute, the largest first; empty where the learner does not say, or no
        feature contributes
    """
    found = model.importance(sample) if sample.height else {}
    total = sum(found.values())
    return {name: found[name] / total for name in sorted(found, key=lambda name: -found[name])} if total > 0 else {}


def _measured(model: Predictor, rows: pl.DataFrame, metric: Metric) -> float:
    return metric.measure(model.score(rows).predictions)
