"""The online store in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from feast import FeatureView, RepoConfig
from feast.infra.online_stores.helpers import _mmh3, _redis_key
from feast.infra.online_stores.redis import RedisOnlineStore, RedisOnlineStoreConfig
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp
from redis import Redis, RedisError, WatchError

from mlops.contract.step import BadConfigError
from mlops.feature_store.entity_rows import PLACE
from mlops.feature_store.online import NOBODY, Found, NightlyOnlineStore, Row, Stamp, aware, supersedes, whole
from mlops.store_errors import StoreError


class NightlyRedisOnlineStoreConfig(RedisOnlineStoreConfig):
    type: Literal["mlops.feature_store.online_redis.NightlyRedisOnlineStore"]  # type: ignore[assignment]


class NightlyRedisOnlineStore(NightlyOnlineStore, RedisOnlineStore):
    """
    The online store on one Redis server, no cluster: a hash per entity. ``connection_string`` is a URL, as Airflow's
    connections are.
    """

    def _get_client(self, online_store_config: RedisOnlineStoreConfig) -> Redis:
        if not isinstance(self._client, Redis):
            self._client = Redis.from_url(
                online_store_config.connection_string, socket_connect_timeout=10, socket_timeout=60
            )
        return self._client

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        for table in tables_to_keep:
            _check_names(table)
        super().update(config, tables_to_delete, tables_to_keep, *args, **kwargs)

    def online_write_batch(
        self, config: RepoConfig, table: FeatureView, data: list[Row], progress: Callable[[int], Any] | None
    ) -> None:
        client = self._get_client(config.online_store)
        rows: dict[Any, Row] = {  # redis-py declares its keys as text, and takes bytes
            _redis_key(config.project, row[0], config.entity_key_serialization_version): row for row in data
        }
        created, place = f"_created:{table.name}", _mmh3(f"{table.name}:{PLACE}")
        with _answers(), client.pipeline(transaction=True) as transaction:
            while True:
                # Watched: where another night writes one of them meanwhile, execute() refuses, and we look again.
                transaction.watch(*rows)
                stamps = self._read(client, list(rows), [created, place])
                found = {key: _stamp(*cells) for key, cells in zip(rows, stamps, strict=True)}
                fresh = {key: row for key, row in rows.items() if supersedes(Stamp.of(row), found[key])}
                transaction.multi()
                for key, row in fresh.items():
                    transaction.delete(key)
                    transaction.hset(key, mapping={created: Stamp.of(row).night, **_fields(table, row)})
                    if seconds := config.online_store.key_ttl_seconds:
                        transaction.expire(key, seconds)
                try:
                    transaction.execute()
                except WatchError:
                    continue
                self.num_written += len(fresh)
                return

    def stored(self, config: RepoConfig, table: FeatureView, entity_keys: list[EntityKey]) -> list[Found]:
        names = [field.name for field in table.features]
        keys = [_redis_key(config.project, key, config.entity_key_serialization_version) for key in entity_keys]
        fields = [f"_ts:{table.name}", *(_mmh3(f"{table.name}:{name}") for name in names)]
        rows: list[Found] = []
        for time, *cells in self._read(self._get_client(config.online_store), keys, fields):
            values = {name: Value.FromString(cell) for name, cell in zip(names, cells, strict=True) if cell is not None}
            event_time = Timestamp.FromString(time).ToDatetime(UTC) if time is not None else None
            rows.append(NOBODY if event_time is None else whole(table, event_time, values))
        return rows

    def forget(self, config: RepoConfig, table: FeatureView, before: datetime) -> None:
        """Do nothing: Redis removes keys when their time to live is over."""

    @staticmethod
    def _read(client: Redis, keys: list[Any], fields: list[Any]) -> list[list[bytes | None]]:
        with _answers(), client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.hmget(key, fields)
            answers: list[list[bytes | None]] = pipeline.execute()
        return answers


def _stamp(created: bytes | None, place: bytes | None) -> Stamp | None:
    return None if created is None or place is None else Stamp(int(created), place)


def _fields(table: FeatureView, row: Row) -> Mapping[bytes | str, bytes]:
    time = Timestamp()
    time.FromDatetime(aware(row[2]))
    features = {_mmh3(f"{table.name}:{name}"): value.SerializeToString() for name, value in row[1].items()}
    return {f"_ts:{table.name}": time.SerializeToString(), **features}


def _check_names(table: FeatureView) -> None:
    """Check that no two features have one hash: Feast tells the fields of a hash apart by 32 bits of their names."""
    seen: dict[bytes, str] = {}
    for field in table.features:
        other = seen.setdefault(_mmh3(f"{table.name}:{field.name}"), field.name)
        if other != field.name:
            raise BadConfigError(f"features {other!r} and {field.name!r} have one hash in Redis; rename one of them")


@contextmanager
def _answers() -> Iterator[None]:
    """
    Turn errors of Redis into errors of the step.

    :raises StoreError: if Redis does not answer; the connection's password is in none of its messages
    """
    try:
        yield
    except RedisError as error:
        raise StoreError(f"the Redis server of features.online: {error}") from error
