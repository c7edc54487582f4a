"""
A Redis stream up to a recorded entry.

An entry's id begins with the millisecond at which it was added, so the as-of time says which entry is the last, and a
run of an old night reads what was there then.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from mlops.contract.sources import RedisSource
from mlops.contract.step import BadDataError
from mlops.data.sources.connections import Connection
from mlops.data.sources.fetch import write_batches
from mlops.data.sources.source import DOCUMENT, Piece, Position, SourceError, SourceReader

_BATCH = 10_000
_SCHEMA = pa.schema({DOCUMENT: pa.string(), "stream_id": pa.string(), "stream_time": pa.timestamp("us", "UTC")}.items())


@dataclass(frozen=True, kw_only=True)
class RedisStream(SourceReader[RedisSource]):
    """A source that reads a Redis stream."""

    documents: ClassVar[bool] = True
    text: ClassVar[bool] = True
    local: ClassVar[bool] = False

    def position(self) -> Position:
        connection = Connection.from_environment(self.settings.connection, f"source {self.name!r}", conn_type="redis")
        last_before = int(self.records.as_of.timestamp() * 1000) - 1
        # An older entry may be the last of its key; and what the ids say is not what another event time says.
        by_id = self.records.since is not None and self.records.event_time == "stream_time" and not self.records.key
        since = f"{int(self.records.since.timestamp() * 1000)}" if by_id and self.records.since else "-"
        with _client(self.name, connection) as client:
            newest: Any = client.xrevrange(self.settings.stream, max=last_before, min=since, count=1)
            oldest: Any = client.xrange(self.settings.stream, min=since, max=last_before, count=1)
        if not newest:
            raise BadDataError(
                f"source {self.name!r}: stream {self.settings.stream!r} has no entry from before "
                f"{self.records.as_of.isoformat()}; check ingest.sources.{self.name}.stream, or how long it is kept"
            )
        return {"stream": self.settings.stream, "first_id": oldest[0][0].decode(), "last_id": newest[0][0].decode()}

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        connection = Connection.from_environment(self.settings.connection, f"source {self.name!r}", conn_type="redis")
        return [
            StreamPiece(self.name, connection, dict(position), dict(self.settings.columns), scratch / "entries.parquet")
        ]


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """The entries of a stream from the first to the last id."""

    source: str
    connection: Connection
    position: Mapping[str, str]
    columns: Mapping[str, str]
    file: Path

    @property
    def place(self) -> str:
        return f"stream {self.position['stream']}"

    def __call__(self) -> pl.LazyFrame:
        if not self.file.exists():
            with _client(self.source, self.connection) as client:
                write_batches(self.file, _SCHEMA, self._batches(client))
        return pl.scan_parquet(self.file, glob=False)

    def _batches(self, client: redis.Redis) -> Iterator[pa.RecordBatch]:
        first, last = self.position["first_id"], self.position["last_id"]
        reached: str | None = None
        while reached != last:
            # From the second answer on it begins with the last entry of the one before: of a stream that was trimmed in
            # between, the server answers with the oldest entry that is left, and says nothing of those before it.
            start, overlap = (first, 0) if reached is None else (reached, 1)
            # The library's types are those of its asynchronous client as well.
            entries: Any = client.xrange(self.position["stream"], min=start, max=last, count=_BATCH + overlap)
            if len(entries) <= overlap or entries[0][0].decode() != start:
                raise SourceError(
                    f"source {self.source!r}: {self.place} was trimmed while it was read: its entries from {first} to "
                    f"{last} are not all there any more; it will be retried"
                )
            reached = entries[-1][0].decode()
            yield self._batch(entries[overlap:])

    def _batch(self, entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> pa.RecordBatch:
        ids, documents = [], []
        for raw, fields in entries:
            ids.append(entry := raw.decode())
            try:
                row = {name.decode(): value.decode() for name, value in fields.items()}
            except UnicodeDecodeError as error:
                raise BadDataError(f"source {self.source!r}: {self.place}: entry {entry} is not UTF-8 text") from error
            if self.columns:
                row = {column: row[name] for column, name in self.columns.items() if name in row}
            documents.append(json.dumps(row))
        times = [datetime.fromtimestamp(int(entry.split("-")[0]) / 1000, UTC) for entry in ids]
        return pa.record_batch([documents, ids, pa.array(times, _SCHEMA.field("stream_time").type)], schema=_SCHEMA)


@contextlib.contextmanager
def _client(source: str, connection: Connection) -> Iterator[redis.Redis]:
    """
    Connect to the server.

    :raises SourceError: where the server does not answer
    """
    settings: dict[str, Any] = dict(connection.extra)
    client = redis.Redis(
        host=connection.host or "localhost",
        port=connection.port or 6379,
        db=int(settings.get("db") or 0),
        username=connection.login,
        password=connection.password,
        ssl=bool(settings.get("ssl", False)),
        socket_timeout=60,
        # Once, for a connection that broke; longer outages are the task's retry.
        retry=Retry(NoBackoff(), 1),
    )
    try:
        with client:
            yield client
    except redis.ResponseError as error:  # e.g. the key is no stream
        raise BadDataError(f"source {source!r}: connection {connection.id!r}: {connection.redacted(error)}") from error
    except redis.RedisError as error:
        raise SourceError(f"source {source!r}: connection {connection.id!r}: {connection.redacted(error)}") from error
