from __future__ import annotations

import os

import pytest

from benchmarks.training.programs.goodput import BIG, Costs, FixedInterval, simulate
from mlops.trainer.interval import MOST_SHARE, SaveInterval, optimal_interval

FAILURES = int(os.environ.get("GOODPUT_FAILURES", "150"))
"""Here; 1,000 in ``make chaos``."""


class Saves:
    """Of a training whose saves cost what they are told to."""

    def __init__(self, blocked: float = 0.06, durable: float = 0.5) -> None:
        self.last_blocked_seconds, self.last_durable_seconds = blocked, durable
        self.busy = False


def measured(interval: SaveInterval, saves: Saves, taken: float = 0.06) -> SaveInterval:
    """After one save, in a training of ten steps a second."""
    for extra in (0.0, 0.0, taken, taken):
        interval.ran(1.0 + extra, 10)
        interval.saved(0.0)
    return interval


def test_interruptions_cost_less_than_two_percent_of_a_training_on_spot_nodes() -> None:
    """Broken: work would be done again that a cheap save would have kept."""
    ours = simulate(SaveInterval, number=FAILURES, announced=0.5)
    fixed = simulate(FixedInterval, number=FAILURES // 3, announced=0.5)
    assert ours.goodput >= 0.98, ours
    assert ours.redone <= 0.005 < fixed.redone, (ours, fixed)


def test_a_failure_that_was_announced_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: nodes that leave with a notice would make a training save again and again for nothing."""
    interval = measured(SaveInterval(600, Saves()), Saves())
    told, killed = (SaveInterval(600, Saves()) for _ in range(2))
    told.resume(interval.document(announced=True))
    killed.resume(interval.document(announced=False))
    assert told.seconds == pytest.approx(interval.seconds)
    # The first save after a failure comes soon, the next as one failure more asks for.
    assert killed.seconds == pytest.approx(0.06 / MOST_SHARE, rel=0.01)
    killed.saved(0.0)
    assert killed.seconds < told.seconds
    assert killed.seconds_between_failures == pytest.approx(told.seconds_between_failures / 2)


def test_the_interval_stays_between_its_bounds() -> None:
    """Broken: saves would take a large share of the time or overlap, or be further apart than the user allows."""
    slow = Saves(blocked=0.06, durable=200.0)
    assert measured(SaveInterval(600, slow), slow).seconds == 400
    dear = Saves(blocked=20.0, durable=20.0)
    assert measured(SaveInterval(3600, dear), dear, taken=20.0).seconds == pytest.approx(20 / MOST_SHARE)
    assert measured(SaveInterval(30, dear), dear, taken=20.0).seconds == 30
    calm = SaveInterval(600, Saves())
    before = measured(calm, Saves()).seconds
    for _ in range(24):
        calm.ran(3600.0, 36000)
    assert before < calm.seconds < 600


def test_a_save_costs_what_it_blocks_and_what_it_slows() -> None:
    """Broken: a save that slows the steps beside it would be taken for cheap, and made too often."""
    saves = Saves(blocked=0.06, durable=3.0)
    for taken, cost in ((0.0, 0.06), (1.5, 1.5), (60.0, 3.0)):
        interval = SaveInterval(600, saves)
        for _ in range(5):
            interval.ran(1.0, 10)
        interval.saved(0.0)
        interval.ran(1.0 + taken, 10)
        assert interval.document(announced=False)["cost_seconds"] == pytest.approx(cost)
    interval.saved(0.0)
    interval.ran(60.0, 10, pure=False)
    assert interval.document(announced=False)["cost_seconds"] == pytest.approx(cost), "a validation is no save"


@pytest.mark.parametrize("cost", [0.01, 1.0, 100.0, 1e4])
def test_the_optimum_loses_least(cost: float) -> None:
    """Broken: the formula would be mistyped. Compared with Daly's exact expectation for exponential failures."""
    mean = 3600.0

    def expected(interval: float) -> float:
        """Time to do one second of work, Daly's equation 20 without the restart."""
        from math import expm1

        return mean * expm1((interval + cost) / mean) / interval

    best = min(expected(60 * 1.01**exponent) for exponent in range(-900, 900))
    assert expected(optimal_interval(cost, mean)) <= 1.03 * best


def test_dear_saves_are_made_more_seldom() -> None:
    cheap, dear = (simulate(SaveInterval, number=5, costs=costs) for costs in (Costs(), BIG))
    assert cheap.interval < dear.interval
