"""Features: fit the feature set on the training days, materialise every split, store shards, state and code."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from mlops_provider.refs import DatasetRef, FeaturesRef, ValidationRef, canonical_json, digest_of
from mlops_provider.step import BadDataError
from training.code import bundle, load_attribute, recipe_folder
from training.data.shards import write_split
from training.data.snapshots import Snapshot
from training.data.splits import SplitConfig, days_of
from training.features.feature_set import FeatureSet
from training.features.fitted import as_feature_set
from training.features.parity import check_parity
from training.features.transforms import State
from training.steps import StepContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeaturesConfig:
    """The section ``features`` of the pipeline."""

    feature_set: str
    split: Mapping[str, int]


def run(context: StepContext) -> FeaturesRef:
    config = FeaturesConfig(**context.config)
    split = SplitConfig(**config.split)
    parent = context.input.ref
    assert isinstance(parent, ValidationRef), "features follow a validation"
    home = context.deployment.home
    features = as_feature_set(load_attribute(config.feature_set, home), config.feature_set)
    code = bundle(recipe_folder(home, config.feature_set))

    snapshot = Snapshot.open(context.store, parent.ancestor(DatasetRef))
    days = days_of(snapshot.days, split)
    frames = {name: snapshot.read(part) for name, part in days.items()}
    state = features.fit(frames["train"])
    names = features.names(frames["train"], state)
    splits = {name: materialise(context, features, name, frames[name], state) | {"days": days[name]} for name in days}
    num_checked = check_parity(features, frames["test"], state)
    logger.info("serving parity: %d samples of the test split, served alone, equal the stored ones", num_checked)

    manifest = {
        "feature_set": config.feature_set,
        "feature_names": names,
        "grouped": features.grouped,
        "event_time": snapshot.manifest.event_time,
        "timezone": snapshot.manifest.timezone,
        "split": asdict(split),
        "splits": splits,
    }
    code_artifact = context.publish("code.zip", code)
    return FeaturesRef(
        place=context.place,
        artifacts={
            "manifest": context.publish("manifest.json", canonical_json(manifest)),
            "state": context.publish("state.json", canonical_json(state)),
            "code": code_artifact,
        },
        version=version(code_artifact.sha256, names, state),
        num_features=len(names),
        num_samples={name: part["num_samples"] for name, part in splits.items()},
        parent=parent,
    )


def materialise(
    context: StepContext, features: FeatureSet, name: str, frame: pl.DataFrame, state: State
) -> dict[str, Any]:
    """Apply the feature set to a split and store its shards."""
    table = features.apply(frame, state)
    if not table.num_samples:
        raise BadDataError(f"no samples in the split {name!r} of {frame.height} rows; check where and min_group_size")
    part = write_split(context.store, context.place, name, table)
    logger.info(
        "%s: %d samples, %d of %d rows, %d features", name, table.num_samples, table.num_rows, frame.height,
        table.num_features,
    )  # fmt: skip
    return part


def version(code_sha256: str, feature_names: list[str], state: State) -> str:
    """SHA-256 of what decides the meaning of a feature column: code, state schema, engine."""
    state_schema = [sorted(part) for part in state["transforms"]]
    return digest_of([code_sha256, feature_names, state_schema, "polars", pl.__version__])
