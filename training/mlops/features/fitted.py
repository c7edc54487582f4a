"""Open stored features again: the code that made them, their fitted state, their version, the rows held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from mlops.code import load_bundled
from mlops.contract.refs import DatasetRef, FeaturesRef, digest_of
from mlops.contract.step import BadConfigError
from mlops.data.snapshots.snapshot import Snapshot
from mlops.features.applied import FittedFeatures
from mlops.features.feature_set import FeatureSet
from mlops.features.release import check_engine, engine
from mlops.store import Store


def as_feature_set(value: object, import_path: str) -> FeatureSet:
    """
    Check that an imported object is a feature set.

    :raises BadConfigError: if it is something else
    """
    if not isinstance(value, FeatureSet):
        raise BadConfigError(
            f"{import_path!r} is a {type(value).__name__}, not a FeatureSet; "
            "write FEATURES = FeatureSet(...) from mlops, or for text "
            "TokenSet(...) from mlops.features.token_set"
        )
    return value


def load_fitted(store: Store, ref: FeaturesRef, scratch: Path) -> FittedFeatures:
    """
    Open the features of a ref with the code that made them, whatever the checkout holds now.

    :param scratch: folder for the unpacked code; must stay as long as the features are in use
    :raises DamagedObjectError: where a stored object is missing or not the one that was written
    :raises BadConfigError: where they were made with another engine or release, so that values could differ
    """
    manifest = read_manifest(store, ref)
    check_engine(f"the features at {ref.place}", manifest.get("engine", {}))
    import_path = manifest["feature_set"]
    code = ref.artifacts["code"]
    features = as_feature_set(load_bundled(store.read(code), import_path, scratch), import_path)
    fitted = FittedFeatures(features, json.loads(store.read(ref.artifacts["state"])))
    check_version(ref, fitted)
    return fitted


def check_version(ref: FeaturesRef, fitted: FittedFeatures) -> None:
    """:raises BadConfigError: where the code and the state of a ref make another version than it has"""
    if (now := version(ref.artifacts["code"].sha256, fitted)) != ref.version:
        raise BadConfigError(
            f"the features at {ref.place} are version {ref.version[:12]}, but their code and state make {now[:12]} "
            "with this release; run the features step and train again"
        )


def version(code_sha256: str, fitted: FittedFeatures) -> str:
    """Return SHA-256 of all that decides the meaning of a feature column: code, state schema, engine."""
    schema = [[part["transform"], sorted(part)] for part in fitted.state["transforms"]]
    return digest_of([code_sha256, fitted.feature_names, fitted.state["columns"], schema, engine()])


def held_out(store: Store, ref: FeaturesRef, split: str = "test") -> pl.DataFrame:
    """
    Return the raw rows of a split, from the snapshot that the features were made of.

    :raises BadDataError: where the snapshot has no such split
    """
    return Snapshot.open(store, ref.ancestor(DatasetRef)).read_split(split)


def read_manifest(store: Store, ref: FeaturesRef) -> dict[str, Any]:
    """Read the features' manifest: feature names, grouping, splits with their shards."""
    manifest: dict[str, Any] = json.loads(store.read(ref.artifacts["manifest"]))
    return manifest
