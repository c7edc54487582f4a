"""
Feast's online stores for SQLite and Redis, made safe for nights that are killed, repeated or run at once.

Feast's own formats, so that any Feast client may read them. What differs is how rows are written and read: an entity's
row is replaced whole, in one transaction, and never by an older night; a row past its time to live, or of another
version of the feature set, is not served. (Feast 0.67 overwrites in SQLite whatever is there, checks and writes in two
steps in Redis, and leaves time to live to its readers.)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from feast import FeatureView, RepoConfig
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

from mlops.feature_store.entity_rows import PLACE

Values: TypeAlias = dict[str, Value]
Row: TypeAlias = tuple[EntityKey, Values, datetime, datetime | None]
"""Row that Feast writes: entity, features, event time, created (the night's as-of time)."""
Found: TypeAlias = tuple[datetime | None, Values | None]
"""Row that Feast reads: event time and features; two None if there is no row."""

NOBODY: Final[Found] = (None, None)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The night that wrote a row, and the run of it."""

    night: int
    """As-of time of the night, seconds since 1970."""
    place: bytes

    @classmethod
    def of(cls, row: Row) -> Stamp:
        assert row[3] is not None, "the shards' source has a created column"
        return cls(int(aware(row[3]).timestamp()), row[1][PLACE].SerializeToString())


def supersedes(offered: Stamp, found: Stamp | None) -> bool:
    """
    Return True for a later night, and for another run of the same night (its settings changed); an older never
    replaces.
    """
    if found is None or offered.night > found.night:
        return True
    return offered.night == found.night and offered.place != found.place


def expired(event_time: datetime, ttl: timedelta | None, now: datetime) -> bool:
    """Return True if a row is past its time to live. Feast's ``ttl`` of zero, like None, means for ever."""
    return ttl is not None and ttl > timedelta(0) and now - event_time > ttl


class NightlyOnlineStore(OnlineStore):
    """Base class of both online stores, which share how rows are read."""

    num_written: int = 0
    """Number of rows that this object has put into the store."""

    def stored(self, config: RepoConfig, table: FeatureView, entity_keys: list[EntityKey]) -> list[Found]:
        """Return rows as they lie in the store, expired ones too."""
        raise NotImplementedError

    def forget(self, config: RepoConfig, table: FeatureView, before: datetime) -> None:
        """Remove rows whose event is so old that no reader will be served them again."""
        raise NotImplementedError

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKey],
        requested_features: list[str] | None = None,
    ) -> list[Found]:
        now = datetime.now(UTC)
        served: list[Found] = []
        for event_time, values in self.stored(config, table, entity_keys):
            if event_time is None or values is None or expired(event_time, table.ttl, now):
                served.append(NOBODY)
            else:
                names = values if requested_features is None else requested_features
                served.append((event_time, {name: values[name] for name in names}))
        return served

    async def online_read_async(self, *args: Any, **kwargs: Any) -> list[Found]:
        return await asyncio.to_thread(self.online_read, *args, **kwargs)

    async def online_write_batch_async(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.to_thread(self.online_write_batch, *args, **kwargs)

    # Redis has its own, past online_read and hence past time to live.
    _read_features_per_fv = OnlineStore._read_features_per_fv
    _read_features_per_fv_async = OnlineStore._read_features_per_fv_async


def whole(table: FeatureView, event_time: datetime, values: Values) -> Found:
    """Return a row, or none if it lacks a feature: it is then of another version of the set, and would be mixed."""
    if all(field.name in values for field in table.features):
        return event_time, values
    return NOBODY


def aware(time: datetime) -> datetime:
    """Return a time with a zone: Feast's times without one are UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
