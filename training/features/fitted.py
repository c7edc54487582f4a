"""Stored features opened again: the code they were made with, their fitted state, their version, the rows held out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from mlops_provider.refs import DatasetRef, FeaturesRef, digest_of
from mlops_provider.step import BadConfigError
from training.code import load_bundled
from training.data.snapshots import Snapshot
from training.features.applied import STATE_FORMAT, FittedFeatures
from training.features.feature_set import FeatureSet
from training.store import Store


def as_feature_set(value: object, import_path: str) -> FeatureSet:
    """:raises BadConfigError: where what was imported is something else"""
    if not isinstance(value, FeatureSet):
        raise BadConfigError(
            f"{import_path!r} is a {type(value).__name__}, not a FeatureSet; "
            "write FEATURES = FeatureSet(...) from training.features.feature_set, or for text "
            "TokenSet(...) from training.features.token_set"
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
    _check_engine(ref, manifest.get("engine", {}))
    import_path = manifest["feature_set"]
    code = ref.artifacts["code"]
    features = as_feature_set(load_bundled(store.read(code), import_path, scratch), import_path)
    fitted = FittedFeatures(features, json.loads(store.read(ref.artifacts["state"])))
    if version(code.sha256, fitted) != ref.version:
        raise BadConfigError(
            f"the features at {ref.place} are version {ref.version[:12]}, but their code and state make "
            f"{version(code.sha256, fitted)[:12]} with this release; run the features step and train again"
        )
    return fitted


def engine() -> dict[str, str]:
    """What besides the recipe's code decides the bits of a feature."""
    return {"polars": pl.__version__, "transforms": str(STATE_FORMAT)}


def version(code_sha256: str, fitted: FittedFeatures) -> str:
    """SHA-256 of what decides the meaning of a feature column: code, state schema, engine."""
    schema = [[part["transform"], sorted(part)] for part in fitted.state["transforms"]]
    return digest_of([code_sha256, fitted.feature_names, fitted.state["columns"], schema, engine()])


def _check_engine(ref: FeaturesRef, made_with: Mapping[str, str]) -> None:
    if made_with == (here := engine()):
        return
    then, now = (", ".join(f"{name} {part[name]}" for name in sorted(part)) for part in (made_with, here))
    raise BadConfigError(
        f"the features at {ref.place} were made with {then or 'an earlier release'}, and here are {now}: a value could "
        "differ from the one that the model was trained on. Install training/requirements.txt of the release that made "
        "them, or run features and training again with this one"
    )


def held_out(store: Store, ref: FeaturesRef, split: str = "test") -> pl.DataFrame:
    """
    Raw rows of a split, from the snapshot that the features were made of.

    :raises BadDataError: where the snapshot has no such split
    """
    return Snapshot.open(store, ref.ancestor(DatasetRef)).read_split(split)


def read_manifest(store: Store, ref: FeaturesRef) -> dict[str, Any]:
    """The features' manifest: feature names, grouping, splits with their shards."""
    manifest: dict[str, Any] = json.loads(store.read(ref.artifacts["manifest"]))
    return manifest
