"""Which days of a window must have rows. 2013-02-18 was a Monday, Washington's Birthday; 2013-03-29 Good Friday."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.calendar import AnyCalendar, Calendar
from mlops.contract.sections.ingest import Ingest
from mlops.contract.step import BadConfigError
from mlops.data.snapshots.calendar import expected_periods
from mlops.data.sources.window import Window


def calendar(settings: Any) -> AnyCalendar:
    read: AnyCalendar = TypeAdapter(Calendar).validate_python(settings)
    return read


def window(first: str, last: str) -> Window:
    days = (date.fromisoformat(last) - date.fromisoformat(first)).days + 1
    end = datetime.combine(date.fromisoformat(last) + timedelta(days=1), datetime.min.time(), UTC)
    return Window.before(end, days, "UTC")


@pytest.mark.parametrize(
    ("settings", "first", "last", "off"),
    [
        pytest.param("every_day", "2013-02-15", "2013-02-19", [], id="every day"),
        pytest.param("business_days", "2013-02-15", "2013-02-19", ["2013-02-16", "2013-02-17"], id="business days"),
        pytest.param(
            {"holidays": "US"}, "2013-02-15", "2013-02-19", ["2013-02-16", "2013-02-17", "2013-02-18"], id="a country"
        ),
        pytest.param({"holidays": "XNYS"}, "2013-03-28", "2013-03-29", ["2013-03-29"], id="a market"),
        pytest.param({"holidays": "US"}, "2013-03-28", "2013-03-29", [], id="whose holidays are its own"),
        pytest.param({"holidays": "DE-BY"}, "2013-01-04", "2013-01-08", ["2013-01-05", "2013-01-06"], id="a part"),
        pytest.param({"holidays": "DE-BY"}, "2014-01-06", "2014-01-07", ["2014-01-06"], id="its own holiday"),
        pytest.param({"holidays": "DE"}, "2014-01-06", "2014-01-07", [], id="which the whole has not"),
        pytest.param({"holidays": "US"}, "2013-12-31", "2014-01-02", ["2014-01-01"], id="over the year's end"),
        pytest.param({"holidays": "US"}, "2021-07-02", "2021-07-06", ["2021-07-03", "2021-07-04", "2021-07-05"],
                     id="a holiday that is made up for"),
        pytest.param(
            {"weekdays": ["sunday", "monday", "tuesday", "wednesday", "thursday"]}, "2013-02-14", "2013-02-17",
            ["2013-02-15", "2013-02-16"], id="another weekend",
        ),
        pytest.param(
            {"weekdays": ["friday", "saturday"], "closed": ["2013-02-16"]}, "2013-02-15", "2013-02-17",
            ["2013-02-16", "2013-02-17"], id="single days",
        ),
    ],
)  # fmt: skip
def test_the_days_off_need_no_rows(settings: Any, first: str, last: str, off: list[str]) -> None:
    days = window(first, last)
    every_day = expected_periods(calendar("every_day"), days)
    assert (every_day[0], every_day[-1]) == (first, last)
    assert [day for day in every_day if day not in expected_periods(calendar(settings), days)] == off


@pytest.mark.parametrize(
    ("code", "message"),
    [
        pytest.param("XX", "'XX', and nothing is known of the holidays there.*ISO code of a country", id="country"),
        pytest.param("XNYX", "did you mean .*XNYS", id="market"),
        pytest.param("US-ZZ", "the parts of US are AK, AL", id="part"),
        pytest.param("XNYS-NY", "the parts of XNYS are not told apart", id="part of a market"),
    ],
)
def test_holidays_that_nobody_knows_are_a_mistake_of_the_pipeline(code: str, message: str) -> None:
    """Without an error every day would be expected, and each holiday a failed night."""
    with pytest.raises(BadConfigError, match=f"ingest.calendar.holidays is .*{message}"):
        expected_periods(calendar({"holidays": code}), window("2013-02-15", "2013-02-19"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"calendar": "weekdays"}, "calendar must be every_day or business_days, or settings such as .*got 'weekdays'"),
        ({"calendar": {"weekdays": ["mon"]}}, "calendar.weekdays.0 must be 'monday', 'tuesday'.*got 'mon'"),
        ({"calendar": {"weekdays": []}}, "calendar.weekdays must have at least 1 item"),
        ({"calendar": {"holidays": "us"}}, "calendar.holidays must be the code of a country.*such as US.*got 'us'"),
        ({"calendar": {"closed": ["9.2.2013"]}}, "calendar.closed.0 must be a valid date.*got '9.2.2013'"),
        ({"calendar": {"gaps": 0}}, "calendar.gaps must be >= 1, got 0"),
        ({"calendar": {"gaps": 3, "holidays": "US"}}, "unknown key 'calendar.holidays'"),
        ({"calendar": {"gap": 3}}, "unknown key 'calendar.gap'; "),
        ({"calendar": 3}, "calendar must be .*got 3"),
        (
            {"calendar": "business_days", "window": 8},
            "content with a window of 8 days, of which the calendar has at most 6: leave at least one to train on",
        ),
        ({"window": 6}, "content with a window of 6 days: leave at least one to train on"),
    ],
)
def test_a_mistyped_calendar_is_named(settings: dict[str, Any], message: str) -> None:
    ingest = {"sources": {"events": {"path": "events.csv"}}, "event_time": "at", **settings}
    with pytest.raises(SpecError, match=message):
        check_section(Ingest, ingest, "ingest")


def test_a_window_of_business_days_holds_as_many_as_it_may() -> None:
    settings = {"calendar": "business_days", "window": 9}  # 9 days may hold 7 business days: 3, 3 and 1
    check_section(Ingest, {"sources": {"events": {"path": "events.csv"}}, "event_time": "at", **settings}, "ingest")
