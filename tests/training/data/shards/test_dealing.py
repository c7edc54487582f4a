"""How groups are dealt: by chance, and held to what any deal must be."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlops.contract.step import BadConfigError
from mlops.data.shards.dealing import Part, Passes, cut
from mlops.data.shards.feature_table import FeatureTable, offsets_of
from mlops.data.shards.loader import Loader, Step, in_memory
from mlops.data.shards.table_source import InMemory, ShardRows, TableSource

SEEDS = range(20 * int(os.environ.get("CHAOS_ROUNDS", "1")))
WORTH = 50


def lengths_of(rng: np.random.Generator, size: int) -> np.ndarray[Any, Any]:
    """Descending: even, uneven, with one that is longer than all others together, with empty ones."""
    draws = [
        np.full(size, 7),
        rng.integers(0, 9, size),
        np.ceil(rng.lognormal(2, 1.5, size)),
        np.append(np.full(size - 1, 3), 5 * size),
    ]
    return np.sort(draws[rng.integers(len(draws))].astype(np.int64))[::-1]


def rows_of(part: Part, lengths: Any) -> int:
    start, stop = part
    return (stop - start) * max(1, int(lengths[start]))


def chosen(rng: np.random.Generator, *values: int | None) -> int | None:
    return values[rng.integers(len(values))]


@pytest.mark.parametrize("seed", SEEDS)
def test_any_deal_holds_each_group_once_within_the_limits(seed: int) -> None:
    """Broken: a group would be lost or counted twice, or a pass would need more memory than it was given."""
    rng = np.random.default_rng(seed)
    for _ in range(10):
        lengths = lengths_of(rng, int(rng.integers(1, 200)))
        num_ranks = int(rng.integers(1, 9))
        passes = Passes(
            most_groups=chosen(rng, None, 1, 5, 32),
            most_rows=chosen(rng, None, 1, 30, 400),
            worth_rows=chosen(rng, None, 1, WORTH),
            one_shape=False,
        )
        dealt = passes.dealt(lengths, num_ranks)

        assert len(dealt) == num_ranks
        parts = sorted(part for mine in dealt for part in mine)
        edges = [0, *(stop for _, stop in parts)]
        assert [start for start, _ in parts] == edges[:-1]
        assert edges[-1] == len(lengths)
        for start, stop in parts:
            assert stop - start <= (passes.most_groups or len(lengths))
            assert stop - start == 1 or rows_of((start, stop), lengths) <= (passes.most_rows or math.inf)
        if passes.worth_rows is None:
            # As many passes as the limits need, to one that fills up.
            fewest = greedy(lengths, passes.most_groups, passes.most_rows)
            assert max(map(len, dealt)) <= math.ceil(fewest / num_ranks)
        else:
            plain = replace(passes, worth_rows=None).dealt(lengths, num_ranks)
            assert cost(dealt, lengths, passes.worth_rows) <= cost(plain, lengths, passes.worth_rows)


def cost(dealt: Sequence[Sequence[Part]], lengths: Any, worth_rows: int) -> int:
    """Of the slowest rank, in rows."""
    rows = max(sum(rows_of(part, lengths) for part in mine) for mine in dealt)
    return rows + worth_rows * max(map(len, dealt))


def greedy(lengths: Any, most_groups: int | None, most_rows: int | None) -> int:
    """Parts that are filled one after the other, group by group."""
    parts, start = 1, 0
    for stop in range(1, len(lengths)):
        more = stop - start + 1
        if more > (most_groups or math.inf) or more * max(1, lengths[start]) > (most_rows or math.inf):
            parts, start = parts + 1, stop
    return parts


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_is_nearly_the_best_there_is(seed: int) -> None:
    """Broken: the steps of all ranks would take as long as the largest part, which need not be so large."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(lengths_of(rng, int(rng.integers(1, 40))), 1)
    num_parts = int(rng.integers(1, 6))
    # Exactly, by dynamic programming over the last part.
    best = {(0, 0): 0}
    for stop in range(1, len(lengths) + 1):
        for parts in range(1, num_parts + 1):
            costs = [
                max(best[start, parts - 1], rows_of((start, stop), lengths))
                for start in range(stop)
                if (start, parts - 1) in best
            ]
            if costs:
                best[stop, parts] = min(costs)
    least = min(cost for (stop, _), cost in best.items() if stop == len(lengths))

    found = cut(lengths.tolist(), num_parts)

    assert len(found) <= num_parts
    assert max(rows_of(part, lengths) for part in found) <= least * (1 + 1 / 32) + 1


def test_a_pass_more_must_spare_its_worth() -> None:
    """Broken: a training would take more passes for nothing, or compute on zeros for ever."""
    rng = np.random.default_rng(1)
    lengths = np.sort(np.ceil(rng.lognormal(3, 1, 256)).astype(np.int64))[::-1]

    def slowest(worth: int | None) -> tuple[int, int]:
        dealt = Passes(worth_rows=worth).dealt(lengths, 2)
        return max(sum(rows_of(part, lengths) for part in mine) for mine in dealt), max(map(len, dealt))

    (one, passes), (more, more_passes) = slowest(None), slowest(200)
    assert passes == 1
    assert one - more >= 200 * (more_passes - 1) > 0
    assert slowest(one) == (one, 1)
    assert slowest(200)[0] < 1.3 * lengths.sum() / 2
    even = np.full(256, 40)
    assert Passes(worth_rows=1).dealt(even, 2) == [[(0, 128)], [(128, 256)]]


def test_what_is_left_over_is_long() -> None:
    """Broken: a batch norm would be given the last group, of a single row, and fail."""
    lengths = np.sort(np.arange(1, 104) % 9 + 1)[::-1]
    for num_ranks in range(1, 12):
        parts = [part for mine in Passes(most_rows=40).dealt(lengths, num_ranks) for part in mine]
        assert min(rows_of(part, lengths) for part in parts) > 4


def test_a_pipeline_gets_parts_of_one_size() -> None:
    """Broken: all of its passes would be padded to the many short groups of one and the long ones of another."""
    lengths = np.sort(np.ceil(np.random.default_rng(1).lognormal(3, 2, 50)).astype(np.int64))[::-1]
    dealt = Passes(most_groups=4, worth_rows=1, one_shape=True).dealt(lengths, 3)
    assert {stop - start for mine in dealt for start, stop in mine} <= {3, 4}
    assert {len(mine) for mine in dealt} == {5}


def uneven() -> FeatureTable:
    rng = np.random.default_rng(3)
    offsets = offsets_of(np.ceil(rng.lognormal(1, 1.2, 103)).astype(np.int64))
    features = rng.normal(size=(offsets[-1], 2)).astype(np.float32)
    return FeatureTable(features=features, labels=features[:, 0].copy(), offsets=offsets)


UNEVEN = uneven()


def loader(rank: int, world_size: int, **changes: Any) -> Loader:
    arguments = {
        "source": in_memory(UNEVEN, grouped=True),
        "global_batch": 24,
        "seed": 1,
        "prefetch": 0,
        "micro_batch_rows": 30,
        "pass_worth_rows": 5,
    }
    return Loader(rank=rank, world_size=world_size, **(arguments | changes))


def parts_of(step: Step) -> list[list[int]]:
    return [batch.samples.tolist() for batch in step.batches if batch.weights.sum()]


@pytest.mark.parametrize("world_size", [1, 2, 3, 30])
def test_a_resumed_epoch_has_the_same_batches(world_size: int) -> None:
    """Broken: a training that was killed would add up its gradients in other batches, to other bits."""
    for rank in (0, world_size - 1):
        whole = [parts_of(step) for step in loader(rank, world_size).epoch(2)]
        for start in (1, 3):
            assert [parts_of(step) for step in loader(rank, world_size).epoch(2, start)] == whole[start:]


@pytest.mark.parametrize("world_size", [1, 2, 3, 30])
def test_batches_keep_to_the_budget(world_size: int) -> None:
    ranks = [list(loader(rank, world_size).epoch(1)) for rank in range(world_size)]
    for steps in zip(*ranks, strict=True):
        assert len({len(step.batches) for step in steps}) == 1, "a rank would miss a collective"
        batches = [batch for step in steps for batch in step.batches]
        rows = sum(int(batch.mask[batch.weights > 0].sum()) for batch in batches if batch.mask is not None)
        assert {step.num_rows for step in steps} == {rows}
        for batch in batches:
            assert len(batch.samples) == 1 or batch.labels.numel() <= 30
            if not batch.weights.sum():
                assert batch.labels.numel() <= rows / steps[0].num_samples * 2, "a stand-in costs little"


def test_every_rank_gets_long_and_short_groups_by_turns() -> None:
    """Broken: the first rank, whose batch norm's statistics are kept, would have seen the longest groups only."""
    offsets = offsets_of(np.array([12, 6, 6, 3, 3, 3, 3]))
    rows = ShardRows(features=np.zeros((36, 1), np.float32), labels=np.zeros(36, np.float32), offsets=offsets)
    # Each global batch is a shard, and all are alike.
    source = TableSource(InMemory(rows), np.full(3, 7), grouped=True, window_samples=7)
    steps = loader(0, 3, source=source, global_batch=7, micro_batch_rows=None, pass_worth_rows=None).epoch(1)
    assert sorted(step.batches[0].labels.shape[1] for step in steps) == [3, 6, 12]


def test_logical_shards_of_uneven_groups_are_even() -> None:
    """Broken: each process would wait for the one with the long groups, in exact mode too."""
    whole = next(loader(0, 1, micro_batch_rows=None, logical_shards=8, global_batch=96).epoch(1))
    padded = [batch.labels.numel() for batch in whole.batches]
    longest = max(len(batch.labels[0]) for batch in whole.batches)
    assert max(padded) <= max(longest, 1.5 * whole.num_rows / 8)
    assert list(whole.shards) == list(range(8))


def test_a_budget_where_it_means_nothing_is_refused() -> None:
    with pytest.raises(BadConfigError, match="micro_batch_rows 30 cannot be had in exact mode"):
        loader(0, 1, logical_shards=4)
    with pytest.raises(BadConfigError, match="micro_batch_rows 30 is for groups of rows"):
        loader(0, 1, source=in_memory(UNEVEN, grouped=False))
