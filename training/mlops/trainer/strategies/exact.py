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
from itertools import accumulate

import torch
from torch import Tensor, distributed

from mlops.data.shards.aligned import ALIGNMENT


@dataclass(frozen=True, order=True, slots=True)
class TreeNode:
    """The sum of the logical shards ``index << level`` to ``(index + 1) << level``."""

    level: int
    index: int


def shards_of(rank: int, world_size: int, num_shards: int) -> range:
    """The logical shards of a process: consecutive, so that whole subtrees are its own."""
    return range(rank * num_shards // world_size, (rank + 1) * num_shards // world_size)


def subtrees(shards: range) -> list[TreeNode]:
    """The fewest nodes of the tree that make up consecutive shards, from left to right."""
    nodes = []
    first = shards.start
    while first < shards.stop:
        # As high as its alignment and what is left allow.
        level = min((first & -first).bit_length() - 1 if first else 64, (shards.stop - first).bit_length() - 1)
        nodes.append(TreeNode(level, first >> level))
        first += 1 << level
    return nodes


@dataclass(frozen=True, slots=True)
class FlatGradients:
    """The gradients of all parameters in one piece of memory, which is quick to add and to send."""

    whole: Tensor
    parts: Sequence[Tensor]
    """Gradient of each parameter, in its shape; the same memory, each beginning at a multiple of 64 bytes."""

    @classmethod
    def zeros(cls, like: Sequence[Tensor], num_slices: int) -> FlatGradients:
        """
        :param like: the parameters, of one type and device
        :param num_slices: equal ones, that ``whole`` can be cut into; where parameters lie does not depend on it
        """
        step = ALIGNMENT // like[0].element_size()
        ends = list(accumulate(-(-each.numel() // step) * step for each in like))
        width = -(-ends[-1] // (num_slices * step)) * step
        whole = torch.zeros(num_slices * width, dtype=like[0].dtype, device=like[0].device)
        starts = [0, *ends[:-1]]
        parts = [whole[start : start + each.numel()].view(each.shape) for start, each in zip(starts, like, strict=True)]
        return cls(whole, parts)


class TreeSum:
    """
    Adds up one process's gradients as they come; holds about as many as the tree has levels.

    :param like: the parameters
    :param num_slices: see :meth:`FlatGradients.zeros`
    """

    def __init__(self, like: Sequence[Tensor], num_slices: int) -> None:
        self.nodes: list[tuple[TreeNode, FlatGradients]] = []
        self._like, self._num_slices = like, num_slices
        self._free: list[FlatGradients] = []

    def clear(self) -> None:
        """Forget what was added; the memory is used again, also that of the sum."""
        self._free += [flat for _, flat in self.nodes]
        self.nodes = []

    def add(self, shard: int, gradients: Sequence[Tensor | None]) -> None:
        """
        :param shard: one more than the last one's
        :param gradients: in the order of the parameters; None is zero
        """
        node = TreeNode(0, shard)
        if self._left_of(node):
            _, flat = self.nodes.pop()
            _add(flat, gradients)
            node = TreeNode(1, shard // 2)
        else:
            flat = self._free.pop() if self._free else FlatGradients.zeros(self._like, self._num_slices)
            _copy(flat, gradients)
        while self._left_of(node):
            _, left = self.nodes.pop()
            left.whole.add_(flat.whole)
            self._free.append(flat)
            node, flat = TreeNode(node.level + 1, node.index // 2), left
        self.nodes.append((node, flat))

    def _left_of(self, node: TreeNode) -> bool:
        """Whether the last node is the left neighbour with which this one is added."""
        return node.index % 2 == 1 and bool(self.nodes) and self.nodes[-1][0] == TreeNode(node.level, node.index - 1)


def _copy(flat: FlatGradients, gradients: Sequence[Tensor | None]) -> None:
    known = [(part, each) for part, each in zip(flat.parts, gradients, strict=True) if each is not None]
    if len(known) < len(gradients):
        flat.whole.zero_()
    if known:
        torch._foreach_copy_([part for part, _ in known], [each for _, each in known])


def _add(flat: FlatGradients, gradients: Sequence[Tensor | None]) -> None:
    known = [(part, each) for part, each in zip(flat.parts, gradients, strict=True) if each is not None]
    if known:
        torch._foreach_add_([part for part, _ in known], [each for _, each in known])
    for part, each in zip(flat.parts, gradients, strict=True):
        if each is None:
            part.add_(0.0)  # as another process would that has these zeros: -0.0 becomes 0.0


def complete(parts: Mapping[TreeNode, Tensor], num_shards: int) -> Tensor:
    """The sum at the root, of nodes that cover all shards (a power of two); parts are changed."""
    known = dict(parts)
    for level in range(num_shards.bit_length() - 1):
        for index in range(0, num_shards >> level, 2):
            left, right = known.pop(TreeNode(level, index), None), known.pop(TreeNode(level, index + 1), None)
            if left is not None and right is not None:
                known[TreeNode(level + 1, index // 2)] = left.add_(right)
    [root] = known.values()
    return root


class Exchange:
    """
    The sum over all logical shards, on every process.

    :param like: the parameters
    """

    def __init__(self, like: Sequence[Tensor], num_shards: int, rank: int, world_size: int) -> None:
        self._num_shards, self._rank, self._world_size = num_shards, rank, world_size
        self._nodes = [subtrees(shards_of(peer, world_size, num_shards)) for peer in range(world_size)]
        self._total = FlatGradients.zeros(like, world_size)
        self._width = self._total.whole.numel() // world_size
        self._incoming = self._total.whole.new_empty(sum(map(len, self._nodes)), self._width)

    def sum(self, tree: TreeSum, group: distributed.ProcessGroup | None = None) -> Sequence[Tensor]:
        """
        Called by all.

        :param tree: holds the shards of :func:`shards_of`
        :return: in the shapes of the parameters; the memory is used again by the next call, or the next tree
        """
        if self._world_size == 1:
            # The tree is whole already.
            [(_, flat)] = tree.nodes
            return flat.parts
        mine = self._nodes[self._rank]
        assert [node for node, _ in tree.nodes] == mine, (tree.nodes, mine)
        # One block for each peer, its slice of all nodes.
        sliced = [flat.whole.view(self._world_size, self._width) for _, flat in tree.nodes]
        outgoing = sliced[0] if len(sliced) == 1 else torch.stack(sliced, dim=1)
        distributed.all_to_all_single(
            self._incoming.view(-1),
            outgoing.view(-1),
            output_split_sizes=[len(each) * self._width for each in self._nodes],
            input_split_sizes=[len(mine) * self._width] * self._world_size,
            group=group,
        )
        parts = dict(zip((node for each in self._nodes for node in each), self._incoming, strict=True))
        distributed.all_gather_single(self._total.whole, complete(parts, self._num_shards), group=group)
        return self._total.parts
