"""The online store in a SQLite file: the default, for a deployment on one machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, Literal

from feast import FeatureView, RepoConfig
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.helpers import compute_table_id
from feast.infra.online_stores.sqlite import SqliteOnlineStore, SqliteOnlineStoreConfig
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

from mlops.feature_store.entity_rows import PLACE
from mlops.feature_store.online import NOBODY, Found, NightlyOnlineStore, Row, Stamp, aware, supersedes, whole

_BUSY_SECONDS: Final = 60


class NightlySqliteOnlineStoreConfig(SqliteOnlineStoreConfig):
    type: Literal["mlops.feature_store.online_sqlite.NightlySqliteOnlineStore"]  # type: ignore[assignment]


class NightlySqliteOnlineStore(NightlyOnlineStore, SqliteOnlineStore):
    """
    The online store in one file, with a row per entity and feature. Times are seconds since 1970, whatever the
    machine's time zone.
    """

    def _get_conn(self, config: RepoConfig) -> sqlite3.Connection:
        is_new = self._conn is None
        connection: sqlite3.Connection = super()._get_conn(config)
        if is_new:
            # Another night may be writing.
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
        return connection

    def online_write_batch(
        self, config: RepoConfig, table: FeatureView, data: list[Row], progress: Callable[[int], Any] | None
    ) -> None:
        connection = self._get_conn(config)
        name = f'"{compute_table_id(config.project, table)}"'
        rows = {_key(config, row[0]): row for row in data}
        # Immediate: nobody else writes between the look at what is there and the replacement.
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            found = {
                key: Stamp(night, place)
                for key, night, place in connection.execute(
                    f"SELECT entity_key, created_ts + 0, value FROM {name} "
                    f"WHERE feature_name = ? AND entity_key IN ({_marks(rows)})",
                    [PLACE, *rows],
                )
            }
            fresh = {key: row for key, row in rows.items() if supersedes(Stamp.of(row), found.get(key))}
            connection.execute(f"DELETE FROM {name} WHERE entity_key IN ({_marks(fresh)})", list(fresh))
            connection.executemany(
                f"INSERT INTO {name} (entity_key, feature_name, value, event_ts, created_ts) VALUES (?, ?, ?, ?, ?)",
                (cell for key, row in fresh.items() for cell in _cells(key, row)),
            )
        self.num_written += len(fresh)

    def stored(self, config: RepoConfig, table: FeatureView, entity_keys: list[EntityKey]) -> list[Found]:
        name = f'"{compute_table_id(config.project, table)}"'
        keys = [_key(config, entity_key) for entity_key in entity_keys]
        cursor = self._get_conn(config).execute(
            f"SELECT entity_key, event_ts + 0, feature_name, value FROM {name} "
            f"WHERE entity_key IN ({_marks(keys)}) ORDER BY entity_key",
            keys,
        )
        rows: dict[bytes, Found] = {}
        for key, cells in groupby(cursor, key=lambda cell: cell[0]):
            listed = list(cells)
            values = {feature: Value.FromString(value) for _, _, feature, value in listed}
            rows[key] = whole(table, datetime.fromtimestamp(listed[0][1], UTC), values)
        return [rows.get(key, NOBODY) for key in keys]

    def forget(self, config: RepoConfig, table: FeatureView, before: datetime) -> None:
        connection = self._get_conn(config)
        name = f'"{compute_table_id(config.project, table)}"'
        with connection:
            connection.execute(f"DELETE FROM {name} WHERE event_ts + 0 < ?", [int(before.timestamp())])


def _cells(key: bytes, row: Row) -> Iterator[tuple[bytes, str, bytes, int, int]]:
    event_time, created = int(aware(row[2]).timestamp()), Stamp.of(row).night
    for feature, value in row[1].items():
        yield key, feature, value.SerializeToString(), event_time, created


def _key(config: RepoConfig, entity_key: EntityKey) -> bytes:
    key: bytes = serialize_entity_key(entity_key, config.entity_key_serialization_version)
    return key


def _marks(items: Mapping[bytes, Any] | Sequence[bytes]) -> str:
    return ",".join("?" * len(items))
