"""The cost of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    wall_seconds: float
    """Seconds of the epochs, interrupted or not; without waiting, start, and work lost by a kill."""
    process_hours: float
    gpu_hours: float
    gpu: str
    """Name of the device, or ``none``."""
    money: float | None
    """Cost in the currency of the price; None if no price is known."""


def cost_of(
    history: Sequence[Mapping[str, Any]], world_size: int, gpu: str, price_per_gpu_hour: float | None
) -> Cost | None:
    """
    Compute the cost of a training from its history.

    :param history: the ``history`` artifact of the checkpoint
    :return: the cost; None if the recipe's own script reported no times
    """
    if not all("seconds" in record for record in history):
        return None
    seconds = float(sum(record["seconds"] for record in history))
    hours = seconds * world_size / 3600
    gpu_hours = 0.0 if gpu == "none" else hours
    return Cost(
        wall_seconds=seconds,
        process_hours=hours,
        gpu_hours=gpu_hours,
        gpu=gpu,
        money=None if price_per_gpu_hour is None else price_per_gpu_hour * gpu_hours,
    )
