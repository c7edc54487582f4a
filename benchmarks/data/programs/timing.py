"""Two ways of doing a thing, run in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


def in_turn(ways: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """
    Median wall time of each, after one unmeasured round.

    :return: seconds, in the order of ``ways``
    """
    seconds: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, taken in zip(ways, seconds, strict=True):
            begin = time.perf_counter()
            way()
            if number:
                taken.append(time.perf_counter() - begin)
    return [statistics.median(taken) for taken in seconds]


def percentile(values: Sequence[float], share: float) -> float:
    """Value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
