"""The periods of a window in which a calendar expects rows."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from mlops.contract.grain import counted, number_of
from mlops.contract.sections.calendar import WEEKDAYS, AnyCalendar, GapDays, OpenDays
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.sources.window import Window


def expected_periods(calendar: AnyCalendar, window: Window) -> list[str]:
    """
    Return the periods of a window in which there must be rows.

    :return: their names, oldest first; none where any period may be without
    :raises BadConfigError: where nothing is known of the holidays
    """
    if isinstance(calendar, GapDays):
        return []
    periods, numbers = window.periods, range(window.first, window.last + 1)
    years = range(periods.first_day(window.first).year, periods.days(window.last)[-1].year + 1)
    off = {*calendar.closed, *_holidays(calendar, years)}

    def is_open(day: date) -> bool:
        return WEEKDAYS[day.weekday()] in calendar.weekdays and day not in off

    return [periods.name(number) for number in numbers if any(map(is_open, periods.days(number)))]


def check_newest(
    found: Sequence[str],
    calendar: AnyCalendar,
    expected: Sequence[str],
    window: Window,
    sources: Mapping[str, Mapping[str, Any]],
) -> None:
    """
    Check that the newest period that the calendar expects has rows.

    :param found: names of the periods with rows, oldest first
    :param expected: those of :func:`expected_periods`
    :param sources: provenance of each
    :raises BadDataError: where it has none: its delivery is late or lost
    """
    if not found:
        raise BadDataError(
            f"no rows from {window.start.isoformat()} to {window.stop.isoformat()}: the window is empty, and of the "
            f"sources {_read_of(sources)}; check that they reach this far, or the run's date"
        )
    grain, last = window.periods.grain, window.periods.name(window.last)
    newest = found[-1]
    if isinstance(calendar, GapDays):
        gap = window.last - number_of(newest, grain)
        if gap > calendar.gaps:
            raise BadDataError(
                f"no rows for the {counted(gap, grain)} up to {last} (newest: {newest}), and ingest.calendar allows "
                f"gaps of {calendar.gaps}; a delivery is late or lost: run again when it is there"
            )
    elif expected and expected[-1] not in found:
        which = "of the interval" if expected[-1] == last else "in which ingest.calendar expects any"
        raise BadDataError(
            f"no rows for {expected[-1]}, the last {grain} {which} (newest: {newest}); its delivery is late or lost: "
            "run again when it is there"
        )


def _read_of(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """Say how many rows each source had: ``visits had 120 rows by then (3 more without an instant)``."""
    parts = []
    for name, provenance in sources.items():
        undated = sum(provenance.get("undated", {}).values())
        more = f" ({undated:,} more without an instant)" if undated else ""
        parts.append(f"{name} had {provenance.get('num_rows', 0):,} rows by then{more}")
    return ", ".join(parts)


def _holidays(calendar: OpenDays, years: Iterable[int]) -> Collection[date]:
    if calendar.holidays is None:
        return ()
    import holidays  # the validation's runtime, which reads snapshots, has no such package

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
