"""Stored features opened again: the code they were made with, their fitted state, and the rows held out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from mlops_provider.refs import DatasetRef, FeaturesRef
from mlops_provider.step import BadConfigError, BadDataError
from training.code import load_bundled
from training.data.shards import FeatureTable
from training.data.snapshots import Snapshot
from training.features.feature_set import FeatureSet
from training.features.transforms import State
from training.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedFeatures:
    """A feature set with the state it was fitted to: raw rows in, model inputs out."""

    feature_set: FeatureSet
    state: State
    manifest: Mapping[str, Any]

    @property
    def feature_names(self) -> list[str]:
        return list(self.manifest["feature_names"])

    def apply(self, frame: pl.DataFrame) -> FeatureTable:
        """Model inputs of raw rows; see :meth:`FeatureSet.apply`."""
        table = self.feature_set.apply(frame, self.state)
        assert table.num_features == len(self.feature_names), "the bundled code makes the features of the manifest"
        return table

    def rows(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The raw rows in exactly the number and order of ``apply``'s rows."""
        return self.feature_set.arrange(frame)


def as_feature_set(value: object, import_path: str) -> FeatureSet:
    """:raises BadConfigError: where what was imported is something else"""
    if not isinstance(value, FeatureSet):
        raise BadConfigError(
            f"{import_path!r} is a {type(value).__name__}, not a FeatureSet; "
            "write FEATURES = FeatureSet(...) from training.features.feature_set"
        )
    return value


def load_fitted(store: Store, ref: FeaturesRef, scratch: Path) -> FittedFeatures:
    """
    Open the features of a ref with the code that made them, whatever the checkout holds now.

    :param scratch: folder for the unpacked code; must stay as long as the features are in use
    :raises DamagedObjectError: where a stored object is missing or not the one that was written
    """
    manifest = read_manifest(store, ref)
    import_path = manifest["feature_set"]
    code = load_bundled(store.read(ref.artifacts["code"]), import_path, scratch)
    return FittedFeatures(
        feature_set=as_feature_set(code, import_path),
        state=json.loads(store.read(ref.artifacts["state"])),
        manifest=manifest,
    )


def held_out(store: Store, ref: FeaturesRef, split: str = "test") -> pl.DataFrame:
    """
    Raw rows of a split, from the snapshot that the features were made of.

    :raises BadDataError: where the features have no such split
    """
    splits = read_manifest(store, ref)["splits"]
    if split not in splits:
        raise BadDataError(f"the features at {ref.place} have no split {split!r}, only {', '.join(splits)}")
    return Snapshot.open(store, ref.ancestor(DatasetRef)).read(splits[split]["days"])


def read_manifest(store: Store, ref: FeaturesRef) -> dict[str, Any]:
    """The features' manifest: feature names, grouping, splits with their days and shards."""
    manifest: dict[str, Any] = json.loads(store.read(ref.artifacts["manifest"]))
    return manifest
