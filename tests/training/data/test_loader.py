from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from training.data.loader import Loader, gather, in_order

NUM_SAMPLES = 23
GLOBAL_BATCH = 5


def table(grouped: bool) -> SimpleNamespace:
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 6, NUM_SAMPLES) if grouped else np.ones(NUM_SAMPLES, int)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    features = rng.normal(size=(offsets[-1], 4)).astype(np.float32)
    return SimpleNamespace(
        features=features, labels=rng.integers(0, 5, offsets[-1]).astype(np.float32), offsets=offsets
    )


def loaders(world_size: int, seed: int = 1, grouped: bool = False) -> list[Loader]:
    return [
        Loader(
            table=table(grouped),
            grouped=grouped,
            global_batch=GLOBAL_BATCH,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]


def global_batches(world_size: int, epoch: int, seed: int = 1) -> list[list[int]]:
    """The samples of every global batch, put together from all ranks."""
    steps = zip(*(loader.epoch(epoch) for loader in loaders(world_size, seed)), strict=True)
    return [
        sorted(
            int(sample)
            for batch, _ in ranks
            for sample, weight in zip(batch.samples, batch.weights, strict=True)
            if weight
        )
        for ranks in steps
    ]


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_every_world_size_sees_the_same_global_batches(world_size: int) -> None:
    """Broken: the number of machines would change what is learnt."""
    assert global_batches(world_size, epoch=1) == global_batches(1, epoch=1)


@pytest.mark.parametrize("world_size", [1, 2, 7])
def test_an_epoch_holds_every_sample_once(world_size: int) -> None:
    seen = [sample for batch in global_batches(world_size, epoch=2) for sample in batch]
    assert sorted(seen) == list(range(NUM_SAMPLES))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    assert global_batches(1, epoch=1) == global_batches(1, epoch=1)
    assert global_batches(1, epoch=1) != global_batches(1, epoch=2)
    assert global_batches(1, epoch=1, seed=1) != global_batches(1, epoch=1, seed=2)


def test_a_rank_without_samples_gets_a_stand_in_of_no_weight() -> None:
    """Broken: the rank would miss an all-reduce and the gang would hang, or a sample would count twice."""
    last = [list(loader.epoch(1))[-1] for loader in loaders(world_size=4)]
    assert [count for _, count in last] == [3, 3, 3, 3]
    assert [batch.weights.sum().item() for batch, _ in last] == [1, 1, 1, 0]
    assert last[3][0].features.shape == (1, 4)


def test_groups_are_padded_with_zeros_under_the_mask() -> None:
    data = table(grouped=True)
    batch = gather(data, np.array([4, 9, 2]), grouped=True)
    assert batch.mask is not None
    for position, sample in enumerate([4, 9, 2]):
        first, last = data.offsets[sample], data.offsets[sample + 1]
        length = last - first
        assert batch.mask[position].tolist() == [True] * length + [False] * (batch.mask.shape[1] - length)
        np.testing.assert_array_equal(batch.features[position, :length].numpy(), data.features[first:last])
        np.testing.assert_array_equal(batch.labels[position, :length].numpy(), data.labels[first:last])
        assert batch.features[position, length:].abs().sum() == 0
        assert batch.labels[position, length:].abs().sum() == 0


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
def test_reading_in_order_gives_back_the_table(grouped: bool) -> None:
    data = table(grouped)
    parts = [
        batch.features if batch.mask is None else batch.features[batch.mask]
        for batch in in_order(data, 4, grouped=grouped)
    ]
    np.testing.assert_array_equal(torch.cat(parts).numpy(), data.features)


def test_a_batch_does_not_share_memory_with_the_table() -> None:
    """Broken: a model that works in place would change a memory-mapped shard."""
    data = table(grouped=False)
    before = data.features.copy()
    gather(data, np.arange(5), grouped=False).features.add_(1)
    np.testing.assert_array_equal(data.features, before)
