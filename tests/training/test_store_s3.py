"""The store, and a snapshot in it, on an S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as postgresql
import pytest
from lossy_s3 import lossy_proxy

from mlops.contract.refs import DatasetRef
from mlops.contract.step import Failure, RunIdentity, StepInput, connection_variable, python_path
from mlops.data.snapshots.snapshot import Snapshot
from mlops.process import ProcessSettings
from mlops.steps.execution import execute
from mlops.store import Store
from mlops.store_errors import DamagedObjectError, StoreError

CHECKOUT = Path(__file__).parents[2]
RACER = """
import sys
from mlops.store import Store
store = Store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(store.put_new("key", sys.argv[2].encode()))
"""


CONTENDER = """
import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

from mlops.registry.audit import AuditTrail, Entry
from mlops.contract.stage_moves import Stages
from mlops.store import Store
from mlops.store_errors import StoreError
from mlops.trainer.checkpoint.generation import Generation
from mlops_provider.committed import open_store, write_new

uri, who, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = Store(uri)
trail = AuditTrail(store, "toy")


def plain(number, thread):
    return store.put_new(f"plain/{number:03}", f"{who}-{thread}".encode())


def decision(number, thread):
    return asyncio.run(write_new(open_store(uri), f"decisions/{number:03}", f"{who}-{thread}".encode()))


def audit(number, thread):
    # Equal but for the writer, as of two attempts at one task that decide at the same moment.
    entry = Entry(
        number=number + 1, at="now", model="toy", version="1", action="promote", from_stage=None, to_stage="production",
        former_champion=None, who="task", why="good", report=None, approver=None, previous=None, stages=Stages(),
        writer=f"{who}-{thread}",
    )
    return trail.append(entry)


def contend(kind, number, thread):
    try:
        return kind(number, thread)
    except StoreError as error:
        return str(error)


print("ready", flush=True)
sys.stdin.readline()
told = {}
with ThreadPoolExecutor(2) as pool:
    for kind in (plain, decision, audit):
        for number in range(rounds):
            told[f"{kind.__name__}/{number}"] = list(pool.map(lambda thread: contend(kind, number, thread), range(2)))
    told["generations"] = [Generation.take(store, "place").number for _ in range(rounds // 5)]
print(json.dumps(told), flush=True)
"""


@pytest.fixture
def store(s3: str, tmp_path: Path) -> Store:
    return Store(f"{s3}/{tmp_path.name}/store")


def test_of_many_processes_exactly_one_creates(store: Store) -> None:
    """The commit rests on it: two winners would hand their children different data."""
    environment = {**os.environ, "PYTHONPATH": python_path(CHECKOUT)}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, store.uri, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()
    told = [racer.communicate("go\n", timeout=60)[0].strip() for racer in racers]
    assert sorted(told) == ["False"] * 3 + ["True"]
    assert store.get("key").decode() == str(told.index("True"))


def test_of_contested_writes_whose_answers_are_lost_each_has_one_winner(
    store: Store, s3_server: dict[str, str]
) -> None:
    """Broken: a commit, a fence or a promotion would have no winner though it was written, or two of them."""
    rounds, writers = 34, 3
    with lossy_proxy(s3_server["AWS_ENDPOINT_URL"], seed=3, lost=0.3) as proxy:
        code = f"{CHECKOUT / 'plugins'}:{python_path(CHECKOUT)}"  # the provider writes decisions
        paths = {"PYTHONPATH": code, "AWS_ENDPOINT_URL": proxy.endpoint}
        contenders = [
            subprocess.Popen(
                [sys.executable, "-c", CONTENDER, store.uri, str(number), str(rounds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **paths},
            )
            for number in range(writers)
        ]
        for contender in contenders:
            assert contender.stdout is not None
            contender.stdout.readline()
        for contender in contenders:
            assert contender.stdin is not None
            contender.stdin.write("go\n")
            contender.stdin.flush()
        told = [json.loads(contender.communicate(timeout=300)[0]) for contender in contenders]
    generations = [number for each in told for number in each.pop("generations")]
    winners = {key: [won for each in told for won in each[key]] for key in told[0]}
    assert {
        key: won for key, won in winners.items() if won.count(True) != 1 or won.count(False) != 2 * writers - 1
    } == {}
    assert len(winners) == 3 * rounds
    assert sorted(generations) == list(range(1, len(generations) + 1)), "each fence has one holder"
    assert proxy.counts["PUT 503"] > 20, proxy.counts
    assert proxy.counts["PUT cut"] > 20, proxy.counts


def test_a_bucket_that_is_not_there_is_retried_with_its_name(s3: str) -> None:
    with pytest.raises(StoreError, match="cannot write x in the store s3://nobody-made-it"):
        Store("s3://nobody-made-it/store").put("x", b"")


@pytest.fixture
def night(postgres: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], DatasetRef]:
    """Ingests the orders of a PostgreSQL table as of a day of January, into the bucket."""
    uri = postgres.rpartition("@")[2]
    host, port, database = uri.partition(":")[0], *uri.partition(":")[2].split("/")
    connection = {"conn_type": "postgres", "host": host, "port": int(port), "login": "trainer", "schema": database}
    monkeypatch.setenv(
        connection_variable("shop-db"), json.dumps(connection | {"password": "s3cret/word", "extra": {}})
    )
    with postgresql.connect(postgres, autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS orders")
        cursor.execute("CREATE TABLE orders (id bigint, at timestamptz, written timestamptz, amount float8)")
        cursor.execute(
            "INSERT INTO orders SELECT n, '2024-01-01T00:00:00Z'::timestamptz + n * interval '1 hour', "
            "'2024-01-01T00:00:00Z'::timestamptz + n * interval '1 hour', n FROM generate_series(0, 239) AS n"
        )
    source = {
        "kind": "sql", "connection": "shop-db", "query": "SELECT * FROM orders", "range_column": "id", "num_ranges": 2,
        "event_time": "at", "created_time": "written", "key": ["id"], "history_days": 0, "types": {},
    }  # fmt: skip
    config = {
        "sources": {"orders": source},
        "transform": None,
        "event_time": "at",
        "window": 4,
        "split": {"validation": 1, "test": 1},
        "engine": "polars",
    }

    def ingest(day: int) -> DatasetRef:
        end = datetime(2024, 1, day, tzinfo=UTC)
        run = RunIdentity(
            pipeline="shop",
            run_key=f"night-{day}",
            interval_start=(end - timedelta(days=1)).isoformat(),
            interval_end=end.isoformat(),
            timezone="UTC",
            dag_id="shop",
            task_id="ingest",
            run_id="test",
            try_number=1,
        )
        deployment = ProcessSettings(
            home=tmp_path, store=store.uri, tracking_uri="", result_path=tmp_path / "result.json", rank=0
        )
        ref = execute(StepInput(step="ingest", run=run, config=config), deployment)
        assert isinstance(ref, DatasetRef)
        return ref

    return ingest


def test_a_snapshot_on_s3_is_committed_shared_and_checked(night: Any, store: Store, postgres: str) -> None:
    """All that holds on a disk must hold in a bucket: one commit, one new day a night, damage named."""
    first = night(8)
    assert night(8) == first, "committed: found, not made again"
    snapshot = Snapshot.open(store, first)
    assert snapshot.read()["id"].sort().to_list() == list(range(3 * 24, 7 * 24))
    before = set(store.list("blobs"))

    with postgresql.connect(postgres, autocommit=True) as session, session.cursor() as cursor:
        # A correction, written when the second night was over: neither night sees it.
        cursor.execute("INSERT INTO orders VALUES (100, '2024-01-05T04:00:00Z', '2024-01-09T00:00:00Z', -1)")
    second = Snapshot.open(store, night(9))
    assert len(set(store.list("blobs")) - before) == 1
    assert second.read()["amount"].min() == 4 * 24
    assert "s3cret" not in b"".join(store.get(key) for key in store.list("pipelines")).decode()

    damaged = max(set(store.list("blobs")) - before)
    store.put(damaged, b"x" + store.get(damaged)[1:])
    with pytest.raises(DamagedObjectError, match=damaged):
        second.read()
    assert not Failure.of(DamagedObjectError("x")).retryable


def test_threads_may_fetch_the_same_object_at_once(s3: str, tmp_path: Path) -> None:
    """The split indexes of several days are often equal, and thus one blob."""
    store = Store(f"{s3}/equal")
    artifact, _ = store.put_blob(b"x" * 1_000_000)
    with ThreadPoolExecutor(8) as threads:
        for number in range(10):
            cache = tmp_path / str(number)
            cache.mkdir()
            files = list(threads.map(lambda _, cache=cache: store.local_file(artifact, cache), range(8)))
            assert {file.stat().st_size for file in files} == {1_000_000}
