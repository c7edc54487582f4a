"""Fit a feature set: measure each batch where its rows are, add up what was measured, and fit once."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl

from mlops.contract.step import BadDataError
from mlops.features.applied import STATE_FORMAT, FittedFeatures
from mlops.features.batches import Batches
from mlops.features.derivation import Derivation
from mlops.features.feature_set import FeatureSet
from mlops.features.protocol import State
from mlops.features.running_statistics import Statistic

Measured = tuple[int, list[Statistic]]


def fit(features: FeatureSet, batches: Batches) -> State:
    """
    Learn the transforms' state from the training split, batch by batch, on either engine.

    :return: JSON: ``{"format": 2, "columns": [...], "keys": [...], "transforms": [...]}``, with one state for each
        transform
    :raises BadConfigError: with a line for each definition that does not fit the table
    :raises BadDataError: naming the column whose values do not fit its transform
    """
    derivation = Derivation.of(features, batches.schema, labelled=True)
    num_rows, statistics = 0, list[Statistic]()
    for rows, measured in batches.map(partial(measure, features)):
        num_rows += rows
        statistics = [_sum(a, b) for a, b in zip(statistics, measured, strict=True)] if statistics else measured
    if not num_rows:
        raise BadDataError("the training split has no rows to fit on; check FeatureSet.where and min_group_size")
    transforms: list[dict[str, Any]] = [
        {"transform": type(transform).__name__, "inputs": list(transform.inputs)} | transform.fit(statistic)
        for transform, statistic in zip(features.transforms, statistics, strict=True)
    ]
    # Lists, for JSON objects lose their order when keys are sorted.
    columns = [[name, str(dtype)] for name, dtype in derivation.columns.items()]
    state = {
        "format": STATE_FORMAT,
        "columns": [column for column in columns if column[0] not in derivation.keys],
        "keys": [column for column in columns if column[0] in derivation.keys],
        "transforms": transforms,
    }
    FittedFeatures(features, state)  # refuses two features of one name
    return state


def measure(features: FeatureSet, frame: pl.DataFrame) -> Measured:
    """Measure one batch; runs in an executor if the table is Spark's."""
    derivation = Derivation.of(features, frame.schema)
    rows = derivation.derive(derivation.arrange(derivation.conform(frame)).rows)
    return rows.height, [transform.measure(rows) for transform in features.transforms]


def _sum(a: Any, b: Any) -> Statistic:
    total: Statistic = None if a is None else a + b
    return total
