"""The scale of a float16 loss, and optimizer steps that are left out: decided without the host, on any device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mlops.trainer.strategies.precision import LossScale, step_unless

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "plain": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=False),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
}


def test_the_scale_halves_at_an_overflow_and_doubles_after_steps_without() -> None:
    """Broken: the scale would leave its bounds, grow too soon, or a resumed training count from another step."""
    chance = np.random.default_rng(3)
    scale, expected, since = LossScale(), 2.0**16, 0
    scale.GROWTH_STEPS = 3
    for step in range(400):
        # At first few overflows, up to the largest scale; then many, down to the smallest.
        overflowed = bool(chance.random() < (0.05 if step < 200 else 0.6))
        scale.update(torch.tensor(overflowed))
        since += 1
        if overflowed:
            expected, since = max(expected / 2, 1.0), 0
        elif since == 3:
            expected, since = min(expected * 2, 2.0**24), 0
        assert scale.state_dict() == {"scale": expected, "steps_since_change": since}
        if step % 50 == 0:
            saved, scale = scale.state_dict(), LossScale()
            scale.GROWTH_STEPS = 3
            scale.load_state_dict(saved)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_that_is_left_out_leaves_no_trace(kind: str) -> None:
    """Broken: the weights, the moments or Adam's count of steps would show that gradients overflowed."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    other = copy.deepcopy(model)
    one, two = OPTIMIZERS[kind](model.parameters()), OPTIMIZERS[kind](other.parameters())
    for step in range(6):
        overflowed = step in (0, 3)
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            mine.grad = torch.full_like(mine, float("nan")) if overflowed else torch.randn_like(mine)
            theirs.grad = mine.grad.clone()
        step_unless(torch.tensor(overflowed), one)
        if not overflowed:
            two.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for name, value in one.state[mine].items():
            assert torch.equal(value, two.state[theirs][name]), name
    assert not hasattr(one, "found_inf"), "the next step would be left out too"
