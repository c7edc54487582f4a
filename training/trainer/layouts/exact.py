"""
Gradients that are the same to the bit at any number of processes.

A global batch is cut into a fixed number of logical shards. The gradient of each is computed on its own, and they are
added up along one binary tree, whoever computed them: floating-point sums depend on their order alone. A process adds
up the subtrees that lie within its own shards; the rest of the tree is completed by all, each on its own slice of the
gradient, which is then gathered. Where the number of processes is a power of two this moves as many bytes as a ring
all-reduce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


@dataclass(frozen=True, order=True, slots=True)
class Node:
    """The sum of the logical shards ``index << level`` to ``(index + 1) << level``."""

    level: int
    index: int


def shards_of(rank: int, world_size: int, num_shards: int) -> range:
    """The logical shards of a process: consecutive, so that whole subtrees are its own."""
    return range(rank * num_shards // world_size, (rank + 1) * num_shards // world_size)


def subtrees(shards: range) -> list[Node]:
    """The fewest nodes of the tree that make up consecutive shards, from left to right."""
    nodes = []
    first = shards.start
    while first < shards.stop:
        # As high as its alignment and what is left allow.
        level = min((first & -first).bit_length() - 1 if first else 64, (shards.stop - first).bit_length() - 1)
        nodes.append(Node(level, first >> level))
        first += 1 << level
    return nodes


class TreeSum:
    """Adds up one process's gradients as they come; holds about as many as the tree has levels."""

    def __init__(self) -> None:
        self.nodes: list[tuple[Node, list[Tensor]]] = []

    def add(self, shard: int, gradients: list[Tensor]) -> None:
        """:param shard: one more than the last one's; gradients are kept, and changed"""
        node = Node(0, shard)
        while self.nodes and self.nodes[-1][0] == Node(node.level, node.index - 1) and node.index % 2:
            _, left = self.nodes.pop()
            torch._foreach_add_(left, gradients)
            node, gradients = Node(node.level + 1, node.index // 2), left
        self.nodes.append((node, gradients))


def complete(parts: Mapping[Node, Tensor], num_shards: int) -> Tensor:
    """The sum at the root, of nodes that cover all shards (a power of two); parts are changed."""
    known = dict(parts)
    for level in range(num_shards.bit_length() - 1):
        for index in range(0, num_shards >> level, 2):
            left, right = known.pop(Node(level, index), None), known.pop(Node(level, index + 1), None)
            if left is not None and right is not None:
                known[Node(level + 1, index // 2)] = left.add_(right)
    [root] = known.values()
    return root


def all_reduce(
    tree: TreeSum, num_shards: int, rank: int, world_size: int, group: distributed.ProcessGroup | None = None
) -> Sequence[Tensor]:
    """
    The sum over all logical shards, on every process. Called by all.

    :param tree: holds the shards of :func:`shards_of`
    :return: in the shapes of the gradients that were added
    """
    like = tree.nodes[0][1]
    if world_size == 1:
        # The tree is whole already.
        [(_, gradients)] = tree.nodes
        return gradients
    nodes = [subtrees(shards_of(peer, world_size, num_shards)) for peer in range(world_size)]
    assert [node for node, _ in tree.nodes] == nodes[rank], (tree.nodes, nodes[rank])
    num_values = sum(gradient.numel() for gradient in like)
    width = -(-num_values // world_size)
    mine = like[0].new_zeros(len(tree.nodes), world_size * width)
    for row, (_, gradients) in zip(mine, tree.nodes, strict=True):
        row[:num_values] = _flatten_dense_tensors(gradients)
    # [nodes, world_size, width] -> one block for each peer, its slice of all nodes.
    outgoing = mine.view(len(tree.nodes), world_size, width).transpose(0, 1).contiguous().view(-1)
    incoming = outgoing.new_empty(sum(map(len, nodes)) * width)
    distributed.all_to_all_single(
        incoming,
        outgoing,
        output_split_sizes=[len(each) * width for each in nodes],
        input_split_sizes=[len(tree.nodes) * width] * world_size,
        group=group,
    )
    rows = incoming.view(-1, width)
    parts = dict(zip((node for each in nodes for node in each), rows, strict=True))
    total = outgoing.new_empty(world_size * width)
    distributed.all_gather_single(total, complete(parts, num_shards).contiguous(), group=group)
    summed: Sequence[Tensor] = _unflatten_dense_tensors(total[:num_values], like)
    return summed
