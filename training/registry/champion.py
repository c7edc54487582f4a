"""The model now in production, with the way back to its data and code."""

from __future__ import annotations

from dataclasses import dataclass

from mlops_provider.refs import CheckpointRef
from mlops_provider.stages import CHAMPION
from mlops_provider.step import BadConfigError
from training.registry.versions import report_of
from training.tracking.model_registry import ModelRegistry


@dataclass(frozen=True, kw_only=True, slots=True)
class Champion:
    """A version in the registry and the checkpoint it was made from."""

    version: str
    checkpoint: CheckpointRef


def find_champion(registry: ModelRegistry) -> Champion | None:
    """
    The version in production.

    :return: None where nothing is in production yet
    :raises BadConfigError: where that version was not registered by this pipeline, and so cannot be scored
    """
    version = registry.version_of_alias(CHAMPION)
    if version is None:
        return None
    try:
        report = report_of(registry, version)
    except BadConfigError as error:
        raise BadConfigError(
            f"{error}, and it has the alias {CHAMPION!r}. Put a version of this pipeline in its place: "
            f"mlops models promote {registry.name} VERSION --why ..."
        ) from error
    return Champion(version=version, checkpoint=report.parent)
