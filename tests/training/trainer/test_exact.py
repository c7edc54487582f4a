from __future__ import annotations

import pytest
import torch
from torch import Tensor

from training.trainer.layouts.exact import Node, TreeSum, complete, shards_of, subtrees

NUM_SHARDS = 16


def gradients() -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [[torch.randn(3, 4, generator=generator) * 10**shard for _ in range(2)] for shard in range(NUM_SHARDS)]


def summed(world_size: int) -> list[Tensor]:
    """By that many processes, their exchange left out."""
    known: list[dict[Node, Tensor]] = [{}, {}]
    for rank in range(world_size):
        tree = TreeSum()
        for shard in shards_of(rank, world_size, NUM_SHARDS):
            tree.add(shard, gradients()[shard])
        assert [node for node, _ in tree.nodes] == subtrees(shards_of(rank, world_size, NUM_SHARDS))
        for node, parts in tree.nodes:
            for parameter, part in enumerate(parts):
                known[parameter][node] = part
    return [complete(parts, NUM_SHARDS) for parts in known]


@pytest.mark.parametrize("world_size", range(1, NUM_SHARDS + 1))
def test_the_sum_does_not_depend_on_the_number_of_processes(world_size: int) -> None:
    """Broken: a training that lost a machine would end with another model."""
    for ours, alone in zip(summed(world_size), summed(1), strict=True):
        assert ours.view(torch.int32).equal(alone.view(torch.int32))


def test_it_is_the_sum() -> None:
    for parameter, total in enumerate(summed(3)):
        torch.testing.assert_close(total, sum(each[parameter] for each in gradients()))


def test_consecutive_shards_are_few_subtrees() -> None:
    """Broken: processes would send more than they need to."""
    assert subtrees(range(4, 8)) == [Node(2, 1)]
    assert subtrees(range(3, 8)) == [Node(0, 3), Node(2, 1)]
    assert subtrees(range(16)) == [Node(4, 0)]
