from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mlops.contract.step import python_path
from mlops.trainer.strategies.exact import Exchange, FlatGradients, TreeNode, TreeSum, complete, shards_of, subtrees

NUM_SHARDS = 16
SHAPES = [(3, 4), (), (5, 1), (31,)]
CHECKOUT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("exact_program.py")


def like() -> list[Tensor]:
    return [torch.zeros(shape) for shape in SHAPES]


def gradients(shard: int) -> list[Tensor | None]:
    """Of very unequal size, so that each order of a sum has a result of its own; some are missing, some are -0.0."""
    generator = torch.Generator().manual_seed(shard)
    made: list[Tensor | None] = [torch.randn(shape, generator=generator) * 10.0 ** (shard % 7) for shape in SHAPES]
    if shard % 5 == 3:
        made[shard % 3] = None
    elif shard % 5 == 1:
        made[2] = torch.full(SHAPES[2], -0.0)
    return made


def naive(node: TreeNode, parameter: int) -> Tensor:
    """The sum as it is defined: of two halves, down to the logical shards."""
    if node.level:
        halves = [TreeNode(node.level - 1, 2 * node.index + half) for half in (0, 1)]
        return naive(halves[0], parameter) + naive(halves[1], parameter)
    gradient = gradients(node.index)[parameter]
    return torch.zeros(SHAPES[parameter]) if gradient is None else gradient


def summed(world_size: int, num_shards: int) -> list[Tensor]:
    """By that many processes, their exchange left out; each tree is used a second time."""
    known: list[dict[TreeNode, Tensor]] = [{} for _ in SHAPES]
    for rank in range(world_size):
        tree = TreeSum(like(), world_size)
        for _ in range(2):
            tree.clear()
            for shard in shards_of(rank, world_size, num_shards):
                tree.add(shard, gradients(shard))
        assert [node for node, _ in tree.nodes] == subtrees(shards_of(rank, world_size, num_shards))
        for node, flat in tree.nodes:
            for parameter, part in enumerate(flat.parts):
                known[parameter][node] = part
    return [complete(parts, num_shards) for parts in known]


def bits(tensor: Tensor) -> list[int]:
    found: list[int] = tensor.reshape(-1).view(torch.int32).tolist()
    return found


@pytest.mark.parametrize("num_shards", [1, 2, NUM_SHARDS])
def test_the_sum_is_that_of_the_tree_at_any_number_of_processes(num_shards: int) -> None:
    """Broken: a training that lost a machine would end with another model."""
    root = TreeNode(num_shards.bit_length() - 1, 0)
    expected = [bits(naive(root, parameter)) for parameter in range(len(SHAPES))]
    for world_size in range(1, num_shards + 1):
        assert [bits(total) for total in summed(world_size, num_shards)] == expected


def test_it_is_the_sum() -> None:
    for parameter, total in enumerate(summed(3, NUM_SHARDS)):
        each = [naive(TreeNode(0, shard), parameter) for shard in range(NUM_SHARDS)]
        torch.testing.assert_close(total, torch.stack(each).sum(0))


@pytest.mark.parametrize("num_slices", [1, 2, 3, 7])
def test_parameters_lie_in_the_same_places_at_any_number_of_processes(num_slices: int) -> None:
    """Broken: an optimizer or a norm would meet its gradients at other addresses."""
    flat, alone = FlatGradients.zeros(like(), num_slices), FlatGradients.zeros(like(), 1)
    assert flat.whole.numel() % num_slices == 0
    assert [part.storage_offset() for part in flat.parts] == [part.storage_offset() for part in alone.parts]
    assert [part.data_ptr() % 64 for part in flat.parts] == [0] * len(SHAPES)


def test_a_tree_uses_its_memory_again() -> None:
    """Broken: each step of a large model would ask for gigabytes, and wait for them."""
    tree = TreeSum(like(), 1)
    exchange = Exchange(like(), 8, 0, 1)
    seen = set()
    for _ in range(3):
        tree.clear()
        for shard in range(8):
            tree.add(shard, gradients(shard))
        seen.add(exchange.sum(tree)[0].data_ptr())
        seen |= {flat.whole.data_ptr() for flat in tree._free}
    assert len(seen) <= 4


def test_consecutive_shards_are_few_subtrees() -> None:
    """Broken: processes would send more than they need to."""
    assert subtrees(range(4, 8)) == [TreeNode(2, 1)]
    assert subtrees(range(3, 8)) == [TreeNode(0, 3), TreeNode(2, 1)]
    assert subtrees(range(16)) == [TreeNode(4, 0)]


@pytest.mark.gang
def test_any_number_of_processes_trains_the_same_weights(tmp_path: Path) -> None:
    """
    Of 93 features, which make rows of odd length, in logical shards of 4 rows, for which MKL's results depend on where
    memory lies; alone, in 2 to 4 processes, and stopped in mid-epoch to go on in another number.
    """
    results = tmp_path / "results.json"
    path = python_path(CHECKOUT)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, PROGRAM, results], check=True, timeout=300, env=environment)
    found: dict[str, Any] = json.loads(results.read_text())
    assert found.keys() == {"naive", "1", "2", "3", "4", "2 then 3", "4 then 1"}
    assert {name: digest for name, digest in found.items() if digest != found["naive"]} == {}
    assert found["naive"] != hashlib.sha256().hexdigest()
