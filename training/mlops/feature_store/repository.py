"""One Feast repository per pipeline: its definitions, the publishing of a night, and the reading of rows."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import polars as pl
from feast import Entity, FeatureStore, FeatureView, Field, RepoConfig, ValueType
from feast.infra.passthrough_provider import PassthroughProvider
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import RegistryConfig
from feast.types import Float32, from_value_type
from feast.types import String as FeastString

from mlops.contract.refs import DatasetRef, FeaturesRef
from mlops.contract.sections.features import Online
from mlops.contract.step import BadConfigError, connection_variable, scratch_parent
from mlops.feature_store.entity_rows import CREATED, EVENT_TIME, PLACE, EntityRows, NightlyShards
from mlops.feature_store.offline import ShardsSource
from mlops.feature_store.online import NightlyOnlineStore, expired
from mlops.feature_store.registry import (
    AS_OF_TAG,
    FOLDER,
    newest_registry,
    published_pipelines,
    registry_path,
)
from mlops.store import Store

ONLINE_TAG: Final = "online"
PLACE_TAG: Final = PLACE
_BATCH_ROWS: Final = 500

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineRow:
    """The online store's row of an entity, expired or not."""

    event_time: datetime
    features_place: str
    """``FeaturesRef.place`` of the step that made the row."""
    features: Mapping[str, float]
    """Feature values with the bits of the materialised float32 values."""
    ttl: timedelta | None

    def is_expired(self, now: datetime) -> bool:
        """Return True if the row is not served any more at that time."""
        return expired(self.event_time, self.ttl, now)


def publish(store: Store, ref: FeaturesRef, *, pipeline: str, online: Online) -> int:
    """
    Make a night's rows readable: offline all of them, online the newest of each entity that is still alive.

    Killed anywhere, it leaves every entity with its old row or its new one; run again, it writes what is missing. A
    night that is older than what is published changes nothing.

    :param ref: need not be committed yet
    :return: rows written to the online store
    :raises BadConfigError: where the feature set names no entity, or the online store cannot be
    :raises BadDataError: where an entity's key is missing in a row
    """
    night = NightlyShards(
        manifest=ref.artifacts["manifest"], place=ref.place, as_of=ref.ancestor(DatasetRef).interval_end
    )
    as_of = datetime.fromisoformat(night.as_of)
    published = _published_view(store, pipeline)
    if published is not None and datetime.fromisoformat(published.tags[AS_OF_TAG]) > as_of:
        logger.info("feature store: a later night, %s, is published; this one is not", published.tags[AS_OF_TAG])
        return 0
    repository = _open(store, pipeline, online)
    with tempfile.TemporaryDirectory(prefix="shards-", dir=scratch_parent()) as cache:
        rows = EntityRows(store, night, Path(cache))
        if not rows.entity:
            raise BadConfigError(
                "features.online is set and FeatureSet.entity is empty; name the columns that a server asks by, "
                'e.g. entity=("user_id",)'
            )
        index = rows.latest(after=as_of - online.ttl if online.ttl else None, until=as_of)
        entities = _entities(rows, index)
        view = _view(rows, entities, pipeline, online)
        repository.apply([*entities, view])
        online_store = _online_store(repository)
        for batch in index.iter_slices(_BATCH_ROWS):
            names = [field.name for field in view.features]
            repository.write_to_online_store(pipeline, rows.table(batch, names).to_pandas())
        if online.ttl:
            online_store.forget(repository.config, view, before=as_of - online.ttl)
    logger.info(
        "feature store: %d of %d entities written, the others were there; %d features of %s",
        online_store.num_written, index.height, len(rows.feature_names), night.as_of,
    )  # fmt: skip
    return online_store.num_written


def publish_again(store: Store, pipeline: str) -> int:
    """
    Publish once more what was published last: the online store may have lost its data.

    :return: rows written to the online store
    :raises BadConfigError: where the pipeline has published nothing, or its step did not come to its end
    """
    view = open_view(store, pipeline)
    ref = store.committed(view.tags[PLACE_TAG])
    if not isinstance(ref, FeaturesRef):
        raise BadConfigError(f"the features step at {view.tags[PLACE_TAG]} is not committed; run its task again")
    return publish(store, ref, pipeline=pipeline, online=online_config(view))


def open_repository(store: Store, pipeline: str) -> FeatureStore:
    """
    Open the Feast repository of a pipeline as last published: online and historical features.

    :raises BadConfigError: where the pipeline has published nothing, or the online store's connection is not given
    """
    return _open(store, pipeline, online_config(open_view(store, pipeline)))


def open_view(store: Store, pipeline: str) -> FeatureView:
    """
    Open a pipeline's one feature view, named as the pipeline, as last published.

    :raises BadConfigError: where the pipeline has published nothing
    """
    view = _published_view(store, pipeline)
    if view is None:
        there = published_pipelines(store)
        near = get_close_matches(pipeline, there, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"published are {', '.join(there) or 'none'}"
        raise BadConfigError(f"pipeline {pipeline!r} has no features in the feature store of {store.uri}; {hint}")
    return view


def online_config(view: FeatureView) -> Online:
    """Return the ``features.online`` that a view was published with."""
    return Online.model_validate_json(view.tags[ONLINE_TAG])


def entity_types(view: FeatureView) -> dict[str, type[str] | type[int]]:
    """Return the entity's columns, each with the type that identifies an entity in it: text or a whole number."""
    return {c.name: int if c.dtype.to_value_type() == ValueType.INT64 else str for c in view.entity_columns}


def read_rows(store: Store, view: FeatureView, entities: Sequence[Mapping[str, str | int]]) -> list[OnlineRow | None]:
    """
    Read entities' rows, expired ones too.

    :param entities: for each, a value for each of the entity's columns
    :return: the rows in that order; None if the store has no row of the view's features
    """
    repository = _open(store, view.name, online_config(view))
    found = _online_store(repository).stored(repository.config, view, [_entity_key(entity) for entity in entities])
    return [
        OnlineRow(
            event_time=event_time,
            features_place=values[PLACE].string_val,
            features={field.name: values[field.name].float_val for field in view.features if field.name != PLACE},
            ttl=view.ttl or None,
        )
        if event_time is not None and values is not None
        else None
        for event_time, values in found
    ]


def _entity_key(entity: Mapping[str, str | int]) -> EntityKey:
    names = sorted(entity)
    values = [Value(int64_val=v) if isinstance(v := entity[name], int) else Value(string_val=v) for name in names]
    return EntityKey(join_keys=names, entity_values=values)


def _published_view(store: Store, pipeline: str) -> FeatureView | None:
    registry = newest_registry(store, pipeline)
    if registry is None:
        return None
    # A user's own objects may be in the registry too.
    return next(FeatureView.from_proto(view) for view in registry.feature_views if view.spec.name == pipeline)


def _view(rows: EntityRows, entities: list[Entity], pipeline: str, online: Online) -> FeatureView:
    """Make the one view, named as the pipeline: its entity's columns, its features, and the place they came from."""
    if twice := [name for name in (*rows.entity, PLACE) if name in rows.feature_names]:
        raise BadConfigError(
            f"{twice[0]!r} is both an entity column and a feature, which Feast cannot tell apart; derive the feature "
            "from a column of another name"
        )
    if own := [name for name in (EVENT_TIME, CREATED) if name in (*rows.entity, *rows.feature_names)]:
        raise BadConfigError(
            f"{own[0]!r} is a feature or an entity column, and the feature store's own name of a row's time; derive it "
            "under another name"
        )
    schema = [Field(name=entity.join_key, dtype=from_value_type(entity.value_type)) for entity in entities]
    schema += [Field(name=name, dtype=Float32) for name in rows.feature_names]
    return FeatureView(
        name=pipeline,
        entities=entities,
        schema=[*schema, Field(name=PLACE, dtype=FeastString)],
        source=ShardsSource(pipeline, rows.night),
        ttl=online.ttl or timedelta(0),
        tags={AS_OF_TAG: rows.night.as_of, PLACE_TAG: rows.night.place, ONLINE_TAG: online.model_dump_json()},
    )


def _entities(rows: EntityRows, index: pl.DataFrame) -> list[Entity]:
    entities = []
    for name in rows.entity:
        dtype = index.schema[name]
        if not (dtype == pl.String or dtype.is_integer()):
            raise BadConfigError(f"entity column {name!r} is {dtype}; an entity is told by text or whole numbers")
        entities.append(Entity(name=name, value_type=ValueType.STRING if dtype == pl.String else ValueType.INT64))
    return entities


def _open(store: Store, pipeline: str, online: Online) -> FeatureStore:
    return FeatureStore(
        config=RepoConfig(
            project=pipeline,
            provider="local",
            registry=RegistryConfig(
                registry_store_type="mlops.feature_store.registry.ObjectRegistryStore",
                path=registry_path(store, pipeline),
            ),
            offline_store={"type": "mlops.feature_store.offline.ShardsOfflineStore", "store": store.uri},
            online_store=dict(_online_settings(store, pipeline, online)),
            entity_key_serialization_version=3,
        )
    )


def _online_store(repository: FeatureStore) -> NightlyOnlineStore:
    provider = repository.provider
    assert isinstance(provider, PassthroughProvider), "what the provider 'local' is"
    assert isinstance(provider.online_store, NightlyOnlineStore), "what _online_settings asks for"
    return provider.online_store


def _online_settings(store: Store, pipeline: str, online: Online) -> Iterator[tuple[str, Any]]:
    if online.store == "redis":
        assert online.connection is not None, "the spec asks for it"
        yield "type", "mlops.feature_store.online_redis.NightlyRedisOnlineStore"
        yield "connection_string", _redis_url(online.connection)
        # Counted from the writing, which is never before the event: a key outlives its row's time to live.
        yield "key_ttl_seconds", int(online.ttl.total_seconds()) if online.ttl else None
        return
    if not store.uri.startswith("file://"):
        raise BadConfigError(
            f"features.online.store is sqlite, a file on one machine, and the deployment's store is {store.uri}; "
            "set store: redis and a connection"
        )
    folder = Path(store.uri.removeprefix("file://")) / FOLDER / pipeline
    folder.mkdir(parents=True, exist_ok=True)
    yield "type", "mlops.feature_store.online_sqlite.NightlySqliteOnlineStore"
    yield "path", str(folder / "online.db")


def _redis_url(connection: str) -> str:
    variable = connection_variable(connection)
    if variable not in os.environ:
        raise BadConfigError(
            f"features.online: the environment has no {variable}, which the features operator sets from Airflow's "
            f"connection {connection!r}; outside Airflow, set it to the connection as JSON, with conn_type (redis), "
            "host, port, login, password, schema and extra"
        )
    # Only here, for it brings all kinds of sources with it.
    from mlops.data.sources.connections import Connection

    found = Connection.from_environment(connection, "features.online", conn_type="redis")
    secret = f"{quote(found.login or '', safe='')}:{quote(found.password or '', safe='')}@"
    scheme = "rediss" if found.extra.get("ssl") else "redis"
    address = f"{found.host or 'localhost'}:{found.port or 6379}/{int(found.extra.get('db') or 0)}"
    return f"{scheme}://{secret if found.login or found.password else ''}{address}"
