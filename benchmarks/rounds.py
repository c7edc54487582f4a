"""Contenders run in turn, and what their rounds come to."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

OURS: Final = "ours"


def in_rotation(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """
    Each contender's result of each round. Every round begins with the next one, so that none always follows the same.

    :param rounds: measured, after one that is not
    """
    names = list(contenders)
    results: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            gc.collect()
            result = contenders[name]()
            if number:
                results[name].append(result)
    return results


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """
    Our median, and the baseline's value beside which the ratio is the median of the rounds' ratios.

    Neighbours in time are compared, so that a machine that slows down between rounds does not enter.
    """
    median = statistics.median(ours)
    ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
    return median, median / ratio


def records(
    name: str,
    results: Mapping[str, Sequence[float]],
    *,
    unit: str,
    baselines: Mapping[str, tuple[str, float]],
    better: str = "higher",
) -> list[dict[str, Any]]:
    """
    Ours beside each baseline.

    :param name: ``<group>.<what>``; a record's is ``<group>.<what>_vs_<baseline>``
    :param baselines: description and target of each
    """
    made = []
    for baseline, (description, target) in baselines.items():
        ours, theirs = paired(results[OURS], results[baseline])
        made.append(
            {
                "name": f"{name}_vs_{baseline}",
                "unit": unit,
                "ours": ours,
                "baseline": description,
                "baseline_value": theirs,
                "better": better,
                "target": target,
            }
        )
    return made
