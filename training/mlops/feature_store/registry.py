"""Feast's registry in the object store: one immutable object per publication, of which the last by name counts."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from feast.infra.registry.registry_store import RegistryStore
from feast.protos.feast.core.Registry_pb2 import Registry
from feast.repo_config import RegistryConfig

from mlops.store import Store
from mlops.store_errors import DamagedObjectError

FOLDER: Final = "feature_store"
AS_OF_TAG: Final = "as_of"
"""Tag of a feature view: end of the data interval whose features it has, ISO 8601, UTC."""


def registry_path(store: Store, pipeline: str) -> str:
    """Return ``RegistryConfig.path`` for :class:`ObjectRegistryStore`."""
    return f"{store.uri.rstrip('/')}/{FOLDER}/{pipeline}"


def published_pipelines(store: Store) -> list[str]:
    """List the pipelines that have features in the feature store."""
    return sorted({key.split("/")[1] for key in store.list(FOLDER) if key.split("/")[2:3] == ["registry"]})


def newest_registry(store: Store, pipeline: str) -> Registry | None:
    """
    Return the registry of the latest night; None if nothing was published.

    :raises DamagedObjectError: where its bytes are not those that were written
    """
    keys = list(store.list(f"{FOLDER}/{pipeline}/registry"))
    if not keys:
        return None
    data = store.get(keys[-1])
    if hashlib.sha256(data).hexdigest()[:12] != keys[-1].split(".")[-2]:
        raise DamagedObjectError(
            f"{keys[-1]} in {store.uri} is damaged; restore it from a backup, or delete it: the night before it then "
            f"counts until {pipeline} publishes its next one"
        )
    registry = Registry()
    registry.ParseFromString(data)
    return registry


class ObjectRegistryStore(RegistryStore):
    """
    Feast's registry as objects of the store. Nothing is ever overwritten, and names begin with the night: whichever of
    two nights that publish at once writes last, the later night is what a reader finds.
    """

    def __init__(self, registry_config: RegistryConfig, repo_path: Path | None) -> None:
        root, _, self._pipeline = registry_config.path.rpartition(f"/{FOLDER}/")
        self._store = Store(root)

    def get_registry_proto(self) -> Registry:
        return newest_registry(self._store, self._pipeline) or Registry()

    def update_registry_proto(self, registry_proto: Registry) -> None:
        nights = list(_nights(registry_proto))
        if not nights:
            return  # the empty registry with which Feast starts
        now = datetime.now(UTC)
        registry_proto.last_updated.FromDatetime(now)
        # Feast remembers what it read by the proto's address and this: without it, a changed proto, or another one at
        # the same address, is answered from what was read before.
        registry_proto.version_id = str(uuid.uuid4())
        name = f"{max(nights):%Y%m%dT%H%M%SZ}-{now:%Y%m%dT%H%M%S%f}.pb"
        place = f"{FOLDER}/{self._pipeline}/registry"
        self._store.put_artifact(place, name, registry_proto.SerializeToString(deterministic=True))

    def teardown(self) -> Any:
        raise NotImplementedError("published features are not torn down: their nights are immutable")


def _nights(registry: Registry) -> Iterator[datetime]:
    for view in registry.feature_views:
        if AS_OF_TAG in view.spec.tags:
            yield datetime.fromisoformat(view.spec.tags[AS_OF_TAG]).astimezone(UTC)
