"""
What the host knows of an optimizer step, one step late.

To read a number at once the host would wait until the GPU has computed it, and the GPU then until it is told what to do
next. So the numbers of a step travel while the next one runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mlops.data.shards.loader import Step
from mlops.trainer.health import EXCHANGE, enter


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """The numbers of a step."""

    norm: float
    """Norm of the whole gradient, before it was clipped; the same on every rank."""
    totals: Sequence[float]
    """The sum of the weighted losses of each of this rank's micro batches."""
    may_overflow: bool
    """Gradients that are not finite were the loss scale's fault, and were left out."""

    @property
    def is_sound(self) -> bool:
        return (math.isfinite(self.norm) or self.may_overflow) and all(map(math.isfinite, self.totals))


class TakenStep:
    """
    An optimizer step whose numbers are on their way.

    :param number: optimizer steps done, with this one
    :param epoch: from 1
    :param step_in_epoch: from 1
    :param learning_rate: that it was taken with
    :param losses: weighted, ``[B]`` of each micro batch, on the device
    :param norm: on the device
    :param loss_scale: that the step was taken with, on the device; None without
    """

    def __init__(
        self,
        step: Step,
        *,
        number: int,
        epoch: int,
        step_in_epoch: int,
        learning_rate: float,
        losses: Sequence[Tensor],
        norm: Tensor,
        loss_scale: Tensor | None,
    ) -> None:
        self.step, self.number, self.epoch, self.step_in_epoch = step, number, epoch, step_in_epoch
        self.learning_rate, self.losses = learning_rate, losses
        self._scaled = loss_scale is not None
        totals = [loss.sum(dtype=torch.float64) for loss in losses]
        self._numbers = Copied([norm, *([] if loss_scale is None else [loss_scale]), *totals])

    def outcome(self) -> StepOutcome:
        """Waits until the step is done."""
        norm, *rest = self._numbers.read()
        scale = rest.pop(0) if self._scaled else 1.0
        return StepOutcome(norm=norm, totals=rest, may_overflow=scale > 1.0)


class Copied:
    """Single numbers of one device on their way to the host, in one copy."""

    def __init__(self, numbers: Sequence[Tensor]) -> None:
        self._numbers: Sequence[Tensor] | Tensor = numbers
        self._arrived: torch.cuda.Event | None = None
        if numbers[0].is_cuda:
            # Into page-locked memory, as torch does where it shall not wait.
            self._numbers = packed(numbers).to("cpu", non_blocking=True)
            # Not by spinning: the loader's thread needs the core.
            self._arrived = torch.cuda.Event(blocking=True)
            self._arrived.record(torch.cuda.current_stream(numbers[0].device))

    def read(self) -> list[float]:
        if self._arrived is not None:
            # The device may stand in a collective that was put into its stream long before.
            enter(EXCHANGE)
            self._arrived.synchronize()
        return [float(number) for number in self._numbers]


def packed(numbers: Sequence[Tensor]) -> Tensor:
    """One tensor of them, exactly: float64 holds any float32."""
    return torch.stack([number.double() for number in numbers])
