"""What a training cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    wall_seconds: float
    """Wall time of the epochs, interrupted or not; without waiting, start and what a kill lost."""
    process_hours: float
    gpu_hours: float
    gpu: str
    """Name of the device, or ``none``."""
    money: float | None
    """None where no price is known."""


def cost_of(
    history: Sequence[Mapping[str, Any]], world_size: int, gpu: str, price_per_gpu_hour: float | None
) -> Cost | None:
    """
    :param history: the ``history`` artifact of the checkpoint
    :return: None where the recipe's own script told no times
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
