"""Features: fit the feature set on the training split, materialise every split, store shards, state and code."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

from mlops_provider.refs import DatasetRef, FeaturesRef, ValidationRef, canonical_json
from training.code import bundle, load_attribute, recipe_folder
from training.data.engine import Engine, read_snapshot
from training.data.snapshots import Snapshot
from training.data.splits import SPLITS
from training.features.applied import FittedFeatures
from training.features.batches import batches_of
from training.features.fitted import as_feature_set, version
from training.features.fitting import fit
from training.features.materialise import check_stored, materialise
from training.features.release import engine
from training.steps import StepContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeaturesConfig:
    """The section ``features`` of the pipeline."""

    feature_set: str
    online: Mapping[str, Any] | None


def run(context: StepContext) -> FeaturesRef:
    config = FeaturesConfig(**context.config)
    parent = context.input.ref
    assert isinstance(parent, ValidationRef), "features follow a validation"
    home = context.deployment.home
    features = as_feature_set(load_attribute(config.feature_set, home), config.feature_set)
    code = context.publish("code.zip", bundle(recipe_folder(home, config.feature_set)))

    snapshot = Snapshot.open(context.store, parent.ancestor(DatasetRef))
    made_by = cast(Engine, snapshot.manifest.engine)
    with ExitStack() as stack:
        splits = {}
        for name in SPLITS:
            table = read_snapshot(snapshot, name, engine=made_by, cache=context.scratch)
            splits[name] = stack.enter_context(batches_of(table, features.group_by))
        fitted = FittedFeatures(features, fit(features, splits["train"]))
        keys = {f"key.{column}": column for column in features.entity}
        if keys:
            keys["event_time"] = snapshot.manifest.event_time
        parts, num_checked = {}, 0
        for name, batches in splits.items():
            parts[name] = materialise(context.store, context.place, name, fitted, batches, keys)
            num_checked += check_stored(context.store, parts[name], fitted, batches, context.scratch)
    logger.info("serving parity: %d samples of all splits, served alone, equal the stored ones", num_checked)

    manifest = {
        "feature_set": config.feature_set,
        "feature_names": fitted.feature_names,
        "grouped": features.grouped,
        "event_time": snapshot.manifest.event_time,
        "timezone": snapshot.manifest.timezone,
        "engine": engine(),
        "splits": parts,
    }
    ref = FeaturesRef(
        place=context.place,
        artifacts={
            "manifest": context.publish("manifest.json", canonical_json(manifest)),
            "state": context.publish("state.json", canonical_json(fitted.state)),
            "code": code,
        },
        version=version(code.sha256, fitted),
        num_features=len(fitted.feature_names),
        num_samples={name: part["num_samples"] for name, part in parts.items()},
        parent=parent,
    )
    if config.online is not None:
        from training.feature_store.repository import OnlineConfig, publish  # Feast takes a second to import

        publish(context.store, ref, pipeline=context.run.pipeline, online=OnlineConfig(**config.online))
    return ref
