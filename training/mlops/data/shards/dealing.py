"""
The rules by which a global batch of groups is dealt to ranks, and to the forward passes of each.

A batch of groups is padded to its longest one, so that it costs its padded rows: groups times the rows of the longest.
Groups are sorted by their rows and cut into neighbouring parts, few long groups or many short ones each, of about equal
cost; the parts go to ranks by the rule of the longest processing time first (Graham 1969), as many passes to each.
Everything is a function of the lengths and of the number of ranks, or of logical shards.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from mlops.data.shards.batch import IntArray

PASS_WORTH_ROWS: Final = 1024
"""
Padded rows that a further forward and backward pass must be worth. On a CPU a pass took, beside its rows, as long as
600 padded rows of a model of 31 inputs and 64 hidden units, or as 46 rows of one of 75,000 weights (torch 2.13, one
thread); each pass also adds up gradients.
"""
# The largest part has at most so much more than the best cut: a 32nd.
_TOLERANCE_SHIFT: Final = 5

Part = tuple[int, int]
"""Neighbouring groups in the descending order of lengths: the index of the first, and that after the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """Limits of one forward pass over groups, and the saving that justifies more passes than these limits ask for."""

    most_groups: int | None = None
    most_rows: int | None = None
    """Most padded rows of a pass, None for no limit; a longer group has a pass of its own."""
    worth_rows: int | None = None
    """Padded rows that each further pass must save a rank. None: as few passes as the limits allow."""
    one_shape: bool = False
    """
    True if passes are padded to the largest of all ranks: then all have about as many groups, and only the limit
    ``most_groups`` counts.
    """

    def dealt(self, lengths: IntArray, num_ranks: int) -> Sequence[Sequence[Part]]:
        """
        Deal groups to ranks, and to the forward passes of each rank.

        :param lengths: of the groups, in descending order
        :return: the parts of each rank; as many for each, except that empty parts are left out
        """
        rows = np.maximum(lengths, 1)  # an empty group is padded to a row
        least = float(rows.sum()) / num_ranks
        longest_first: list[int] = rows.tolist()
        num_passes = math.ceil(self._fewest(longest_first, num_ranks) / num_ranks)
        best, best_cost = self._in(num_passes, longest_first, num_ranks)
        while self.worth_rows is not None and not self.one_shape and num_passes * num_ranks < len(longest_first):
            num_passes += 1
            # No deal has fewer rows than there are.
            if least + num_passes * self.worth_rows >= best_cost:
                break
            tried, cost = self._in(num_passes, longest_first, num_ranks)
            if cost >= best_cost:
                break
            best, best_cost = tried, cost
        return best

    def _fewest(self, lengths: Sequence[int], num_ranks: int) -> int:
        if self.one_shape:
            # The limit is one on the largest share, which all ranks take as many passes for.
            share = math.ceil(len(lengths) / num_ranks)
            return num_ranks * math.ceil(share / (self.most_groups or share))
        if self.most_rows is None:
            return math.ceil(len(lengths) / (self.most_groups or len(lengths)))
        filled = _filled(lengths, self.most_rows, self.most_groups or len(lengths), len(lengths))
        assert filled is not None, "as many parts as groups always suffice"
        return len(filled)

    def _in(self, num_passes: int, lengths: Sequence[int], num_ranks: int) -> tuple[Sequence[Sequence[Part]], float]:
        """Return the parts by rank, and the cost of the most loaded rank."""
        num_parts = num_passes * num_ranks
        if self.one_shape:
            edges = [len(lengths) * number // num_parts for number in range(num_parts + 1)]
            parts: Sequence[Part] = [(start, stop) for start, stop in pairwise(edges) if start < stop]
        else:
            parts = cut(lengths, num_parts, most_groups=self.most_groups, most_rows=self.most_rows)
        dealt, load = _evenly(parts, lengths, num_ranks, num_passes)
        return dealt, load + num_passes * (self.worth_rows or 0)


def cut(
    lengths: Sequence[int], num_parts: int, *, most_groups: int | None = None, most_rows: int | None = None
) -> Sequence[Part]:
    """
    Cut groups into neighbouring parts so that the largest has few padded rows: at most a 32nd more than it must have.

    :param lengths: at least 1 each, in descending order
    :param num_parts: most parts; enough for the limits
    :param most_groups: most groups in a part
    :param most_rows: most padded rows of a part of more than one group
    """
    if num_parts == 1:
        return [(0, len(lengths))]
    most = most_groups or len(lengths)
    # Equal numbers of groups always do; less than the rows that are there never.
    high, low = lengths[0] * math.ceil(len(lengths) / num_parts), math.ceil(sum(lengths) / num_parts)
    if most_rows is not None:
        high = min(high, most_rows)
    while high - low > low >> _TOLERANCE_SHIFT:
        middle = (low + high) // 2
        if _filled(lengths, middle, most, num_parts) is None:
            low = middle + 1
        else:
            high = middle
    return _filled_from_behind(lengths, high, most)


def _filled(lengths: Sequence[int], most_rows: int, most_groups: int, most_parts: int) -> list[Part] | None:
    """Fill parts one after the other; None if that takes more than ``most_parts``."""
    parts: list[Part] = []
    start, size = 0, len(lengths)
    while start < size:
        if len(parts) == most_parts:
            return None
        stop = min(size, start + min(most_groups, max(1, most_rows // lengths[start])))
        parts.append((start, stop))
        start = stop
    return parts


def _filled_from_behind(lengths: Sequence[int], most_rows: int, most_groups: int) -> list[Part]:
    """
    Cut groups into as many parts as :func:`_filled` makes, filled from the shortest group on.

    The remainder is then a few long groups: a single row would be too little for a batch norm.
    """
    parts: list[Part] = []
    stop = len(lengths)
    while stop:
        # Rows grow with every group that is added before the others.
        most = min(stop, most_groups)
        fitting = bisect_right(range(1, most + 1), most_rows, key=partial(_rows_before, lengths, stop))
        start = stop - max(1, fitting)
        parts.append((start, stop))
        stop = start
    return parts[::-1]


def _rows_before(lengths: Sequence[int], stop: int, size: int) -> int:
    return size * lengths[stop - size]


def _evenly(
    parts: Sequence[Part], lengths: Sequence[int], num_ranks: int, num_passes: int
) -> tuple[Sequence[Sequence[Part]], int]:
    """Give each part, the largest first, to the least loaded rank with a pass left; also return the highest load."""
    costs = sorted(((start - stop) * lengths[start], start, stop) for start, stop in parts)
    dealt: list[list[Part]] = [[] for _ in range(num_ranks)]
    loads = [(0, rank) for rank in range(num_ranks)]  # a heap
    largest = 0
    for negative, start, stop in costs:
        load, rank = loads[0]
        dealt[rank].append((start, stop))
        load -= negative
        largest = max(largest, load)
        if len(dealt[rank]) < num_passes:
            heapq.heapreplace(loads, (load, rank))
        else:
            heapq.heappop(loads)
    return dealt, largest
