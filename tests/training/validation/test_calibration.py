"""The drift check at its defaults, on real flights and weather: no false alarms, and no blindness."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.data.programs.drift import AT_MOST, compared, flights, halves, weather
from mlops.contract.sections.validate import Drift

HOME = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def year():
    return flights(HOME)


@pytest.mark.parametrize("size", [40, 20_000])
def test_random_halves_of_the_same_rows_do_not_alarm(year, size):
    """Whoever is woken by chance stops listening. The benchmark takes more of them."""
    found = halves(year, [size], 70, Drift())
    assert found.num_checks > 1 / AT_MOST
    assert found.num_alarms == 0


def test_what_is_allowed_for_chance_is_enough_by_itself(year):
    """Where a pipeline sets a threshold of next to nothing, chance must still not alarm."""
    found = halves(year, [1_000], 70, Drift(numbers=1e-9, values=1e-9, columns={}))
    assert found.num_alarms / found.num_checks < AT_MOST


def test_another_season_alarms():
    table = weather(HOME)
    config = Drift()
    found = {column.column: column for column in compared(table.filter(month=1), table.filter(month=7), config)}
    assert found["temp"].distance > 5 * found["temp"].threshold
    assert found["dewp"].distance > found["dewp"].threshold


def test_a_slight_change_of_a_heavy_tail_alarms_at_a_low_threshold(year):
    """Delays in July are not those of January; random halves of January alarm at no threshold."""
    delays = year.select("month", "dep_delay")
    config = Drift(numbers=0.01, values=0.01, columns={})
    january, july = (delays.filter(month=month).drop("month") for month in (1, 7))
    (found,) = compared(january, july, config)
    assert found.distance > found.threshold
    assert halves(january, [january.height], 20, config).largest < 0.5
