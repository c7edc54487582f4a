from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlops_provider.refs import DatasetRef, FeaturesRef, ValidationRef, canonical_json
from mlops_provider.step import BadDataError
from training.data.shards import FeatureTable, open_split, write_split
from training.store import DamagedObjectError, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path / 'store'}")


def table(lengths: list[int], num_features: int = 5) -> FeatureTable:
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return FeatureTable(
        features=rng.normal(size=(offsets[-1], num_features)).astype(np.float32),
        labels=rng.integers(0, 5, offsets[-1]).astype(np.float32),
        offsets=offsets,
    )


def features_ref(store: Store, splits: dict[str, Any]) -> FeaturesRef:
    dataset = DatasetRef(
        place="d", name="d", version="", schema_hash="", num_rows=0, num_bytes=0, interval_start="", interval_end=""
    )
    manifest = store.put_artifact("f", "manifest.json", canonical_json({"splits": splits}))
    return FeaturesRef(
        place="f",
        artifacts={"manifest": manifest},
        version="",
        num_features=5,
        num_samples={},
        parent=ValidationRef(place="v", schema_sha256="", num_checks=0, parent=dataset),
    )


@pytest.mark.parametrize(
    ("lengths", "max_shard_bytes", "num_shards"),
    [
        pytest.param([3, 1, 4, 2], 1 << 20, 1, id="one shard"),
        pytest.param([3, 1, 4, 2], 32 * 4, 3, id="shards end between samples"),
        pytest.param([9, 9], 32, 2, id="a sample larger than a shard"),
        pytest.param([], 1 << 20, 1, id="empty"),
    ],
)
def test_what_is_written_is_read(
    store: Store, tmp_path: Path, lengths: list[int], max_shard_bytes: int, num_shards: int
) -> None:
    """Otherwise rows would be lost, or a query cut in two."""
    written = table(lengths)
    part = write_split(store, "f", "train", written, max_shard_bytes)

    opened = open_split(store, features_ref(store, {"train": part}), "train", tmp_path)

    assert len(part["shards"]) == num_shards
    assert (part["num_rows"], part["num_samples"]) == (sum(lengths), len(lengths))
    for name in ("features", "labels", "offsets"):
        np.testing.assert_array_equal(getattr(opened, name), getattr(written, name))


def test_a_local_shard_is_used_in_place(store: Store, tmp_path: Path) -> None:
    """Otherwise opening a large split would cost its size in memory, once per process."""
    part = write_split(store, "f", "train", table([2] * 500))

    opened = open_split(store, features_ref(store, {"train": part}), "train", tmp_path)

    path = str(tmp_path / "store" / part["shards"][0]["key"])
    address = opened.features.ctypes.data
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(path)]
    bounds = [[int(edge, 16) for edge in fields[0].split("-")] for fields in mapped]
    assert any(low <= address < high for low, high in bounds), "the array lies in the mapped file"


def test_equal_tables_give_equal_shards(store: Store) -> None:
    """Otherwise rebuilt features would not have the digest of the first ones."""
    first, second = (write_split(store, place, "train", table([2, 3])) for place in ("f", "g"))

    assert [shard["sha256"] for shard in first["shards"]] == [shard["sha256"] for shard in second["shards"]]


def test_a_damaged_shard_is_named(store: Store, tmp_path: Path) -> None:
    """Otherwise a model could be trained on flipped bits."""
    part = write_split(store, "f", "train", table([2, 3]))
    path = tmp_path / "store" / part["shards"][0]["key"]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    with pytest.raises(DamagedObjectError, match=part["shards"][0]["key"]):
        open_split(store, features_ref(store, {"train": part}), "train", tmp_path)


def test_an_unknown_split_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match="no split 'tset', only train"):
        open_split(store, features_ref(store, {"train": write_split(store, "f", "t", table([1]))}), "tset", tmp_path)
