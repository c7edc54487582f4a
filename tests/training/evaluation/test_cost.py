from __future__ import annotations

import pytest

from mlops.evaluation.cost import cost_of

HISTORY = [{"epoch": 1, "seconds": 1000.0}, {"epoch": 2, "seconds": 800.0}]


def test_gpu_hours_cost_what_the_price_says() -> None:
    cost = cost_of(HISTORY, 8, "NVIDIA H200", 2.5)
    assert cost is not None
    assert (cost.wall_seconds, cost.gpu_hours, cost.money) == (1800, pytest.approx(4), pytest.approx(10))


def test_a_processor_costs_no_gpu_hours() -> None:
    """Broken: a laptop's training would be billed."""
    cost = cost_of(HISTORY, 2, "none", 2.5)
    assert cost is not None
    assert (cost.process_hours, cost.gpu_hours, cost.money) == (1.0, 0.0, 0.0)


def test_a_script_that_tells_no_times_has_no_cost() -> None:
    assert cost_of([{"epoch": 2}], 2, "none", None) is None
