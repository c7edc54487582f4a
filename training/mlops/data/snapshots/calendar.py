"""The days of a window on which a calendar expects rows."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from mlops.contract.sections.calendar import WEEKDAYS, AnyCalendar, GapDays, OpenDays
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.sources.window import Window


def expected_days(calendar: AnyCalendar, window: Window) -> list[str]:
    """
    Return the days of a window on which there must be rows.

    :return: ``YYYY-MM-DD``, oldest first; none where any day may be without
    :raises BadConfigError: where nothing is known of the holidays
    """
    if isinstance(calendar, GapDays):
        return []
    days = [window.first_day + timedelta(days=step) for step in range((window.last_day - window.first_day).days + 1)]
    off = {*calendar.closed, *_holidays(calendar, window)}
    return [str(day) for day in days if WEEKDAYS[day.weekday()] in calendar.weekdays and day not in off]


def check_newest(
    days: Sequence[str],
    calendar: AnyCalendar,
    expected: Sequence[str],
    window: Window,
    sources: Mapping[str, Mapping[str, Any]],
) -> None:
    """
    Check that the newest day that the calendar expects has rows.

    :param days: days with rows, oldest first
    :param expected: those of :func:`expected_days`
    :param sources: provenance of each
    :raises BadDataError: where it has none: its delivery is late or lost
    """
    if not days:
        raise BadDataError(
            f"no rows from {window.start.isoformat()} to {window.end.isoformat()}: the window is empty, and of the "
            f"sources {_read_of(sources)}; check that they reach this far, or the run's date"
        )
    newest = days[-1]
    if isinstance(calendar, GapDays):
        gap = (window.last_day - date.fromisoformat(newest)).days
        if gap > calendar.gaps:
            raise BadDataError(
                f"no rows for the {gap} days up to {window.last_day} (newest: {newest}), and ingest.calendar allows "
                f"gaps of {calendar.gaps}; a delivery is late or lost: run again when it is there"
            )
    elif expected and expected[-1] not in days:
        if expected[-1] == str(window.last_day):
            which = "the last day of the interval"
        else:
            which = "the last day on which ingest.calendar expects any"
        raise BadDataError(
            f"no rows for {expected[-1]}, {which} (newest: {newest}); the day's delivery is late or lost: run again "
            "when it is there"
        )


def _read_of(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """Say how many rows each source had: ``visits had 120 rows by then (3 more without an instant)``."""
    parts = []
    for name, provenance in sources.items():
        undated = sum(provenance.get("undated", {}).values())
        more = f" ({undated:,} more without an instant)" if undated else ""
        parts.append(f"{name} had {provenance.get('num_rows', 0):,} rows by then{more}")
    return ", ".join(parts)


def _holidays(calendar: OpenDays, window: Window) -> Collection[date]:
    if calendar.holidays is None:
        return ()
    import holidays  # the validation's runtime, which reads snapshots, has no such package

    years = range(window.first_day.year, window.last_day.year + 1)
    code, _, part = calendar.holidays.partition("-")
    markets, countries = holidays.list_supported_financial(), holidays.list_supported_countries()
    try:
        of = holidays.financial_holidays if code in markets else holidays.country_holidays
        return of(code, subdiv=part or None, years=years)
    except NotImplementedError:
        pass
    said = f"ingest.calendar.holidays is {calendar.holidays!r}"
    if code in countries or code in markets:
        parts = countries.get(code) or markets.get(code)
        raise BadConfigError(f"{said}, and the parts of {code} are {', '.join(parts) if parts else 'not told apart'}")
    near = difflib.get_close_matches(code, [*countries, *markets], n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise BadConfigError(
        f"{said}, and nothing is known of the holidays there; {hint}"
        "It is the ISO code of a country, such as US or US-NY, or that of a market, such as XNYS"
    )
