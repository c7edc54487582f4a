from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from mlops.contract.refs import DatasetRef, FeaturesRef, ValidationRef, canonical_json
from mlops.contract.step import BadDataError
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.loader import Loader, in_memory
from mlops.data.shards.shard_reading import open_source, open_split
from mlops.data.shards.shard_writing import SplitWriter, write_split
from mlops.data.shards.tokens import write_tokens
from mlops.store import Store
from mlops.store_errors import DamagedObjectError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path / 'store'}")


def table(
    lengths: list[int], num_features: int = 5, *, ids: bool = False, several: tuple[int, ...] = ()
) -> FeatureTable:
    """:param several: number of labels of a row; none: it has one"""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return FeatureTable(
        features=rng.normal(size=(offsets[-1], num_features)).astype(np.float32),
        labels=rng.integers(0, 5, (offsets[-1], *several)).astype(np.float32),
        offsets=offsets,
        ids=rng.integers(0, 2**64, len(lengths), dtype=np.uint64) if ids else None,
    )


def features_ref(store: Store, splits: dict[str, Any], **manifest_entries: Any) -> FeaturesRef:
    dataset = DatasetRef(
        place="d", name="d", version="", schema_hash="", num_rows=0, num_bytes=0, interval_start="", interval_end=""
    )
    manifest = store.put_artifact("f", "manifest.json", canonical_json({"splits": splits, **manifest_entries}))
    return FeaturesRef(
        place="f",
        artifacts={"manifest": manifest},
        version="",
        num_features=5,
        num_samples={},
        parent=ValidationRef(place="v", schema_sha256="", num_checks=0, parent=dataset),
    )


@pytest.mark.parametrize("several", [(), (2,)], ids=["a label", "labels"])
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
    store: Store, tmp_path: Path, lengths: list[int], max_shard_bytes: int, num_shards: int, several: tuple[int, ...]
) -> None:
    """Otherwise rows would be lost, or a query cut in two."""
    # Rows of one width.
    written = table(lengths, 5 - sum(several) + len(several), several=several)
    part = write_split(store, "f", "train", written, max_shard_bytes=max_shard_bytes)

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


@pytest.mark.parametrize("several", [(), (3,)], ids=["a label", "labels"])
@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
def test_a_source_gathers_across_shards(store: Store, tmp_path: Path, grouped: bool, several: tuple[int, ...]) -> None:
    """Whatever the order of the samples and the shard they are in."""
    written = table(np.random.default_rng(1).integers(1, 6, 300).tolist() if grouped else [1] * 300, several=several)
    part = write_split(store, "f", "train", written, max_shard_bytes=32 * 70)
    assert len(part["shards"]) > 3

    source = open_source(store, features_ref(store, {"train": part}, grouped=grouped), "train", tmp_path)

    assert source.shard_sizes.tolist() == [shard["num_samples"] for shard in part["shards"]]
    for samples in (np.random.default_rng(2).permutation(300), np.array([299, 0]), np.array([7])):
        batch, expected = source.gather(samples), in_memory(written, grouped=grouped).gather(samples)
        np.testing.assert_array_equal(batch.features, expected.features)
        np.testing.assert_array_equal(batch.labels, expected.labels)
        assert source.lengths(samples).tolist() == np.diff(written.offsets)[samples].tolist()


def test_a_source_opens_a_shard_when_it_is_used(store: Store, tmp_path: Path) -> None:
    """Broken: a training would hash all its data before the first step."""
    part = write_split(store, "f", "train", table([1] * 300), max_shard_bytes=32 * 70)
    first, last = part["shards"][0], part["shards"][-1]
    source = open_source(store, features_ref(store, {"train": part}), "train", tmp_path)
    (tmp_path / "store" / last["key"]).unlink()

    source.gather(np.arange(first["num_samples"]))

    with pytest.raises(DamagedObjectError, match=last["key"]):
        source.gather(np.array([299]))


def test_a_bucket_is_read_through_a_cache_smaller_than_the_split(s3: str, tmp_path: Path) -> None:
    """The order and the batches are those of a local disk; the disk holds no more than it may."""
    store = Store(f"{s3}/{tmp_path.name}/store")
    written = table([1, 3, 2] * 200, ids=True)
    part = write_split(store, "f", "train", written, max_shard_bytes=32 * 150)
    sizes = [shard["num_bytes"] for shard in part["shards"]]
    max_bytes = 3 * max(sizes)
    assert len(sizes) > 6
    ref, cache = features_ref(store, {"train": part}, grouped=True), tmp_path / "cache"
    source = open_source(store, ref, "train", cache, max_cache_bytes=max_bytes)
    whole = open_split(store, ref, "train", tmp_path)

    seen = []
    for step in Loader(source=source, global_batch=150, seed=1, rank=0, world_size=1).epoch(1):
        (batch,) = step.batches
        np.testing.assert_array_equal(batch.features, in_memory(whole, grouped=True).gather(batch.samples).features)
        seen += batch.samples.tolist()
        assert sum(file.stat().st_size for file in cache.iterdir()) <= max_bytes

    assert sorted(seen) == list(range(600))


def test_a_tokens_split_is_opened_like_any_other(store: Store, tmp_path: Path) -> None:
    part = write_tokens(store, "f", "train", [np.arange(100)], context=9, eos=None)
    source = open_source(store, features_ref(store, {"train": part}), "train", tmp_path)
    assert source.gather(np.array([1])).features.tolist() == [list(range(9, 18))]


def test_groups_are_not_taken_for_rows(store: Store, tmp_path: Path) -> None:
    part = write_split(store, "f", "train", table([2, 3]))
    with pytest.raises(BadDataError, match="5 rows in 2 samples, but its manifest does not say that rows are grouped"):
        open_source(store, features_ref(store, {"train": part}), "train", tmp_path)


def samples(part: FeatureTable) -> dict[int, tuple[bytes, bytes]]:
    """Each sample's bytes by its id."""
    assert part.ids is not None
    singles = [part.samples(i, i + 1) for i in range(part.num_samples)]
    return {
        int(id_): (one.features.tobytes(), one.labels.tobytes()) for id_, one in zip(part.ids, singles, strict=True)
    }


@pytest.mark.parametrize("several", [(), (3,)], ids=["a label", "labels"])
@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "by way of the disk"])
def test_samples_are_shuffled_within_and_between_equal_shards(
    store: Store, tmp_path: Path, in_memory: bool, several: tuple[int, ...]
) -> None:
    """A rank that reads one shard must see samples of every day, and no rank more than another."""
    lengths = np.random.default_rng(1).integers(1, 9, 5000).tolist()
    written = table(lengths, ids=True, several=several)
    row = 4 * (5 + sum(several or (1,))) + 8
    num_bytes = 0 if in_memory else sum(lengths) * row
    with SplitWriter(
        store, "f", "train", num_bytes=num_bytes, max_shard_bytes=row * 3000, bucket_bytes=row * 2000
    ) as writer:
        for start in range(0, 5000, 500):
            writer.add(written.samples(start, start + 500))
        part = writer.finish()

    opened = open_split(store, features_ref(store, {"train": part}), "train", tmp_path)
    sizes = [shard["num_rows"] for shard in part["shards"]]
    assert len(sizes) == -(-sum(lengths) // 3000)
    assert max(sizes) - min(sizes) < 0.05 * min(sizes)
    assert samples(opened) == samples(written)
    assert opened.ids is not None
    assert written.ids is not None
    where = {id_: place for place, id_ in enumerate(written.ids.tolist())}
    moved = [where[id_] for id_ in opened.ids.tolist()]
    for first in range(0, 5000, 1000):
        assert len({place // 500 for place in moved[first : first + 1000]}) == 10
    assert abs(np.corrcoef(moved, range(5000))[0, 1]) < 0.05


def test_shards_follow_from_the_samples_alone(store: Store) -> None:
    """Whatever order or batches they come in: a second engine, or a retry, must come to the same digests."""
    written = table([2, 3, 1] * 400, ids=True)
    digests = []
    for number, (size, num_bytes) in enumerate([(1200, 0), (7, 0), (100, 1 << 20)]):
        order = np.random.default_rng(number).permutation(1200)
        with SplitWriter(
            store, f"f{number}", "train", num_bytes=num_bytes, max_shard_bytes=32 * 500, bucket_bytes=1 << 14
        ) as writer:
            for start in range(0, 1200, size):
                writer.add(written.take(order[start : start + size]))
            digests.append([shard["sha256"] for shard in writer.finish()["shards"]])

    assert len(digests[0]) == 5
    assert digests[0] == digests[1] == digests[2]


def test_the_number_of_shards_follows_from_the_keys_and_not_from_the_batches(store: Store) -> None:
    """Broken: features of Spark, whose batches are others, would have other shards, and the training other weights."""
    written = table([1] * 1200, ids=True)
    keys = pl.DataFrame({"key.user": ["u" * (number // 10) for number in range(1200)], "key.at": [1] * 1200})
    digests = []
    for size in (1200, 50, 6):
        with SplitWriter(store, f"f{size}", "train", max_shard_bytes=1 << 14) as writer:
            for start in range(0, 1200, size):
                writer.add(replace(written.samples(start, start + size), keys=keys[start : start + size]))
            part = writer.finish()
        digests.append([shard["sha256"] for shard in part["shards"]])

    num_bytes = 1200 * (4 * 6 + 8 + 8 + 8) + sum(number // 10 for number in range(1200))
    assert len(digests[0]) == -(-num_bytes // (1 << 14))
    assert digests[0] == digests[1] == digests[2]


def test_keys_stay_with_their_rows(store: Store) -> None:
    """The feature store would otherwise serve one entity the features of another."""
    written = table([1, 2, 1], ids=True)
    keys = pl.DataFrame({"key.item": ["a", "b", "c", "d"], "label of it": written.labels})

    part = write_split(store, "f", "train", written, keys=keys, max_shard_bytes=60)

    assert len(part["shards"]) > 1
    for shard in part["shards"]:
        batch = pa.ipc.open_file(store.get(shard["key"])).get_batch(0)
        assert batch.column("label").to_pylist() == batch.column("label of it").to_pylist()


def test_two_samples_of_one_key_are_refused(store: Store) -> None:
    """They may have been in two batches, where nothing else would notice."""
    written = table([2, 3], ids=True)
    with SplitWriter(store, "f", "train") as writer:
        writer.add(written)
        writer.add(written.samples(1, 2))

        with pytest.raises(BadDataError, match="1 samples of the split 'train' have the keys of another one"):
            writer.finish()
