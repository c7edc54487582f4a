"""Stored features as a lesson. Apart from the protocol, which a served model imports: it reads no store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlops.contract.refs import FeaturesRef
from mlops.data.shards.shard_reading import open_split
from mlops.learners.learner import Lesson
from mlops.objectives.objective import LoadedObjective
from mlops.store import Store


def open_lesson(
    store: Store,
    features: FeaturesRef,
    manifest: Mapping[str, Any],
    objective: LoadedObjective,
    *,
    seed: int,
    num_threads: int,
    epochs: int,
    scratch: Path,
) -> Lesson:
    """
    Open stored features as a lesson.

    :param manifest: of the features
    :param scratch: folder for shards of a remote store
    """
    return Lesson(
        train=open_split(store, features, "train", scratch),
        validation=open_split(store, features, "validation", scratch),
        objective=objective,
        feature_names=manifest["feature_names"],
        categorical=manifest["categorical"],
        seed=seed,
        num_threads=num_threads,
        epochs=epochs,
    )
