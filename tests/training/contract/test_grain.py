"""Periods: numbers that count them, names that sort as they do, and instants that lie in them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import get_args

import pytest

from mlops.contract.grain import Grain, Periods, counted, number_of

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Pacific/Auckland", "America/Sao_Paulo")
GRAINS: tuple[Grain, ...] = get_args(Grain)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("grain", GRAINS)
def test_every_instant_lies_in_one_period_and_names_sort_like_time(grain: Grain, zone: str) -> None:
    """Over the change of clocks and years, and where a day has no midnight: Brazil's summer time began at that hour."""
    periods = Periods(grain, zone)
    last_name = ""
    for hours in range(0, 24 * 365 * 2, 7):
        instant = datetime(2017, 1, 1, 0, 17, tzinfo=UTC) + timedelta(hours=hours)
        number = periods.at(instant)
        assert periods.start(number) <= instant < periods.start(number + 1)
        assert periods.at(periods.start(number)) == number
        assert periods.at(periods.start(number + 1) - timedelta(microseconds=1)) == number
        name = periods.name(number)
        assert periods.at(periods.begin(name)) == number
        assert number_of(periods.name(number + 1), grain) - number_of(name, grain) == 1
        assert name >= last_name
        last_name = name


@pytest.mark.parametrize(
    ("grain", "zone", "instant", "name", "start"),
    [
        ("hour", "America/New_York", "2013-02-09T14:59:59Z", "2013-02-09T14:00Z", "2013-02-09T14:00:00Z"),
        ("hour", "Asia/Kolkata", "2013-02-09T14:29:00Z", "2013-02-09T13:30Z", "2013-02-09T13:30:00Z"),
        ("day", "America/New_York", "2013-02-09T04:59:59Z", "2013-02-08", "2013-02-08T05:00:00Z"),
        ("week", "UTC", "2021-01-03T23:00:00Z", "2020-W53", "2020-12-28T00:00:00Z"),
        ("week", "Pacific/Auckland", "2021-01-03T12:00:00Z", "2021-W01", "2021-01-03T11:00:00Z"),
        ("month", "America/New_York", "2013-02-01T04:00:00Z", "2013-01", "2013-01-01T05:00:00Z"),
    ],
)
def test_periods_are_those_of_the_zone(grain: Grain, zone: str, instant: str, name: str, start: str) -> None:
    """In UTC a New York evening would be in the next day, week or month."""
    periods = Periods(grain, zone)
    number = periods.at(datetime.fromisoformat(instant))
    assert (periods.name(number), periods.start(number)) == (name, datetime.fromisoformat(start))


@pytest.mark.parametrize(
    ("start", "end", "num_days"),
    [
        pytest.param("2013-02-08T05:00:00Z", "2013-02-10T05:00:00Z", 2, id="winter"),
        pytest.param("2013-03-10T05:00:00Z", "2013-03-11T04:00:00Z", 1, id="day of 23 hours"),
        pytest.param("2013-11-03T04:00:00Z", "2013-11-04T05:00:00Z", 1, id="day of 25 hours"),
    ],
)
def test_a_day_has_as_many_hours_as_the_clock_shows(start: str, end: str, num_days: int) -> None:
    days = Periods("day", "America/New_York")
    first = days.at(datetime.fromisoformat(start))
    assert days.at(datetime.fromisoformat(end)) - first == num_days
    assert days.start(first) == datetime.fromisoformat(start)


def test_the_days_of_a_period_are_all_of_them() -> None:
    month = Periods("month", "UTC")
    assert month.days(number_of("2024-02", "month"))[-1] == date(2024, 2, 29)
    assert [len(Periods(grain, "UTC").days(10_000)) for grain in ("hour", "day", "week")] == [1, 1, 7]
    assert (counted(1, "hour"), counted(1_200, "week")) == ("1 hour", "1,200 weeks")
