"""Which ranks are slow: a training is as fast as its slowest rank, and nothing fails where one is throttled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from mlops.trainer.health import Pulse

PACE_SECONDS = 30.0
"""Between two looks at how long the ranks work."""
SLOW_FACTOR = 2.0
_LEAST_SECONDS = 1e-3
"""Per step. What is shorter is noise."""


def slow_ranks(seconds_per_step: Mapping[int, float]) -> dict[int, float]:
    """
    :param seconds_per_step: of each rank's own work, without waiting for other ranks
    :return: how many times as long as the others' median, of those that take twice as long or longer
    """
    found = {}
    for rank, seconds in seconds_per_step.items():
        others = [each for other, each in seconds_per_step.items() if other != rank]
        if others and seconds >= _LEAST_SECONDS and seconds >= SLOW_FACTOR * median(others):
            found[rank] = seconds / max(median(others), 1e-9)
    return found


class Pace:
    """
    Compares how long the ranks of all nodes work for a step.

    :param store: of this round, a :class:`torch.distributed.Store`
    :param node: number of this node in the round; 0 compares
    """

    def __init__(self, store: Any, *, node: int, num_nodes: int, pulse: Callable[[int], Pulse | None]) -> None:
        self._store, self._node, self._num_nodes, self._pulse = store, node, num_nodes, pulse
        self._before: dict[int, Pulse] = {}
        self._next = time.monotonic() + PACE_SECONDS

    def slow(self, ranks: Sequence[int]) -> dict[int, float]:
        """
        Return the result of :func:`slow_ranks` on node 0, every :data:`PACE_SECONDS`; else nothing. Called repeatedly.
        """
        if time.monotonic() < self._next:
            return {}
        self._next = time.monotonic() + PACE_SECONDS
        now = {rank: pulse for rank in ranks if (pulse := self._pulse(rank)) is not None}
        mine = {
            rank: (pulse.own_seconds - before.own_seconds) / (pulse.step - before.step)
            for rank, pulse in now.items()
            if (before := self._before.get(rank)) is not None and before.under_way and pulse.step > before.step
        }
        self._before = now
        if self._num_nodes == 1:
            return slow_ranks(mine)
        keys = [f"mlops/pace/{node}" for node in range(self._num_nodes)]
        self._store.set(keys[self._node], json.dumps(mine))
        if self._node != 0:
            return {}
        told = [json.loads(self._store.get(key)) for key in keys if self._store.check([key])]
        return slow_ranks({int(rank): seconds for each in told for rank, seconds in each.items()})
