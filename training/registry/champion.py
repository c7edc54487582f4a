"""The model now in production, with the way back to its data and code."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mlops_provider.refs import CheckpointRef, RefError, ReportRef
from mlops_provider.stages import CHAMPION
from mlops_provider.step import BadConfigError
from training.tracking.model_registry import REF_TAG, ModelRegistry


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
    document = registry.tags_of(version).get(REF_TAG)
    try:
        report = ReportRef.from_wire(json.loads(document or "null"))
    except (RefError, ValueError) as error:
        raise BadConfigError(
            f"version {version} of model {registry.name!r} has the alias {CHAMPION!r} but no usable tag {REF_TAG!r} "
            f"({error}): it was registered by other means. Put a version of this pipeline in its place: "
            f"mlops models promote {registry.name} VERSION --why ..."
        ) from error
    return Champion(version=version, checkpoint=report.parent)
