"""Nights of features as the features step leaves them, and an online store to publish them to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pytest

from mlops.contract.refs import DatasetRef, FeaturesRef, ValidationRef, canonical_json
from mlops.contract.sections.features import Online
from mlops.feature_store.repository import open_view, publish, read_rows
from mlops.store import Store

NAMES = ("age", "kind=<other>", "kind=a:b@v2", "double__underscore")
"""Names that transforms make, with what Feast's own references are made of."""
END = datetime(2024, 5, 8, 4, tzinfo=UTC)
"""As-of time of night 0."""


@dataclass(frozen=True)
class Shards:
    """A night that is stored and can be published."""

    ref: FeaturesRef
    rows: pl.DataFrame
    """``shop``, ``user``, ``event_time``."""
    features: npt.NDArray[np.float32]
    names: tuple[str, ...]

    def newest(self) -> dict[tuple[str, int], tuple[datetime, npt.NDArray[np.float32]]]:
        """Each entity's last row by event time: that time, and its features."""
        last: dict[tuple[str, int], tuple[datetime, npt.NDArray[np.float32]]] = {}
        for i, (shop, user, time) in enumerate(self.rows.rows()):
            if (shop, user) not in last or time >= last[shop, user][0]:
                last[shop, user] = (time, self.features[i])
        return last


@pytest.fixture
def make_rows() -> Callable[..., pl.DataFrame]:
    return random_rows


def random_rows(num_rows: int, *, end: datetime = END, days: float = 4, seed: int = 0) -> pl.DataFrame:
    """Events of some shops' users, spread over the days before ``end``."""
    rng = np.random.default_rng(seed)
    seconds = rng.choice(int(days * 24 * 3600), num_rows, replace=False)
    return pl.DataFrame(
        {
            "shop": [f"s{i}" for i in rng.integers(0, 3, num_rows)],
            "user": pl.Series(rng.integers(0, num_rows // 4 + 1, num_rows), dtype=pl.Int32),
            "event_time": [end - timedelta(seconds=int(s)) for s in seconds],
        },
        schema_overrides={"event_time": pl.Datetime("us", "UTC")},
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path / 'store'}")


@pytest.fixture
def pipeline(tmp_path: Path) -> str:
    return "shop_" + "".join(letter for letter in tmp_path.name.lower() if letter.isalnum())


@pytest.fixture(params=["sqlite", "redis"])
def online(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Online:
    """Both online stores, with two days to live."""
    if request.param == "sqlite":
        return Online(store="sqlite", connection=None, ttl_hours=48)
    return redis_online(request.getfixturevalue("redis_server"), monkeypatch)


def redis_online(uri: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Online:
    address = urlsplit(uri)
    nothing = {"login": None, "password": None, "schema": None, "extra": {}}
    connection = {"conn_type": "redis", "host": address.hostname, "port": address.port, **nothing, **changes}
    monkeypatch.setenv("MLOPS_CONNECTION_REDIS_ONLINE", json.dumps(connection))
    return Online(store="redis", connection="redis-online", ttl_hours=48)


def stored_shards(
    store: Store, pipeline: str, night: float, rows: pl.DataFrame, names: tuple[str, ...] = NAMES, run: str = "aaaa"
) -> Shards:
    """
    Two splits, the first of two shards, with the columns that the features step gives them.

    :param night: days after night 0
    :param run: of the same night with other settings
    """
    end = END + timedelta(days=night)
    place = f"pipelines/{pipeline}/features/{end:%Y%m%dT%H%M%SZ}-{run}"
    features = np.random.default_rng([*place.encode()]).normal(size=(rows.height, len(names))).astype(np.float32)
    splits: dict[str, Any] = {}
    cuts = [0, rows.height // 3, rows.height * 2 // 3, rows.height]
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        split = "train" if number < 2 else "test"
        keys = rows[start:stop]
        columns = {
            "features": pa.FixedSizeListArray.from_arrays(pa.array(features[start:stop].reshape(-1)), len(names)),
            "label": pa.array(np.zeros(stop - start, np.float32)),
            "sample": pa.array(np.arange(stop - start)),
            **{f"key.{name}": keys[name].to_arrow() for name in keys.columns if name != "event_time"},
            "event_time": keys["event_time"].to_arrow(),
        }
        batch = pa.record_batch(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        artifact = store.put_artifact(place, f"{split}-{number:05d}.arrow", bytes(sink.getvalue()))
        shard = {"key": artifact.key, "sha256": artifact.sha256, "num_bytes": artifact.num_bytes}
        splits.setdefault(split, {"shards": []})["shards"].append(shard)
    manifest = canonical_json({"feature_names": list(names), "splits": splits})
    dataset = DatasetRef(
        place="ingest", name=pipeline, version="1", schema_hash="2", num_rows=1, num_bytes=1, interval_start="",
        interval_end=end.isoformat(),
    )  # fmt: skip
    ref = FeaturesRef(
        place=place,
        artifacts={"manifest": store.put_artifact(place, "manifest.json", manifest)},
        version="4",
        num_features=len(names),
        num_samples={},
        parent=ValidationRef(place="validate", schema_sha256="3", num_checks=1, parent=dataset),
    )
    return Shards(ref=ref, rows=rows, features=features, names=names)


@pytest.fixture
def store_shards() -> Callable[..., Shards]:
    return stored_shards


@pytest.fixture
def make_shards(store: Store, pipeline: str) -> Callable[..., Shards]:
    return lambda night, rows, **changes: stored_shards(store, pipeline, night, rows, **changes)


@pytest.fixture
def put_online(store: Store, pipeline: str, online: Online) -> Callable[[Shards], int]:
    """Publish a night; the number of rows written online."""
    return lambda shards: publish(store, shards.ref, pipeline=pipeline, online=online)


@pytest.fixture
def check_online(store: Store, pipeline: str) -> Callable[..., list[str]]:
    return lambda *candidates, **options: assert_online(store, pipeline, *candidates, **options)


def assert_online(store: Store, pipeline: str, *candidates: Shards, ttl_hours: float | None = 48) -> list[str]:
    """
    Every entity's online row is, bit for bit, that of one of these nights, and there is one where each has it alive.

    :return: whose each is, as places
    """
    view = open_view(store, pipeline)
    nights = [(n, n.newest(), datetime.fromisoformat(n.ref.parent.parent.interval_end)) for n in candidates]
    entities = sorted({key for _, newest, _ in nights for key in newest})
    rows = read_rows(store, view, [{"shop": shop, "user": user} for shop, user in entities])
    places = []
    for entity, row in zip(entities, rows, strict=True):
        alive = {}
        for night, newest, end in nights:
            time, features = newest.get(entity, (None, None))
            if time is not None and (ttl_hours is None or time > end - timedelta(hours=ttl_hours)):
                alive[night.ref.place] = (time, night.names, features)
        if row is None:
            assert len(alive) < len(candidates), entity
            continue
        time, names, features = alive[row.features_place]
        assert row.event_time == time.replace(microsecond=0)
        assert tuple(row.features) == names
        assert np.array([*row.features.values()], np.float32).tobytes() == features.tobytes()
        places.append(row.features_place)
    return places
