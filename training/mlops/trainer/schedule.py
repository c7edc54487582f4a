"""The learning rate as a pure function of the step, so that a resumed training needs no state of it."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from mlops.contract.sections.train import Schedule


def factor(schedule: Schedule, step: int, num_steps: int) -> float:
    """
    Return the factor of the learning rate at an optimizer step.

    The warmup is linear, from ``1 / warmup_steps`` at step 0; then the rate falls to ``final_fraction`` at the last
    step, in a line or in half a cosine (Loshchilov & Hutter 2017, without restarts).

    :param step: from 0
    :param num_steps: of the whole training
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.kind == "constant":
        return 1.0
    done = min(1.0, (step - schedule.warmup_steps) / max(1, num_steps - 1 - schedule.warmup_steps))
    left = 1 - done if schedule.kind == "linear" else (1 + math.cos(math.pi * done)) / 2
    return schedule.final_fraction + (1 - schedule.final_fraction) * left


class LearningRate:
    """Sets the rate of each of an optimizer's groups; made before the optimizer's state is loaded."""

    def __init__(self, schedule: Schedule, optimizer: Optimizer, num_steps: int) -> None:
        self._schedule, self._num_steps = schedule, num_steps
        self._optimizer = optimizer
        self._rates = [float(group["lr"]) for group in optimizer.param_groups]

    def set(self, step: int) -> float:
        """:return: the first group's rate"""
        scale = factor(self._schedule, step, self._num_steps)
        # Loading a state gives the optimizer new groups.
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * scale
        return self._rates[0] * scale
