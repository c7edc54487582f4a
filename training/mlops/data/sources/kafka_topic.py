"""
A Kafka topic up to recorded offsets, one for each partition.

The offsets are those of the first messages that are not from before the as-of time: a run of an old night reads what
was there then. Nothing is committed to the cluster; the position is the snapshot's own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from mlops.contract.sources import KafkaSource
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.sources.connections import Connection
from mlops.data.sources.fetch import write_batches
from mlops.data.sources.source import DOCUMENT, Piece, Position, SourceError, SourceReader

_BATCH = 10_000
_ANSWER_SECONDS = 30.0
_SILENCE_SECONDS = 60.0
"""Seconds without a message or the partition's end, after which the broker is taken to be gone."""
_SCHEMA = pa.schema(
    {
        DOCUMENT: pa.string(),
        "kafka_partition": pa.int32(),
        "kafka_offset": pa.int64(),
        "kafka_timestamp": pa.timestamp("us", "UTC"),
    }.items()
)


@dataclass(frozen=True, kw_only=True)
class KafkaTopic(SourceReader[KafkaSource]):
    """A source that reads a Kafka topic."""

    documents: ClassVar[bool] = True
    text: ClassVar[bool] = False
    local: ClassVar[bool] = False

    def _connection(self) -> Connection:
        return Connection.from_environment(self.settings.connection, f"source {self.name!r}", conn_type="kafka")

    def position(self) -> Position:
        records = self.records
        by_timestamp = records.event_time == "kafka_timestamp" and not records.key
        since = records.since if by_timestamp else None
        with _consumer(self.name, self._connection()) as kafka:
            found = kafka.list_topics(self.settings.topic, timeout=_ANSWER_SECONDS).topics[self.settings.topic]
            if found.error is not None:
                raise BadDataError(f"source {self.name!r}: topic {self.settings.topic!r}: {found.error.str()}")
            ends = _offsets_at(kafka, self.settings.topic, sorted(found.partitions), records.as_of)
            starts = _offsets_at(kafka, self.settings.topic, sorted(found.partitions), since) if since else {}
            offsets = {}
            for partition in sorted(found.partitions):
                first, after_last = kafka.get_watermark_offsets(
                    TopicPartition(self.settings.topic, partition), timeout=_ANSWER_SECONDS
                )
                offsets[str(partition)] = bounds(first, after_last, starts.get(partition, first), ends[partition])
        return {"topic": self.settings.topic, "offsets": offsets}

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        connection = self._connection()
        filled = {partition: bounds for partition, bounds in position["offsets"].items() if bounds[0] < bounds[1]}
        if not filled:
            raise BadDataError(
                f"source {self.name!r}: topic {self.settings.topic!r} has no message from before "
                f"{self.records.as_of.isoformat()}"
            )
        return [
            PartitionPiece(
                self.name,
                connection,
                self.settings.topic,
                int(partition),
                start,
                end,
                scratch / f"{int(partition):05d}.parquet",
            )
            for partition, (start, end) in filled.items()
        ]


@dataclass(frozen=True, slots=True)
class PartitionPiece:
    """The messages of a partition from one offset to another, which is not included."""

    source: str
    connection: Connection
    topic: str
    partition: int
    start: int
    end: int
    file: Path

    @property
    def place(self) -> str:
        return f"topic {self.topic}, partition {self.partition}"

    def __call__(self) -> pl.LazyFrame:
        if not self.file.exists():
            with _consumer(self.source, self.connection) as kafka:
                at = TopicPartition(self.topic, self.partition, self.start)
                first, _ = kafka.get_watermark_offsets(at, timeout=_ANSWER_SECONDS)
                if first > self.start:
                    raise SourceError(
                        f"source {self.source!r}: {self.place}: the messages from {self.start} to {first - 1} were "
                        "deleted while it was read; it will be retried"
                    )
                kafka.assign([at])
                write_batches(self.file, _SCHEMA, self._batches(kafka))
        return pl.scan_parquet(self.file, glob=False)

    def _batches(self, kafka: Consumer) -> Iterator[pa.RecordBatch]:
        reached, heard = self.start, time.monotonic()
        rows: list[tuple[str, int, int, datetime]] = []
        while reached < self.end:
            # It waits for the whole batch, or for so long.
            for message in kafka.consume(_BATCH, timeout=0.1):
                heard = time.monotonic()
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    # Where compaction or a transaction took the last offsets, no message comes for them. The event has
                    # the offset after the last one. It may be before the end that is wanted: a replica lags behind.
                    reached = max(reached, message.offset() or 0)
                    continue
                offset, value = message.offset(), message.value()
                assert offset is not None, "a message that was received has an offset"
                reached = max(reached, offset + 1)
                # A message without a value says that its key is gone: no row.
                if offset < self.end and value is not None:
                    rows.append((self._document(offset, value), self.partition, offset, self._time(message)))
            if rows and (len(rows) >= _BATCH or reached >= self.end):
                columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), _SCHEMA, strict=True)]
                yield pa.record_batch(columns, schema=_SCHEMA)
                rows = []
            if time.monotonic() - heard > _SILENCE_SECONDS:
                raise SourceError(
                    f"source {self.source!r}: {self.place}: no message for {_SILENCE_SECONDS:.0f} seconds, at offset "
                    f"{reached} of {self.end}: are its brokers there, and its replicas in sync? It will be retried"
                )

    def _document(self, offset: int, value: bytes) -> str:
        try:
            return value.decode().replace("\n", " ")
        except UnicodeDecodeError as error:
            raise BadDataError(f"source {self.source!r}: {self.place}: message {offset} is not UTF-8 text") from error

    def _time(self, message: Message) -> datetime:
        kind, milliseconds = message.timestamp()
        if kind == TIMESTAMP_NOT_AVAILABLE:
            raise BadDataError(f"source {self.source!r}: {self.place}: message {message.offset()} has no timestamp")
        return datetime.fromtimestamp(milliseconds / 1000, UTC)


def bounds(first: int, after_last: int, start: int | None, end: int | None) -> list[int]:
    """
    Return the range to read of a partition: the first offset, and the one after the last.

    :param first: the oldest message that the partition still has
    :param after_last: offset of the next message that will be written
    :param start: the first message that is not too old; None where all are
    :param end: the first message that is not from before the as-of time; None where all are
    """
    stop = after_last if end is None else end
    return [min(max(first, stop if start is None else start), stop), stop]


def _offsets_at(kafka: Consumer, topic: str, partitions: Sequence[int], at: datetime) -> dict[int, int | None]:
    """Return, by partition, the offset of the first message at or after an instant; None if there is none."""
    milliseconds = int(at.timestamp() * 1000)
    asked = [TopicPartition(topic, partition, milliseconds) for partition in partitions]
    found = kafka.offsets_for_times(asked, timeout=_ANSWER_SECONDS)
    return {answer.partition: answer.offset if answer.offset >= 0 else None for answer in found}


@contextlib.contextmanager
def _consumer(source: str, connection: Connection) -> Iterator[Consumer]:
    """
    Connect to the cluster.

    :raises BadConfigError: where the connection names no brokers, or a setting is unknown
    :raises SourceError: where the cluster does not answer
    """
    settings: dict[str, Any] = dict(connection.extra)
    if connection.host:
        port = f":{connection.port}" if connection.port else ""
        settings.setdefault("bootstrap.servers", f"{connection.host}{port}")
    if "bootstrap.servers" not in settings:
        raise BadConfigError(
            f"source {source!r}: connection {connection.id!r} names no brokers; put bootstrap.servers into its extra"
        )
    # A group must be named, and is never joined: partitions are assigned, offsets are ours.
    settings |= {"group.id": "mlops-ingest", "enable.auto.commit": False, "enable.partition.eof": True}
    settings |= {"auto.offset.reset": "error"}
    try:
        consumer = Consumer(settings)
    except KafkaException as error:
        raise BadConfigError(
            f"source {source!r}: connection {connection.id!r}: {connection.redacted(error)}"
        ) from error
    try:
        yield consumer
    except KafkaException as error:
        raise SourceError(f"source {source!r}: connection {connection.id!r}: {connection.redacted(error)}") from error
    finally:
        consumer.close()
