"""A feature set fitted and applied to tables in memory, as the features step does to a snapshot's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from mlops.data.shards.feature_table import FeatureTable
from mlops.features import fitting
from mlops.features.applied import FittedFeatures
from mlops.features.batches import batches_of
from mlops.features.derivation import Derivation
from mlops.features.feature_set import FeatureSet
from mlops.features.protocol import State


def fit(features: FeatureSet, rows: pl.DataFrame) -> State:
    with batches_of(rows, features.group_by) as batches:
        return fitting.fit(features, batches)


def apply(features: FeatureSet, rows: pl.DataFrame, state: State) -> FeatureTable:
    return FittedFeatures(features, state).apply(rows)


def apply_batches(features: FeatureSet, frames: Iterable[pl.DataFrame], state: State) -> Iterator[FeatureTable]:
    return FittedFeatures(features, state).apply_batches(frames)


def arrange(features: FeatureSet, rows: pl.DataFrame) -> pl.DataFrame:
    """The raw rows in exactly the number and order of the model's inputs."""
    return Derivation.of(features, rows.schema).arrange(rows).rows
