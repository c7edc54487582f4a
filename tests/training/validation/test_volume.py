from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

import pytest

from mlops.contract.grain import Grain, Periods, number_of
from mlops.contract.sections.validate import Volume
from mlops.contract.step import BadConfigError
from mlops.validation.anomalies import Anomaly
from mlops.validation.volume import (
    EMPTY_PERIOD,
    NOT_COMPARABLE,
    PERIOD_CHANGED,
    VOLUME_CHANGED,
    check_against_previous,
    check_periods,
    check_volume,
    compared_periods,
)
from mlops.validation.window_periods import WindowPeriods

DAYS = ["2013-02-07", "2013-02-08", "2013-02-09"]
DAY_BEFORE = Volume(tolerance=0.2, against=1)


def every(days: Sequence[str]) -> WindowPeriods:
    """Days each of which must have rows."""
    return WindowPeriods(grain="day", all=days, expected=days, looked_at=days)


def judged(periods: WindowPeriods, num_rows: Mapping[str, int], config: Volume) -> list[Anomaly]:
    return check_volume(compared_periods(periods, num_rows, config), periods, num_rows, config)


def february(first: int, last: int) -> list[str]:
    """The first of February 2013 was a Friday."""
    return [f"2013-02-{day:02}" for day in range(first, last + 1)]


def test_a_drop_is_put_plainly():
    """It is what the person on call reads first."""
    (anomaly,) = judged(every(DAYS), {"2013-02-08": 930, "2013-02-09": 684}, DAY_BEFORE)
    assert anomaly.found == "2013-02-09 has 684 rows, 2013-02-08 had 930: ratio 0.735 is outside 0.8 .. 1.2"
    assert anomaly.kind == "COMPARATOR_LOW_NUM_EXAMPLES"
    assert anomaly.periods == ("2013-02-09",)


@pytest.mark.parametrize(
    ("newest", "kinds"),
    [
        pytest.param(799, ["COMPARATOR_LOW_NUM_EXAMPLES"], id="just too few"),
        pytest.param(800, [], id="lower bound"),
        pytest.param(1200, [], id="upper bound"),
        pytest.param(1201, ["COMPARATOR_HIGH_NUM_EXAMPLES"], id="just too many"),
    ],
)
def test_the_bounds_themselves_are_allowed(newest, kinds):
    found = judged(every(DAYS), {"2013-02-08": 1000, "2013-02-09": newest}, DAY_BEFORE)
    assert [anomaly.kind for anomaly in found] == kinds


@pytest.mark.parametrize(
    ("week_before", "advised"), [pytest.param(682, True, id="usual"), pytest.param(930, False, id="unusual")]
)
def test_a_drop_that_comes_every_week_is_said_to_be_one(week_before, advised):
    """Every Saturday has a quarter fewer flights than its Friday: whoever is on call should not look for a fault."""
    num_rows = {"2013-02-02": week_before, "2013-02-08": 930, "2013-02-09": 684}
    (anomaly,) = judged(every(february(2, 9)), num_rows, DAY_BEFORE)
    assert ("2013-02-02, which is of its kind, had 682 rows: it may be the weekday" in anomaly.fix) == advised


def test_the_day_compared_with_is_against_days_before():
    config = Volume(tolerance=0.2, against=2)
    num_rows = {"2013-02-07": 100, "2013-02-08": 500, "2013-02-09": 100}
    assert judged(every(DAYS), num_rows, config) == []


def test_an_empty_day_to_compare_with_is_no_silence():
    """TFDV would skip the check."""
    (anomaly,) = judged(every(DAYS), {"2013-02-09": 684}, DAY_BEFORE)
    assert anomaly.kind == NOT_COMPARABLE
    assert "2013-02-08 had none" in anomaly.found


def test_a_day_before_the_window_is_a_mistake_of_the_pipeline():
    with pytest.raises(BadConfigError, match=r"against is 7.*window has 3 days.*at least 8"):
        judged(every(DAYS), {"2013-02-09": 684}, Volume(tolerance=0.2, against=7))


@pytest.mark.parametrize(
    ("num_rows", "found"),
    [
        pytest.param(dict.fromkeys(DAYS, 1), [], id="none"),
        pytest.param({"2013-02-07": 1, "2013-02-08": 1}, ["2013-02-09 has no rows"], id="newest"),
        pytest.param({"2013-02-08": 1, "2013-02-09": 1}, ["2013-02-07 has no rows"], id="oldest"),
        pytest.param({"2013-02-08": 1}, ["2 days have no rows: 2013-02-07, 2013-02-09"], id="two"),
        pytest.param(
            {}, ["the snapshot is empty: none of its 3 days, from 2013-02-07 to 2013-02-09, has rows"], id="all"
        ),
    ],
)
def test_days_without_rows_are_found(num_rows, found):
    anomalies = check_periods(every(DAYS), num_rows)
    assert [anomaly.found for anomaly in anomalies] == found
    assert {anomaly.kind for anomaly in anomalies} <= {EMPTY_PERIOD}


def business(first: int, last: int, holidays: Sequence[str] = (), also: Sequence[str] = ()) -> WindowPeriods:
    """Monday to Friday; ``also``: days off that have rows."""
    days = february(first, last)
    off = {*(day for day in days if date.fromisoformat(day).weekday() > 4), *holidays}
    expected = [day for day in days if day not in off]
    return WindowPeriods(grain="day", all=days, expected=expected, looked_at=sorted({*expected, *also}))


@pytest.mark.parametrize(
    ("days", "against", "compared"),
    [
        pytest.param(every(february(1, 9)), None, "2013-02-02", id="the weekday before"),
        pytest.param(every(february(3, 9)), None, "2013-02-08", id="a window of a week has the day before"),
        pytest.param(every(february(1, 9)), 1, "2013-02-08", id="the day before where it is asked for"),
        pytest.param(business(1, 11), None, "2013-02-04", id="Monday with Monday"),
        pytest.param(business(8, 11), None, "2013-02-08", id="Monday with Friday, in a short window"),
        pytest.param(business(1, 11), 1, "2013-02-08", id="the business day before"),
        pytest.param(business(1, 17), None, "2013-02-08", id="on a Sunday, Friday is the newest day"),
        pytest.param(business(1, 18, ["2013-02-11"]), None, "2013-02-04", id="a holiday a week before is passed over"),
        pytest.param(business(11, 18, ["2013-02-11"]), 7, None, id="and where no other is left, nothing is compared"),
        pytest.param(business(1, 9, also=["2013-02-09"]), None, None, id="a day off with rows is like no other"),
        pytest.param(business(1, 9, also=["2013-02-02", "2013-02-09"]), None, "2013-02-02", id="but like another one"),
        pytest.param(every(february(9, 9)), None, None, id="a window of a day"),
    ],
)
def test_the_newest_day_is_compared_with_one_of_its_kind(days: WindowPeriods, against: int | None, compared: str):
    """Saturdays with Fridays, or Mondays after a holiday with it, would fail every week."""
    assert next(iter(days.alike(days.newest, Volume(against=against))), None) == compared


@pytest.mark.parametrize(
    ("grain", "newest", "length", "compared"),
    [
        pytest.param("hour", "2013-02-09T14:00Z", 200, "2013-02-02T14:00Z", id="the hour of the weekday"),
        pytest.param("hour", "2013-02-09T14:00Z", 48, "2013-02-08T14:00Z", id="the hour of the day before"),
        pytest.param("hour", "2013-02-09T14:00Z", 6, "2013-02-09T13:00Z", id="the hour before"),
        pytest.param("week", "2013-W06", 8, "2013-W05", id="the week before"),
        pytest.param("month", "2013-02", 24, "2012-02", id="the month of the year before"),
        pytest.param("month", "2013-02", 6, "2013-01", id="the month before"),
    ],
)
def test_periods_of_any_grain_are_compared_with_their_kind(grain: Grain, newest: str, length: int, compared: str):
    """The hour after midnight would be too few of yesterday evening's rows, each night."""
    periods = Periods(grain, "UTC")
    last = number_of(newest, grain)
    names = [periods.name(number) for number in range(last - length + 1, last + 1)]
    window = WindowPeriods(grain=grain, all=names, expected=names, looked_at=names)
    assert window.alike(newest, Volume())[0] == compared
    (anomaly,) = judged(window, {newest: 10, compared: 100}, Volume())
    assert anomaly.found.startswith(f"{newest} has 10 rows, {compared} had 100")
    assert f"load the {grain} again" in anomaly.fix
    (anomaly, *_) = check_periods(window, dict.fromkeys(names[2:], 1))
    assert (anomaly.title, anomaly.found) == (
        f"{grain.capitalize()}s without rows", f"2 {grain}s have no rows: {names[0]}, {names[1]}",
    )  # fmt: skip


def test_a_day_off_needs_no_rows_and_any_other_does():
    days = business(1, 12, holidays=["2013-02-12"])
    open_days = dict.fromkeys(days.expected, 100)
    assert check_periods(days, open_days) == []
    (anomaly,) = check_periods(days, {day: 100 for day in open_days if day != "2013-02-06"})
    assert anomaly.periods == ("2013-02-06",)
    assert anomaly.expected == "rows on every day that ingest.calendar names from 2013-02-01 to 2013-02-12"


@pytest.mark.parametrize(
    ("with_rows", "empty"),
    [
        pytest.param([1, 5, 9], [], id="as many as are allowed"),
        pytest.param([3, 7, 9], [], id="few before the first"),
        pytest.param([1, 6, 9], [2, 3, 4, 5], id="more"),
        pytest.param([5, 9], [1, 2, 3, 4], id="more before the first"),
        pytest.param([1, 4, 5], [6, 7, 8, 9], id="more after the last"),
        pytest.param([5], [1, 2, 3, 4, 6, 7, 8, 9], id="twice"),
        pytest.param([], list(range(1, 10)), id="all"),
    ],
)
def test_gaps_may_be_so_long_and_no_longer(with_rows: list[int], empty: list[int]):
    """A weekly delivery that fails would not be missed for as long as the window has an older one."""
    found = [f"2013-02-{day:02}" for day in with_rows]
    days = WindowPeriods(grain="day", all=february(1, 9), expected=found, looked_at=found or february(9, 9), gaps=3)
    anomalies = check_periods(days, dict.fromkeys(found, 10))
    assert [day for anomaly in anomalies for day in anomaly.periods] == [f"2013-02-{day:02}" for day in empty]
    assert {anomaly.expected for anomaly in anomalies} <= {"at most 3 days without rows in a row (ingest.calendar)"}


BEFORE = {"2013-02-06": 100, "2013-02-07": 100, "2013-02-08": 100}


@pytest.mark.parametrize(
    ("num_rows", "kinds"),
    [
        pytest.param({"2013-02-07": 100, "2013-02-08": 100, "2013-02-09": 110}, [], id="as before"),
        pytest.param(
            {"2013-02-07": 100, "2013-02-08": 79, "2013-02-09": 110}, [PERIOD_CHANGED], id="a day has changed"
        ),
        pytest.param({"2013-02-07": 100, "2013-02-08": 100, "2013-02-09": 900}, [VOLUME_CHANGED], id="many rows"),
        pytest.param({"2013-02-09": 100}, [VOLUME_CHANGED], id="few rows"),
        pytest.param({}, [], id="none"),
    ],
)
def test_the_previous_snapshot_had_about_as_many_rows(num_rows, kinds):
    found = check_against_previous(every(DAYS), num_rows, BEFORE, DAY_BEFORE)
    assert [anomaly.kind for anomaly in found] == kinds


def test_a_longer_window_has_more_rows():
    """Its rows a day are what is compared."""
    assert check_against_previous(every(DAYS), dict.fromkeys(DAYS, 100), {"2013-02-05": 100}, DAY_BEFORE) == []
