from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.loader import Loader
from mlops.data.shards.shard_cache import ShardCache
from mlops.data.shards.tokens import TokenSource, write_tokens
from mlops.store import Store
from mlops.store_errors import DamagedObjectError

EOS = 9


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path / 'store'}")


def documents(num_documents: int = 40, vocab_size: int = 1000) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    rng = np.random.default_rng(0)
    return [rng.integers(10, vocab_size, rng.integers(0, 60)) for _ in range(num_documents)]


def end_to_end(parts: list[np.ndarray[Any, np.dtype[np.int64]]], eos: int | None) -> list[int]:
    return [token for part in parts for token in [*part.tolist(), *([] if eos is None else [eos])]]


def opened(store: Store, split: dict[str, Any], tmp_path: Path) -> TokenSource:
    return TokenSource.open(ShardCache(store, tmp_path / "cache"), split)


@pytest.mark.parametrize("eos", [None, EOS], ids=["joined", "separated"])
@pytest.mark.parametrize(
    ("max_shard_bytes", "num_shards"), [pytest.param(1 << 20, 1, id="one"), pytest.param(300, None, id="many shards")]
)
def test_every_token_but_the_first_is_a_target_once(
    store: Store, tmp_path: Path, eos: int | None, max_shard_bytes: int, num_shards: int | None
) -> None:
    """Broken: text would be lost at the edges of samples or shards, or counted twice."""
    written = documents()
    split = write_tokens(store, "f", "train", written, context=16, eos=eos, max_shard_bytes=max_shard_bytes)
    stream = end_to_end(written, eos)
    whole = (len(stream) - 1) // 16
    assert (split["num_samples"], split["num_tokens"]) == (whole, whole * 16 + 1)
    assert len(split["shards"]) == num_shards or (num_shards is None and len(split["shards"]) > 3)
    assert all(shard["num_bytes"] <= max_shard_bytes for shard in split["shards"])

    batch = opened(store, split, tmp_path).gather(np.arange(whole))

    assert batch.features.flatten().tolist() == stream[: whole * 16]
    assert batch.labels.flatten().tolist() == stream[1 : whole * 16 + 1]
    assert batch.mask is None
    assert batch.weights.tolist() == [1.0] * whole


@pytest.mark.parametrize(("vocab_size", "num_bytes"), [(1 << 16, 2), (100_000, 4)])
def test_a_token_takes_no_more_bytes_than_its_vocabulary_needs(
    store: Store, tmp_path: Path, vocab_size: int, num_bytes: int
) -> None:
    largest = np.array([0, vocab_size - 1, 1])
    split = write_tokens(store, "f", "train", [largest], context=2, eos=None, vocab_size=vocab_size)
    assert split["shards"][0]["num_bytes"] == 3 * num_bytes
    batch = opened(store, split, tmp_path).gather(np.array([0]))
    assert batch.labels.tolist() == [[vocab_size - 1, 1]]


def test_a_loader_deals_sequences_of_many_shards(store: Store, tmp_path: Path) -> None:
    split = write_tokens(store, "f", "train", documents(), context=8, eos=EOS, max_shard_bytes=200)
    source = opened(store, split, tmp_path)
    stream = np.array(end_to_end(documents(), EOS))
    seen = []
    for rank in range(3):
        loader = Loader(source=source, global_batch=10, seed=1, rank=rank, world_size=3, micro_batch=2)
        for step in loader.epoch(1):
            for batch in step.batches:
                for row, sample in enumerate(batch.samples.tolist()):
                    np.testing.assert_array_equal(batch.features[row].numpy(), stream[sample * 8 : sample * 8 + 8])
                    seen += [sample] * int(batch.weights[row])
    assert sorted(seen) == list(range(split["num_samples"]))


def test_a_token_outside_the_vocabulary_is_named(store: Store) -> None:
    """Broken: 70,000 would be stored as 4,464 and learnt as another word."""
    with pytest.raises(BadDataError, match=r"document 1 of the split 'train' has the token 70000, .* range\(65536\)"):
        write_tokens(store, "f", "train", [np.array([1]), np.array([2, 70_000])], context=1, eos=None)
    with pytest.raises(BadConfigError, match=r"eos must be in range\(50\), the vocabulary, got 50"):
        write_tokens(store, "f", "train", [], context=1, eos=50, vocab_size=50)
    with pytest.raises(BadConfigError, match="context must be at least 1, got 0"):
        write_tokens(store, "f", "train", [], context=0, eos=None)


def test_too_little_text_is_an_empty_split(store: Store, tmp_path: Path) -> None:
    split = write_tokens(store, "f", "train", [np.array([1, 2, 3])], context=8, eos=None)
    assert (split["num_samples"], split["num_tokens"], split["shards"]) == (0, 0, [])
    loader = Loader(source=opened(store, split, tmp_path), global_batch=4, seed=1, rank=0, world_size=1)
    assert list(loader.epoch(1)) == []


def test_a_damaged_shard_is_named(store: Store, tmp_path: Path) -> None:
    split = write_tokens(store, "f", "train", documents(), context=8, eos=None)
    key = split["shards"][0]["key"]
    store.put(key, store.get(key)[:-2] + b"xx")
    with pytest.raises(DamagedObjectError, match=key):
        opened(store, split, tmp_path).gather(np.array([0]))


def test_tensors_of_tokens_are_aligned(store: Store, tmp_path: Path) -> None:
    """Broken: see the loader's test of rows."""
    split = write_tokens(store, "f", "train", documents(), context=5, eos=EOS, max_shard_bytes=200)
    loader = Loader(source=opened(store, split, tmp_path), global_batch=7, seed=1, rank=1, world_size=2)
    for step in loader.epoch(1, start=1):
        for batch in step.batches:
            tensors = (batch.features, batch.labels, batch.weights)
            assert [tensor.data_ptr() % 64 for tensor in tensors] == [0, 0, 0]
