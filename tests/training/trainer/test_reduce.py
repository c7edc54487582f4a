"""Numbers of many ranks, added up: ranks are threads here, and messages go through queues. Real ranks: test_layouts."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from torch import Tensor

from mlops.contract.sections.train import Parallel
from mlops.trainer import parallel
from mlops.trainer.parallel import Ranks, Reduced, from_words, to_words


class Messages:
    """In place of ``torch.distributed``."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.here = threading.local()
        self.sizes: set[int] = set()
        self._queues: defaultdict[tuple[int, int], SimpleQueue[Tensor]] = defaultdict(SimpleQueue)
        self._lock = threading.Lock()

    def send(self, tensor: Tensor, to: int, group: Any) -> None:
        self.sizes.add(tensor.numel())
        self._queue(self.here.rank, to).put(tensor.clone())

    def recv(self, tensor: Tensor, source: int, group: Any) -> None:
        tensor.copy_(self._queue(source, self.here.rank).get(timeout=30))

    def broadcast(self, tensor: Tensor, source: int, group: Any) -> None:
        if self.here.rank == source:
            for rank in range(1, self.world_size):
                self.send(tensor, rank, group)
        else:
            self.recv(tensor, source, group)

    def _queue(self, source: int, to: int) -> SimpleQueue[Tensor]:
        with self._lock:
            return self._queues[source, to]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 64, 100])
def test_sums_and_largest_are_exact_on_any_number_of_ranks(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: ranks would disagree on when to save, or a loss depend on how many there are."""
    chance = random.Random(world_size)
    messages = Messages(world_size)
    monkeypatch.setattr(parallel, "distributed", messages)
    edges = [(1 << 185) - 1, -(1 << 185), -1, 0, 1, (1 << 40) - 1, 1 << 40, -(1 << 160)]
    sums = [[chance.choice(edges), chance.randrange(-(1 << 190), 1 << 190)] for _ in range(world_size)]
    largest = [[chance.randrange(-(1 << 62), 1 << 62), rank, 0] for rank in range(world_size)]

    def work(rank: int) -> Reduced:
        messages.here.rank = rank
        ranks = Ranks(rank=rank, world_size=world_size, parallel=Parallel(dp_replicate=world_size))
        return ranks.reduce(sums=sums[rank], largest=largest[rank])

    with ThreadPoolExecutor(world_size) as pool:
        results = list(pool.map(work, range(world_size)))
    expected = Reduced(sums=[*map(sum, zip(*sums, strict=True))], largest=[*map(max, zip(*largest, strict=True))])
    assert results == [expected] * world_size
    assert len(messages.sizes) <= 1, "what travels grows with the ranks"


def test_words_hold_whole_numbers() -> None:
    for value in (0, 1, -1, (1 << 199) - 1, -(1 << 198), 12345678901234567890):
        assert from_words(to_words(value)) == value
        assert all(abs(word) < 1 << 40 for word in to_words(value))
    with pytest.raises(AssertionError, match="more than 199 bits"):
        to_words(1 << 199)
