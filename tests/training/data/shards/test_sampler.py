from __future__ import annotations

import itertools
import tracemalloc
import zlib
from collections import Counter

import numpy as np
import pytest

from mlops.data.shards.sampler import EpochSampler, Permutation, intervals_of

SIZES = [*range(70), 127, 128, 129, 251, 255, 256, 257, 1021, 1023, 1024, 1025, 65_535, 65_536, 65_537, 100_003]
GOLDEN_PLACES = [634124, 202677, 489983, 992266, 103355]
GOLDEN_CHECKSUM = 4119466500
GOLDEN_SAMPLES = [36, 60, 56, 28, 58, 15, 5, 4, 72, 91, 96, 68]


@pytest.mark.parametrize("key", [(0,), (1, 2, 3), (-5, 1 << 70)], ids=str)
def test_every_place_is_taken_once(key: tuple[int, ...]) -> None:
    """Broken: a sample would be seen twice in an epoch, and another one never."""
    for size in SIZES:
        places = Permutation(size, *key)(np.arange(size))
        np.testing.assert_array_equal(np.sort(places), np.arange(size), err_msg=str(size))


@pytest.mark.parametrize("size", [(1 << 32) - 1, 1 << 32, (1 << 32) + 1, 10**12 + 39, (1 << 62) - 1])
def test_huge_ranges_keep_their_bounds_and_their_places_apart(size: int) -> None:
    """Broken: the order of a petabyte would run out of the data."""
    start = size // 3
    places = Permutation(size, 1)(np.arange(start, start + 200_000))
    assert places.min() >= 0
    assert places.max() < size
    assert len(np.unique(places)) == 200_000


def chi_square(counts: np.ndarray) -> float:  # type: ignore[type-arg]
    """Standard deviations by which equally likely counts exceed what chance does to them, about."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def test_all_orders_of_a_few_are_as_likely() -> None:
    found = Counter(tuple(Permutation(4, key)(np.arange(4)).tolist()) for key in range(6000))
    counts = np.array([found[order] for order in itertools.permutations(range(4))])
    assert abs(chi_square(counts)) < 5


@pytest.mark.parametrize("size", [7, 16, 64])
def test_neighbours_go_anywhere(size: int) -> None:
    """Broken: samples that lie together would be in the same batches in every epoch."""
    counts = np.zeros((size, size))
    for key in range(2500):
        places = Permutation(size, key, 1)(np.arange(size))
        counts[places[:-1], places[1:]] += 1
    assert counts.trace() == 0
    assert abs(chi_square(counts[~np.eye(size, dtype=bool)])) < 5


@pytest.mark.parametrize("distance", [1, 2, 1000, 1001])
def test_a_large_order_shows_no_pattern(distance: int) -> None:
    """Also at distances near the root of the size, where the network's halves would show."""
    size = 1_000_000
    places = Permutation(size, 7)(np.arange(size))
    counts, _, _ = np.histogram2d(places[:-distance], places[distance:], bins=64, range=[[0, size]] * 2)
    assert abs(chi_square(counts)) < 5
    positions, _, _ = np.histogram2d(np.arange(size), places, bins=64, range=[[0, size]] * 2)
    # Fuller than chance by nothing: every row and column holds exactly its share.
    assert chi_square(positions) < 5


@pytest.mark.parametrize("stop", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0, 8.0])
def test_the_shard_of_a_place_is_found(stop: int, spread: float) -> None:
    """Broken: samples would be read from another shard, or from beyond its end."""
    rng = np.random.default_rng(4)
    for num_shards in (1, 2, 3, 40, 900):
        sizes = 1 + np.exp(rng.normal(size=num_shards) * spread) * stop
        edges = np.cumsum(np.append(17, sizes.astype(np.int64)))
        places = np.concatenate([rng.integers(17, edges[-1], 500), edges[:-1], edges[1:] - 1])
        found = intervals_of(places, edges[:-1], int(edges[-1]))
        np.testing.assert_array_equal(found, np.searchsorted(edges[:-1], places, side="right") - 1)


def test_the_order_never_changes() -> None:
    """Broken: a run that is resumed by a newer release would see some samples twice."""
    places = Permutation(1_000_003, 7, 1)(np.arange(1_000_003))
    np.testing.assert_array_equal(places[:5], GOLDEN_PLACES)
    assert zlib.crc32(places.astype("<i8").tobytes()) == GOLDEN_CHECKSUM
    order = EpochSampler(np.array([40, 0, 25, 35]), seed=7, epoch=1, window_samples=50)
    np.testing.assert_array_equal(order(np.arange(0, 100, 9)), GOLDEN_SAMPLES)


def test_a_position_beyond_the_end_is_refused() -> None:
    with pytest.raises(IndexError, match=r"range\(10\)"):
        Permutation(10, 1)(np.array([3, 10]))


@pytest.mark.parametrize("window_samples", [1, 50, 333, 10_000])
def test_an_epoch_holds_every_sample_once(window_samples: int) -> None:
    sizes = np.random.default_rng(0).integers(0, 60, 100)
    order = EpochSampler(sizes, seed=1, epoch=2, window_samples=window_samples)
    samples = order(np.arange(order.num_samples))
    np.testing.assert_array_equal(np.sort(samples), np.arange(sizes.sum()))
    scattered = np.random.default_rng(1).permutation(order.num_samples)
    np.testing.assert_array_equal(order(scattered), samples[scattered])


def test_a_window_reads_few_shards_and_mixes_them() -> None:
    """Broken: a small cache would fetch each shard again and again, or a batch would be one shard's."""
    sizes = np.full(64, 1000)
    order = EpochSampler(sizes, seed=1, epoch=1, window_samples=8000)
    assert len(order.window_starts) == 9
    read = []
    for start, stop in itertools.pairwise(order.window_starts):
        shards = order(np.arange(start, stop)) // 1000
        assert len(set(shards.tolist())) == 8
        assert len(set(shards[:100].tolist())) == 8
        read.append(frozenset(shards.tolist()))
    assert len(frozenset.union(*read)) == 64
    again = EpochSampler(sizes, seed=1, epoch=2, window_samples=8000)
    assert frozenset((again(np.arange(8000)) // 1000).tolist()) not in read, "other shards meet in another epoch"


def test_seed_and_epoch_make_the_order() -> None:
    sizes = np.array([500, 500])
    orders = [EpochSampler(sizes, seed=seed, epoch=epoch)(np.arange(1000)) for seed in (1, 2) for epoch in (1, 2)]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).mean() < 0.02


def test_a_trillion_samples_need_memory_for_their_shards_only() -> None:
    sizes = np.full(1_000_000, 1_000_000)
    tracemalloc.start()
    order = EpochSampler(sizes, seed=1, epoch=1)
    samples = order(np.arange(10**11, 10**11 + 1000))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 20 * len(sizes)
    assert len(np.unique(samples)) == 1000
    assert len(np.unique(samples // 1_000_000)) == 4, "a window of four million"
