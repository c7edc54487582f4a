"""A training as it was, read back from the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mlops.contract.refs import INPUT, CheckpointRef, FeaturesRef, Ref
from mlops.contract.step import StepInput
from mlops.contract.training_difference import kept_artifact
from mlops.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """A checkpoint, with the inputs of its steps and the environment that they ran in."""

    checkpoint: CheckpointRef
    features: FeaturesRef
    train_input: StepInput
    features_input: StepInput
    environment: Mapping[str, Any]
    """Environment of the training, see :func:`read_environment`."""
    patch: bytes
    """Patch of the code that was not committed; empty if all was, or if it was too large to be kept."""

    @property
    def trained_recipe(self) -> str:
        """Import path of something in the recipe that was trained: its model or, where it has none, its features."""
        return str(self.train_input.config["model"] or self.features_input.config["feature_set"])

    @classmethod
    def read(cls, store: Store, checkpoint: CheckpointRef) -> Self:
        """
        Read a training from the store.

        :raises DamagedObjectError: naming the object that is missing or not what was written
        :raises BadConfigError: if a release made it that did not keep all of this
        """
        features = checkpoint.ancestor(FeaturesRef)
        patch = checkpoint.artifacts.get("patch")
        return cls(
            checkpoint=checkpoint,
            features=features,
            train_input=_input(store, checkpoint),
            features_input=_input(store, features),
            environment=read_environment(store, checkpoint),
            patch=store.read(patch) if patch else b"",
        )

    @property
    def commit(self) -> str:
        """Commit of the code, even if the code had changes; ``unknown`` if it ran outside of a repository."""
        return str(self.environment["git_commit"]).removesuffix("-dirty")

    @property
    def other_environments(self) -> list[str]:
        """In words, how those differ that other processes of the training ran in, which was interrupted."""
        return [said for other in self.environment.get("other_environments", ()) for said in other["differences"]]

    @property
    def changed_files(self) -> list[str]:
        """Files of code that were not committed, by their path in the repository."""
        return list(self.environment["changed_files"])


def read_environment(store: Store, checkpoint: CheckpointRef) -> Mapping[str, Any]:
    """Read the environment of a training, see :func:`mlops.trainer.environment.gang_environment`."""
    found: Mapping[str, Any] = json.loads(_read(store, checkpoint, "environment"))
    return found


def _input(store: Store, ref: Ref) -> StepInput:
    return StepInput.load(_read(store, ref, INPUT).decode())


def _read(store: Store, ref: Ref, name: str) -> bytes:
    return store.read(kept_artifact(ref, name))
