from __future__ import annotations

import pytest

from mlops.contract.sections.validate import Volume
from mlops.contract.step import BadConfigError
from mlops.validation.volume import (
    DAY_CHANGED,
    EMPTY_DAY,
    NOT_COMPARABLE,
    VOLUME_CHANGED,
    calendar_days,
    check_against_previous,
    check_days,
    check_volume,
)

DAYS = ["2013-02-07", "2013-02-08", "2013-02-09"]
DAY_BEFORE = Volume(tolerance=0.2, against_days=1)


def test_a_drop_is_put_plainly():
    """It is what the person on call reads first."""
    (anomaly,) = check_volume(DAYS, {"2013-02-08": 930, "2013-02-09": 684}, DAY_BEFORE)
    assert anomaly.found == "2013-02-09 has 684 rows, 2013-02-08 had 930: ratio 0.735 is outside 0.8 .. 1.2"
    assert anomaly.kind == "COMPARATOR_LOW_NUM_EXAMPLES"
    assert anomaly.days == ("2013-02-09",)


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
    found = check_volume(DAYS, {"2013-02-08": 1000, "2013-02-09": newest}, DAY_BEFORE)
    assert [anomaly.kind for anomaly in found] == kinds


@pytest.mark.parametrize(
    ("week_before", "advised"), [pytest.param(682, True, id="usual"), pytest.param(930, False, id="unusual")]
)
def test_a_drop_that_comes_every_week_is_said_to_be_one(week_before, advised):
    """Every Saturday has a quarter fewer flights than its Friday: whoever is on call should not look for a fault."""
    days = [f"2013-02-{day:02}" for day in range(2, 10)]
    num_rows = {"2013-02-02": week_before, "2013-02-08": 930, "2013-02-09": 684}
    (anomaly,) = check_volume(days, num_rows, DAY_BEFORE)
    assert ("2013-02-02 had 682 rows: it may be the weekday" in anomaly.fix) == advised


def test_the_day_compared_with_is_against_days_before():
    config = Volume(tolerance=0.2, against_days=2)
    num_rows = {"2013-02-07": 100, "2013-02-08": 500, "2013-02-09": 100}
    assert check_volume(DAYS, num_rows, config) == []


def test_an_empty_day_to_compare_with_is_no_silence():
    """TFDV would skip the check."""
    (anomaly,) = check_volume(DAYS, {"2013-02-09": 684}, DAY_BEFORE)
    assert anomaly.kind == NOT_COMPARABLE
    assert "2013-02-08 had none" in anomaly.found


def test_a_day_before_the_window_is_a_mistake_of_the_pipeline():
    with pytest.raises(BadConfigError, match=r"against_days is 7.*window has 3 day\(s\).*at least 8"):
        check_volume(DAYS, {"2013-02-09": 684}, Volume(tolerance=0.2, against_days=7))


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
    anomalies = check_days(DAYS, num_rows)
    assert [anomaly.found for anomaly in anomalies] == found
    assert {anomaly.kind for anomaly in anomalies} <= {EMPTY_DAY}


@pytest.mark.parametrize(
    ("start", "end", "days"),
    [
        pytest.param("2013-02-08T05:00:00Z", "2013-02-10T05:00:00Z", ["2013-02-08", "2013-02-09"], id="winter"),
        pytest.param("2013-03-10T05:00:00Z", "2013-03-11T04:00:00Z", ["2013-03-10"], id="day of 23 hours"),
        pytest.param("2013-11-03T04:00:00Z", "2013-11-04T05:00:00Z", ["2013-11-03"], id="day of 25 hours"),
    ],
)
def test_calendar_days_are_those_of_the_zone(start, end, days):
    """In UTC days a New York evening would count for the next day."""
    assert calendar_days(start, end, "America/New_York") == days


BEFORE = {"2013-02-06": 100, "2013-02-07": 100, "2013-02-08": 100}


@pytest.mark.parametrize(
    ("num_rows", "kinds"),
    [
        pytest.param({"2013-02-07": 100, "2013-02-08": 100, "2013-02-09": 110}, [], id="as before"),
        pytest.param({"2013-02-07": 100, "2013-02-08": 79, "2013-02-09": 110}, [DAY_CHANGED], id="a day has changed"),
        pytest.param({"2013-02-07": 100, "2013-02-08": 100, "2013-02-09": 900}, [VOLUME_CHANGED], id="many rows"),
        pytest.param({"2013-02-09": 100}, [VOLUME_CHANGED], id="few rows"),
        pytest.param({}, [], id="none"),
    ],
)
def test_the_previous_snapshot_had_about_as_many_rows(num_rows, kinds):
    found = check_against_previous(DAYS, num_rows, BEFORE, 3, DAY_BEFORE)
    assert [anomaly.kind for anomaly in found] == kinds


def test_a_longer_window_has_more_rows():
    """Its rows a day are what is compared."""
    assert check_against_previous(DAYS, dict.fromkeys(DAYS, 100), {"2013-02-05": 100}, 1, DAY_BEFORE) == []
