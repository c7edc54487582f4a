"""A version of a registered model as people name it, and the way back from it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mlops.contract.refs import RefError, ReportRef
from mlops.contract.step import BadConfigError
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import REF_TAG, ModelRegistry


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredVersion:
    name: str
    version: str
    report: ReportRef
    """Report that the version was registered for."""


def read_version(tracking_uri: str, named: str) -> RegisteredVersion:
    """
    Read a version that a person names.

    :param named: ``MODEL/VERSION``, where the version is a number or an alias
    :raises BadConfigError: where there is none, or it was registered by other means
    :raises TrackingError: where MLflow does not answer
    """
    name, _, version = named.rpartition("/")
    if not name or not version:
        model = named.partition("@")[0].strip("/") or "flight_ranking"
        raise BadConfigError(f"{named!r} names no version; say MODEL/VERSION, for example {model}/champion")
    registry = ModelRegistry(client=connect(tracking_uri), name=name)
    if not version.isdecimal():
        found = registry.version_of_alias(version)
        if found is None:
            raise BadConfigError(f"there is no model {name!r} with an alias {version!r}; say a version's number")
        version = found
    return RegisteredVersion(name=name, version=version, report=report_of(registry, version))


def report_of(registry: ModelRegistry, version: str) -> ReportRef:
    """
    Return the report that a version was registered for.

    :raises BadConfigError: where it was registered by other means
    """
    document = registry.tags_of(version).get(REF_TAG)
    try:
        return ReportRef.from_wire(json.loads(document or "null"))
    except (RefError, ValueError) as error:
        raise BadConfigError(
            f"version {version} of model {registry.name!r} has no usable tag {REF_TAG!r} ({error}): it was registered "
            "by other means, so nothing is known of where it came from"
        ) from error
