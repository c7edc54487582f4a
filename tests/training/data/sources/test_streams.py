"""
Streams: a real Redis, and Kafka's protocol.

No Kafka broker can be installed from PyPI or Debian: the tests speak over TCP to the mock cluster of librdkafka, which
knows topics, partitions, fetching and watermarks, and answers a question for the offset at a time with "none later".
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest
import redis
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, Message, Producer, TopicPartition

from mlops.contract.sources import KafkaSource
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.sources import SourceError, kafka_topic, redis_stream
from mlops.data.sources.connections import Connection
from mlops.data.sources.kafka_topic import KafkaTopic, PartitionPiece
from mlops.data.sources.records import Records
from mlops.data.sources.redis_stream import StreamPiece

from .conftest import AS_OF, Read, rows

Connect = Callable[..., None]


def milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)


@pytest.fixture
def stream(redis_server: str, connect: Connect, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client; the stream ``clicks`` has an entry every hour from January the 1st to the 4th."""
    connect("stream", "redis", redis_server, schema=None, extra={"db": 0})
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
        for hour in range(72):
            at = milliseconds(AS_OF - timedelta(days=2) + timedelta(hours=hour))
            client.xadd("clicks", {"user": f"u{hour}", "price": hour / 2, "n": hour}, id=f"{at}-0")
        yield client


def test_a_stream_up_to_the_as_of_time(read: Read, stream: redis.Redis) -> None:
    """A run of an old night reads the entries of that night, and says which they were."""
    source = read("redis", stream="clicks")
    found = rows(source)
    assert dict(found.drop("stream_id").schema) == {
        "user": pl.String,
        "price": pl.Float64,
        "n": pl.Int64,
        "stream_time": pl.Datetime("us", "UTC"),
    }
    assert found["n"].to_list() == list(range(48))
    assert found["stream_time"][5] == AS_OF - timedelta(hours=43)
    ids = {"first_id": f"{milliseconds(AS_OF) - 48 * 3600_000}-0", "last_id": f"{milliseconds(AS_OF) - 3600_000}-0"}
    assert source.provenance["position"] == {"stream": "clicks"} | ids
    stream.xadd("clicks", {"late": "1"})
    assert rows(read("redis", stream="clicks")).equals(found)


def test_fields_can_be_chosen_and_history_cut(read: Read, stream: redis.Redis) -> None:
    source = read("redis", stream="clicks", columns={"who": "user"}, history_days=0)
    assert source.columns == ("who", "stream_id", "stream_time")
    assert rows(source)["who"].to_list() == [f"u{hour}" for hour in range(24, 48)]
    assert source.provenance["position"]["first_id"] == f"{milliseconds(AS_OF) - 24 * 3600_000}-0"


def test_more_entries_than_one_answer_holds(read: Read, stream: redis.Redis) -> None:
    pipeline = stream.pipeline()
    for number in range(25_000):
        pipeline.xadd("many", {"n": number}, id=f"{milliseconds(AS_OF) - 30_000 + number}-0")
    pipeline.execute()
    assert rows(read("redis", stream="many"))["n"].to_list() == list(range(25_000))


def test_a_trimmed_stream_is_noticed(stream: redis.Redis, tmp_path: Path) -> None:
    """A part of what the position says would otherwise pass for the whole."""
    first = f"{milliseconds(AS_OF) - 48 * 3600_000}-0"
    position = {"stream": "clicks", "first_id": first, "last_id": f"{milliseconds(AS_OF)}-0"}
    stream.xtrim("clicks", maxlen=10, approximate=False)
    with pytest.raises(SourceError, match="was trimmed while it was read"):
        StreamPiece("s", Connection.from_environment("stream", "s"), position, {}, tmp_path / "x.parquet")()


def test_a_stream_trimmed_between_two_answers_is_noticed(
    stream: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the rows in the middle are missing from the snapshot, and nobody knows."""
    monkeypatch.setattr(redis_stream, "_BATCH", 10)
    answer = redis.Redis.xrange

    def answer_and_trim(*args: Any, **kwargs: Any) -> Any:
        entries = answer(*args, **kwargs)
        stream.xtrim("clicks", maxlen=40, approximate=False)
        return entries

    ends = [milliseconds(AS_OF - timedelta(hours=hours)) for hours in (48, 1)]
    position = {"stream": "clicks", "first_id": f"{ends[0]}-0", "last_id": f"{ends[1]}-0"}
    connection = Connection.from_environment("stream", "s")
    whole = StreamPiece("s", connection, position, {}, tmp_path / "whole.parquet")().collect()
    assert whole["document"].str.json_path_match("$.n").cast(int).to_list() == list(range(48))
    monkeypatch.setattr(redis.Redis, "xrange", answer_and_trim)
    with pytest.raises(SourceError, match="stream clicks was trimmed while it was read"):
        StreamPiece("s", connection, position, {}, tmp_path / "part.parquet")()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        pytest.param("none", None, "stream 'none' has no entry from before", id="missing"),
        pytest.param("text", "x", "WRONGTYPE", id="no stream"),
        pytest.param("bytes", b"\xff", "is not UTF-8 text", id="bytes"),
        pytest.param("taken", {"stream_id": "1"}, "has a field 'stream_id', which is the name of a column", id="taken"),
    ],
)
def test_what_is_no_readable_stream(read: Read, stream: redis.Redis, key: str, value: Any, message: str) -> None:
    at = f"{milliseconds(AS_OF) - 1}-0"
    if isinstance(value, str):
        stream.set(key, value)
    elif value is not None:
        stream.xadd(key, value if isinstance(value, dict) else {"x": value}, id=at)
    with pytest.raises(BadDataError, match=message):
        read("redis", stream=key)


def test_a_server_that_is_away_is_retried(read: Read, connect: Connect) -> None:
    connect("stream", "redis", "redis://:s3cret@127.0.0.1:1")
    with pytest.raises(SourceError, match="connection 'stream'") as caught:
        read("redis", stream="clicks")
    assert caught.value.retryable
    assert "s3cret" not in str(caught.value)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Producer]:
    """A producer that has a cluster of three brokers inside, on loopback."""
    producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 3, "log_level": 0})
    yield producer
    producer.flush(10)


@pytest.fixture
def brokers(kafka: Producer, connect: Connect) -> str:
    found = ",".join(f"{broker.host}:{broker.port}" for broker in kafka.list_topics(timeout=30).brokers.values())
    connect("stream", "kafka", extra={"bootstrap.servers": found, "log_level": 0})
    return found


def send(kafka: Producer, topic: str, hours: range, **fields: Any) -> None:
    for hour in hours:
        at = milliseconds(AS_OF - timedelta(days=2) + timedelta(hours=hour))
        kafka.produce(topic, json.dumps({"n": hour, **fields}), partition=hour % 3, timestamp=at)
    assert kafka.flush(30) == 0


@pytest.mark.usefixtures("brokers")
def test_a_topic_up_to_the_as_of_time(read: Read, kafka: Producer) -> None:
    """Messages of the future must not be seen, nor decide the columns."""
    send(kafka, "clicks", range(48), user="a")
    send(kafka, "clicks", range(48, 72), new=1)
    source = read("kafka", topic="clicks")
    found = rows(source)
    assert found.schema == {
        "n": pl.Int64,
        "user": pl.String,
        "kafka_partition": pl.Int32,
        "kafka_offset": pl.Int64,
        "kafka_timestamp": pl.Datetime("us", "UTC"),
    }
    assert sorted(found["n"]) == list(range(48))
    assert found.filter(n=5)["kafka_timestamp"].item() == AS_OF - timedelta(hours=43)
    assert {k: v for k, v in source.provenance["position"]["offsets"].items() if v[1]} == {
        "0": [0, 24],
        "1": [0, 24],
        "2": [0, 24],
    }


@pytest.mark.usefixtures("brokers")
def test_the_position_alone_says_what_is_read(kafka: Producer, tmp_path: Path) -> None:
    """Messages that arrive between settling and reading belong to the next night; so do the rows of a re-reading."""
    send(kafka, "orders", range(30))
    records = Records(source="s", event_time=None, created_time=None, key=(), as_of=AS_OF, since=None)
    source = KafkaTopic(
        name="s",
        home=tmp_path,
        records=records,
        settings=KafkaSource(kind="kafka", connection="stream", topic="orders"),
    )
    position = json.loads(json.dumps(source.position()))
    send(kafka, "orders", range(30, 60))
    for folder in ("first", "again"):
        frames = [piece().collect() for piece in source.pieces(position, tmp_path / folder)]
        assert sorted(n for frame in frames for n in frame["document"].str.json_path_match("$.n").cast(int)) == list(
            range(30)
        )
    middle = dict(position, offsets={"1": [3, 7]})
    assert source.pieces(middle, tmp_path / "middle")[0]().collect()["kafka_offset"].to_list() == [3, 4, 5, 6]


@pytest.mark.usefixtures("brokers")
def test_tombstones_are_no_rows(read: Read, kafka: Producer) -> None:
    send(kafka, "users", range(3))
    kafka.produce("users", None, key="a", partition=0, timestamp=milliseconds(AS_OF) - 1)
    kafka.flush(30)
    assert rows(read("kafka", topic="users")).height == 3


@pytest.mark.usefixtures("brokers")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param(b"[1]", "is no JSON object", id="no object"),
        pytest.param(b"{", r"cannot read topic bad\d+, partition 0", id="no JSON"),
        pytest.param(b"\xff", "partition 0: message 0 is not UTF-8 text", id="no text"),
        pytest.param(None, "has no message from before|nothing was known", id="nothing"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(read: Read, kafka: Producer, value: bytes | None, message: str) -> None:
    topic = f"bad{hash(message) % 1000}"
    kafka.produce(topic, value, partition=0, timestamp=milliseconds(AS_OF) - 1)
    kafka.flush(30)
    with pytest.raises(BadDataError, match=message):
        read("kafka", topic=topic)


def test_brokers_that_are_away_or_unnamed(read: Read, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    connect("stream", "kafka", extra={})
    with pytest.raises(BadConfigError, match="names no brokers; put bootstrap.servers into its extra"):
        read("kafka", topic="clicks")
    connect("stream", "kafka", extra={"bootstrap.servers": "127.0.0.1:1", "bootstrap": 1})
    with pytest.raises(BadConfigError, match="No such configuration property"):
        read("kafka", topic="clicks")
    monkeypatch.setattr(kafka_topic, "_ANSWER_SECONDS", 1.0)
    connect("stream", "kafka", extra={"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with pytest.raises(SourceError, match="connection 'stream'"):
        read("kafka", topic="clicks")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(5, 20, [10, 20], id="the oldest are gone"),
        pytest.param(12, 20, [12, 20], id="history cut"),
        pytest.param(12, None, [12, 30], id="nothing is from later"),
        pytest.param(None, None, [30, 30], id="all are too old"),
        pytest.param(25, 20, [20, 20], id="timestamps out of order"),
        pytest.param(5, 5, [5, 5], id="all are from later"),
    ],
)
def test_what_is_read_of_a_partition(start: int | None, end: int | None, expected: list[int]) -> None:
    """The mock cluster cannot be asked for the offset at a time: what its answer means is held here."""
    assert kafka_topic.bounds(10, 30, start, end) == expected


def test_a_partition_that_ends_before_the_wanted_offset_is_not_all_read(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Broken: where a lagging replica answers, the newest messages are missing from the snapshot, and nobody knows."""
    connect("stream", "kafka", extra={"bootstrap.servers": "none"})
    consumer, messages = Mock(spec=Consumer), []
    consumer.get_watermark_offsets.return_value = (0, 5)
    for offset, error in ((0, None), (1, Mock(spec=KafkaError, **{"code.return_value": KafkaError._PARTITION_EOF}))):
        message = Mock(spec=Message)
        message.offset.return_value, message.error.return_value, message.value.return_value = offset, error, b"{}"
        message.timestamp.return_value = (TIMESTAMP_CREATE_TIME, 0)
        messages.append(message)
    monkeypatch.setattr(kafka_topic, "_consumer", lambda *_: contextlib.nullcontext(consumer))
    monkeypatch.setattr(kafka_topic, "_SILENCE_SECONDS", 0.01)

    def read_up_to(end: int) -> pl.DataFrame:
        consumer.consume.side_effect = itertools.chain([messages], itertools.repeat([]))
        connection, file = Connection.from_environment("stream", "s"), tmp_path / f"{end}.parquet"
        return PartitionPiece("s", connection, "clicks", 0, 0, end, file)().collect()

    assert read_up_to(1)["kafka_offset"].to_list() == [0]
    with pytest.raises(SourceError, match="partition 0: no message for .* seconds, at offset 1 of 5") as caught:
        read_up_to(5)
    assert caught.value.retryable


@pytest.mark.usefixtures("brokers")
def test_a_partitions_end_has_the_offset_after_the_last(kafka: Producer) -> None:
    """Broken: a partition whose last offsets have no message, as after a transaction, is waited for in vain."""
    send(kafka, "ends", range(0, 9, 3))
    with kafka_topic._consumer("s", Connection.from_environment("stream", "s")) as consumer:
        consumer.assign([TopicPartition("ends", 0, 0)])
        *messages, end = consumer.consume(4, timeout=30)
    assert [message.offset() for message in messages] == [0, 1, 2]
    assert (end.error().code(), end.offset()) == (KafkaError._PARTITION_EOF, 3)
