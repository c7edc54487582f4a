"""What Feast's clients read of what was published."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from feast import RepoConfig
from feast.infra.online_stores.redis import RedisOnlineStore
from feast.infra.online_stores.sqlite import SqliteOnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

from mlops.contract.sections.features import Online
from mlops.contract.step import BadDataError
from mlops.feature_store.repository import open_repository, open_view, publish, read_rows
from mlops.store import Store


@pytest.fixture
def tonight(make_shards: Any) -> Any:
    """Makes a night whose rows are so many hours old: one user each."""

    def make(*hours: float, as_of: datetime) -> Any:
        times = [as_of - timedelta(hours=h) for h in hours]
        rows = pl.DataFrame({"shop": ["s"] * len(hours), "user": range(len(hours)), "event_time": times})
        return make_shards((as_of - datetime(2024, 5, 8, 4, tzinfo=UTC)) / timedelta(days=1), rows)

    return make


@pytest.mark.server
def test_time_to_live_is_respected_when_a_feast_client_reads(
    store: Store, pipeline: str, tonight: Any, online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was alive when it was published, and is no longer, is not served to the model."""
    now = datetime.now(UTC).replace(microsecond=0)
    # Published an hour ago, when both rows were alive.
    night = tonight(10, 47.5, as_of=now - timedelta(hours=1))
    assert publish(store, night.ref, pipeline=pipeline, online=online) == 2

    repository = open_repository(store, pipeline)
    entities = [{"shop": "s", "user": user} for user in (0, 1, 2)]
    answer = repository.get_online_features([f"{pipeline}:age", f"{pipeline}:features_place"], entities).to_dict()

    assert answer["features_place"] == [night.ref.place, None, None]
    assert np.float32(answer["age"][0]) == night.features[0, 0]
    assert answer["age"][1:] == [None, None]
    alive, expired, missing = read_rows(store, open_view(store, pipeline), entities)
    assert not alive.is_expired(now)
    assert expired.is_expired(now)
    assert missing is None


@pytest.mark.server
def test_plain_feast_stores_read_the_same_rows(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, put_online: Any, online: Online
) -> None:
    """The formats are Feast's own: a server in another language, or another version of ours, reads them."""
    night = make_shards(0, make_rows(50))
    put_online(night)
    repository, view = open_repository(store, pipeline), open_view(store, pipeline)
    ours = repository.provider.online_store
    if online.store == "sqlite":
        plain: Any = SqliteOnlineStore()
        settings = {"type": "sqlite", "path": repository.config.online_store.path}
    else:
        plain, address = RedisOnlineStore(), ours._get_client(repository.config.online_store).connection_pool
        settings = {"type": "redis", "connection_string": "{host}:{port}".format(**address.connection_kwargs)}
    config = RepoConfig(
        project=pipeline, provider="local", registry="unused", online_store=settings, entity_key_serialization_version=3
    )
    keys = [
        EntityKey(join_keys=["shop", "user"], entity_values=[Value(string_val=shop), Value(int64_val=user)])
        for shop, user in night.newest()
    ]
    expected = [values or {} for _, values in ours.stored(repository.config, view, keys)]
    found = [values or {} for _, values in plain.online_read(config, view, keys)]
    # Feast's Redis store says what is missing by values without a value.
    found = [{name: value for name, value in row.items() if value.WhichOneof("val")} for row in found]
    assert found == expected
    assert any(expected)


@pytest.mark.parametrize("online", ["sqlite"], indirect=True)
def test_historical_features_are_those_known_at_each_row_s_time(
    store: Store, pipeline: str, make_shards: Any, put_online: Any
) -> None:
    """The newest at or before the row's own time; nothing from the future, nothing past its time to live."""
    end = datetime(2024, 5, 8, 4, tzinfo=UTC)
    times = [end - timedelta(hours=100), end - timedelta(hours=1)]
    night = make_shards(0, pl.DataFrame({"shop": ["s", "s"], "user": [7, 7], "event_time": times}))
    put_online(night)
    # Hours before the end; which row was known then.
    asked = {100.01: None, 100: 0, 52.1: 0, 51.9: None, 1.01: None, 1: 1, -46: 1, -48: None}
    rows = pd.DataFrame({"shop": "s", "user": 7, "event_timestamp": [end - timedelta(hours=h) for h in asked]})
    rows.loc[len(rows)] = ["s", 8, end]
    names = ["age", "kind=<other>"]

    job = open_repository(store, pipeline).get_historical_features(rows, [f"{pipeline}:{name}" for name in names])
    found = job.to_df()

    assert found[list(rows.columns)].equals(rows)
    for row, known in zip(found[names].to_numpy(), [*asked.values(), None], strict=True):
        if known is None:
            assert np.isnan(row).all()
        else:
            assert row.astype(np.float32).tobytes() == night.features[known, :2].tobytes()


@pytest.mark.parametrize("online", ["sqlite"], indirect=True)
def test_historical_features_need_the_entity_s_columns(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, put_online: Any
) -> None:
    put_online(make_shards(0, make_rows(10)))
    asked = pd.DataFrame({"shop": ["s1"], "event_timestamp": [datetime(2024, 5, 8, tzinfo=UTC)]})

    with pytest.raises(BadDataError, match="no column 'user'; the entity is shop, user"):
        open_repository(store, pipeline).get_historical_features(asked, [f"{pipeline}:age"]).to_df()


@pytest.mark.server
def test_feast_s_own_materialize_reads_the_shards(
    store: Store, pipeline: str, make_rows: Any, make_shards: Any, put_online: Any, check_online: Any
) -> None:
    """Feast's command line fills the same store with the same rows."""
    night = make_shards(0, make_rows(100))
    num_rows = put_online(night)
    repository, view = open_repository(store, pipeline), open_view(store, pipeline)
    end = datetime.fromisoformat(view.tags["as_of"])
    online_store = repository.provider.online_store
    online_store.teardown(repository.config, [view], [])
    online_store.update(repository.config, [], [view], [], [], partial=True)
    assert not any(read_rows(store, view, [{"shop": shop, "user": user} for shop, user in night.newest()]))

    open_repository(store, pipeline).materialize(end - timedelta(hours=48), end)

    assert check_online(night) == [night.ref.place] * num_rows


@pytest.mark.parametrize("online", ["redis"], indirect=True)
def test_on_s3_with_redis(
    s3: str, pipeline: str, make_rows: Any, store_shards: Any, online: Online, tmp_path: Path
) -> None:
    """Shards, registry and offline reads need no file on this machine."""
    store = Store(f"{s3}/{pipeline}")
    night = store_shards(store, pipeline, 0, make_rows(40, days=1))

    assert publish(store, night.ref, pipeline=pipeline, online=online) == len(night.newest())

    (shop, user), (time, features) = next(iter(night.newest().items()))
    [row] = read_rows(store, open_view(store, pipeline), [{"shop": shop, "user": user}])
    assert np.array([*row.features.values()], np.float32).tobytes() == features.tobytes()
    asked = pd.DataFrame({"shop": [shop], "user": [user], "event_timestamp": [time]})
    found = open_repository(store, pipeline).get_historical_features(asked, [f"{pipeline}:age"]).to_df()
    assert np.float32(found["age"][0]) == features[0]


def test_importing_the_feature_store_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    """Feast is imported without torch and typeguard's second compilation; whoever needs these afterwards has them."""
    program = """
import sys
import mlops.feature_store
assert "torch" not in sys.modules and "feast" in sys.modules
import torch, typeguard
assert torch.zeros(1).sum() == 0
@typeguard.typechecked
def f(x: int) -> int:
    return x
try:
    f("text")
except typeguard.TypeCheckError:
    print("as it was")
"""
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "as it was\n", done.stderr
