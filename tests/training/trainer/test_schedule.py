from __future__ import annotations

import pytest
import torch

from mlops.contract.sections.train import Schedule
from mlops.contract.step import BadConfigError
from mlops.trainer.schedule import LearningRate, factor
from mlops.trainer.strategies.refusals import refuse_optimizer


def test_the_rate_rises_then_falls_to_what_was_asked_for() -> None:
    schedule = Schedule(kind="cosine", warmup_steps=4, final_fraction=0.1)
    factors = [factor(schedule, step, 24) for step in range(24)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == 1.0
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_halfway_is_half(kind: str) -> None:
    assert factor(Schedule(kind=kind, warmup_steps=0, final_fraction=0.0), 50, 101) == pytest.approx(0.5)


def test_a_training_of_one_step_has_a_rate() -> None:
    """Broken: a smoke test of one step would divide by zero, or learn nothing."""
    assert factor(Schedule(kind="linear", warmup_steps=0, final_fraction=0.0), 0, 1) == 1.0


def test_groups_keep_their_proportions() -> None:
    """Broken: an optimizer of the recipe's own, with a smaller rate for some layers, would lose it."""
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [parameters[0]], "lr": 1.0}, {"params": [parameters[1]], "lr": 0.1}])
    rate = LearningRate(Schedule(kind="linear", warmup_steps=0, final_fraction=0.0), optimizer, 11)
    assert rate.set(5) == 0.5
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.05]


def test_a_resumed_optimizer_goes_on_with_the_schedule() -> None:
    """Broken: every resumed training would stay at the rate of its checkpoint."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    rate = LearningRate(Schedule(kind="linear", warmup_steps=0, final_fraction=0.0), optimizer, 11)
    optimizer.load_state_dict(optimizer.state_dict())
    rate.set(5)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_scheduler_of_torchs_is_refused() -> None:
    """Broken: the scheduler would do nothing but lower the rate that the whole training begins from."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1)
    with pytest.raises(BadConfigError, match=r"recipe:configure .* SGD .*scheduler attached .*say train\.schedule"):
        refuse_optimizer(optimizer, model, "recipe:configure")
