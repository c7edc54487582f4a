"""What a night leaves in the feature store: run once, twice, late, at the same time as another, or killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mlops.contract.sections.features import Online
from mlops.contract.step import BadConfigError, BadDataError, connection_variable
from mlops.feature_store.entity_rows import EntityRows
from mlops.feature_store.registry import newest_registry
from mlops.feature_store.repository import open_repository, open_view, publish, read_rows
from mlops.store import Store
from mlops.store_errors import DamagedObjectError, StoreError

PUBLISH = """
import json, sys
from mlops.contract.refs import ref_from_wire
from mlops.contract.sections.features import Online
from mlops.feature_store.repository import publish
from mlops.store import Store

store, ref, pipeline, online = json.loads(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
publish(Store(store), ref_from_wire(ref), pipeline=pipeline, online=Online(**online))
"""


@pytest.fixture
def start(store: Store, pipeline: str, online: Online, tmp_path: Path) -> Callable[[Any], subprocess.Popen[bytes]]:
    """Publishes in a process of its own, which waits for a line on its input once it has imported everything."""

    def start_one(shards: Any) -> subprocess.Popen[bytes]:
        settings = {"store": online.store, "connection": online.connection, "ttl_hours": online.ttl_hours}
        document = json.dumps([store.uri, shards.ref.to_wire(), pipeline, settings])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
        process = subprocess.Popen(
            [sys.executable, "-c", PUBLISH, document],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", process.stderr and process.stderr.read()
        return process

    return start_one


@pytest.mark.server
def test_the_newest_row_of_each_entity_that_is_alive_is_online_bit_for_bit(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, put_online: Any, check_online: Any
) -> None:
    """A server reads what the model was trained on, and nothing that is too old."""
    night = make_shards(0, make_rows(400))

    written = put_online(night)

    places = check_online(night)
    assert 50 < written < len(night.newest()), "some entities were last seen more than 48 hours before"
    assert places == [night.ref.place] * written


@pytest.mark.server
def test_a_night_again_writes_nothing(make_rows: Any, make_shards: Any, put_online: Any, check_online: Any) -> None:
    """A retry after a kill just before the commit."""
    night = make_shards(0, make_rows(100))
    put_online(night)

    assert put_online(night) == 0

    assert set(check_online(night)) == {night.ref.place}


@pytest.mark.server
def test_a_later_night_replaces_and_an_older_one_never_does(
    make_rows: Any, make_shards: Any, put_online: Any, check_online: Any
) -> None:
    """Clearing last week's run must not put last week's values before the model."""
    rows = make_rows(200)
    older, later = make_shards(0, rows), make_shards(1, make_rows(200, end=rows["event_time"].max(), seed=1))
    put_online(older)
    put_online(later)
    before = check_online(older, later)

    assert put_online(older) == 0

    assert check_online(older, later) == before
    assert later.ref.place in before


@pytest.mark.server
def test_another_run_of_the_same_night_replaces(
    make_rows: Any, make_shards: Any, put_online: Any, check_online: Any
) -> None:
    """Changed features are published when their night runs again."""
    rows = make_rows(100)
    first, second = make_shards(0, rows, run="bbbb"), make_shards(0, rows, run="aaaa")
    put_online(first)

    assert put_online(second) > 0

    assert set(check_online(second)) == {second.ref.place}


@pytest.mark.server
def test_rows_written_late_by_an_older_night_lose(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, put_online: Any, check_online: Any, tmp_path: Any
) -> None:
    """Two nights at once: the older one looked whether a later is there before there was one, and writes after it."""
    rows = make_rows(60, days=1)
    older, later = make_shards(0, rows), make_shards(1, rows.with_columns(pl.col("event_time") + timedelta(days=1)))
    put_online(older)
    view = open_view(store, pipeline)
    put_online(later)
    source = EntityRows(store, view.batch_source.night, tmp_path)
    late = source.table(source.index().unique(source.entity, keep="last"), [field.name for field in view.features])

    repository = open_repository(store, pipeline)
    repository.write_to_online_store(pipeline, late.to_pandas())

    assert set(check_online(later)) == {later.ref.place}


@pytest.mark.server
def test_two_nights_at_once(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, start: Any, check_online: Any
) -> None:
    """Whichever process writes first and last, the later night's rows are what is served."""
    rows = make_rows(3000, days=1)
    older, later = make_shards(0, rows), make_shards(1, rows.with_columns(pl.col("event_time") + timedelta(hours=12)))
    processes = [start(later), start(older)]

    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.flush()

    for process in processes:
        assert process.wait(60) == 0, process.stderr.read()
    assert check_online(older, later).count(later.ref.place) == len(later.newest())
    assert open_view(store, pipeline).tags["features_place"] == later.ref.place


@pytest.mark.server
def test_killed_anywhere_each_entity_has_its_old_row_or_its_new_one(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, put_online: Any, start: Any, check_online: Any
) -> None:
    """No row is ever made of two nights, and the retry completes the new one."""
    rows = make_rows(4000, days=1)
    older, later = make_shards(0, rows), make_shards(1, rows.with_columns(pl.col("event_time") + timedelta(days=1)))
    put_online(older)

    process = start(later)
    process.stdin.write(b"\n")
    process.stdin.flush()
    view = open_view(store, pipeline)
    sample = [{"shop": shop, "user": user} for shop, user in list(later.newest())[:10]]
    while all(row.features_place == older.ref.place for row in read_rows(store, view, sample)):
        assert process.poll() is None, process.stderr.read()
    process.kill()

    process.wait(60)
    assert set(check_online(older, later)) == {older.ref.place, later.ref.place}, "it was killed amid its work"
    for seconds in (0.05, random.uniform(0.1, 1)):
        process = start(later)
        process.stdin.write(b"\n")
        process.stdin.flush()
        time.sleep(seconds)
        process.kill()
        process.wait(60)
        check_online(older, later)
    put_online(later)
    assert set(check_online(later)) == {later.ref.place}


@pytest.mark.server
def test_a_changed_feature_set_leaves_no_mixed_rows(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, put_online: Any
) -> None:
    """An entity that was last published without the new feature is missing, rather than served a row with a hole."""
    old = make_rows(40).with_columns(shop=pl.lit("old"))
    new = make_rows(40).with_columns(shop=pl.lit("new"))
    put_online(make_shards(0, pl.concat([old, new])))
    changed = make_shards(1, new.with_columns(pl.col("event_time") + timedelta(days=1)), names=("age", "added"))

    put_online(changed)

    view = open_view(store, pipeline)
    users = {shop: user for shop, user, _ in [*old.sort("event_time").rows(), *new.sort("event_time").rows()]}
    missing, row = read_rows(store, view, [{"shop": shop, "user": users[shop]} for shop in ("old", "new")])
    assert missing is None
    assert row is not None
    assert list(row.features) == ["age", "added"]


@pytest.mark.parametrize("online", ["sqlite"], indirect=True)
def test_each_publication_is_a_version_of_the_registry(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, put_online: Any
) -> None:
    """Broken: Feast answers from what it has read at the same address before, so that a new view looks like the old."""
    versions = set()
    for night in range(2):
        put_online(make_shards(night, make_rows(10)))
        registry = newest_registry(store, pipeline)
        assert registry is not None
        versions.add(registry.version_id)
    assert len(versions - {""}) == 2


@pytest.mark.server
def test_without_time_to_live_all_entities_are_online(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, check_online: Any, online: Online
) -> None:
    night = make_shards(0, make_rows(100))

    for_ever = Online(store=online.store, connection=online.connection, ttl_hours=None)
    written = publish(store, night.ref, pipeline=pipeline, online=for_ever)

    assert written == len(night.newest())
    assert len(check_online(night, ttl_hours=None)) == written


def rows_with(column: str, value: pl.Expr) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda rows: rows.with_columns(value.alias(column))


@pytest.mark.parametrize("online", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda rows: rows.drop("shop", "user"), BadConfigError, r'FeatureSet.entity is empty.*entity=\("user_id",\)'),
        (
            rows_with("user", pl.when(pl.col("shop") != "s1").then("user")),
            BadDataError,
            "entity column 'user' is missing in [0-9]+ rows; drop them",
        ),
        (
            rows_with("user", pl.col("user") / 2),
            BadConfigError,
            "'user' is Float64; an entity is told by text or whole",
        ),
        (rows_with("age", pl.lit(1)), BadConfigError, "'age' is both an entity column and a feature"),
        (rows_with("created", pl.lit(1)), BadConfigError, "'created' is a feature or an entity column, and the"),
    ],
    ids=["no entity", "null key", "type", "feature of the same name", "a name of ours"],
)
def test_what_cannot_be_published_is_said(
    make_rows: Any, make_shards: Any, put_online: Any, change: Any, error: type[Exception], message: str
) -> None:
    night = make_shards(0, change(make_rows(30)))

    with pytest.raises(error, match=message):
        put_online(night)


@pytest.mark.parametrize("online", ["sqlite"], indirect=True)
def test_damaged_objects_are_named(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, put_online: Any
) -> None:
    night = make_shards(0, make_rows(30))
    put_online(night)
    shard = next(key for key in store.list("pipelines") if "test-00002" in key)
    store.put(shard, store.get(shard)[:-8] + b"12345678")
    with pytest.raises(DamagedObjectError, match=shard):
        put_online(night)

    registry = next(iter(store.list(f"feature_store/{pipeline}/registry")))
    store.put(registry, b"")
    with pytest.raises(DamagedObjectError, match=registry):
        open_view(store, pipeline)


def test_a_redis_that_is_not_there_is_worth_a_retry_and_keeps_its_password(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = connection_variable("nowhere")
    online = Online(store="redis", connection="nowhere", ttl_hours=48)
    night = make_shards(0, make_rows(10))

    with pytest.raises(BadConfigError, match=f"the environment has no {variable}"):
        publish(store, night.ref, pipeline=pipeline, online=online)
    connection = {"conn_type": "redis", "host": "127.0.0.1", "port": 1, "login": None, "schema": None, "extra": {}}
    monkeypatch.setenv(variable, json.dumps(connection | {"password": "s3cret/word"}))
    with pytest.raises(StoreError, match="127.0.0.1:1") as raised:
        publish(store, night.ref, pipeline=pipeline, online=online)

    assert raised.value.retryable
    assert "s3cret" not in str(raised.value)
    assert all(b"s3cret" not in store.get(key) for key in store.list("feature_store"))


def test_sqlite_needs_a_store_on_this_machine(s3: str, pipeline: str, make_rows: Any, make_shards: Any) -> None:
    night = make_shards(0, make_rows(10))
    online = Online(store="sqlite", connection=None, ttl_hours=48)

    with pytest.raises(BadConfigError, match="set store: redis and a connection"):
        publish(Store(f"{s3}/{pipeline}"), night.ref, pipeline=pipeline, online=online)
