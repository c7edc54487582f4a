"""
The grain of a pipeline's data: its partitions are the hours, days, weeks or months of a time zone.

A period is one of these. It has a number, which counts them in the order of time, and a name, which sorts in that order
too: ``2013-02-09T14:00Z``, ``2013-02-09``, ``2013-W06``, ``2013-02``.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

Grain = Literal["hour", "day", "week", "month"]
_HOUR_NAME: Final = "%Y-%m-%dT%H:%MZ"
_SECONDS_OF_AN_HOUR: Final = 3600
DAYS_OF_A_WEEK: Final = 7
_MONTHS_OF_A_YEAR: Final = 12


def counted(number: int, grain: Grain) -> str:
    """Return ``1 day`` or ``3 days``."""
    return f"{number:,} {grain}" if number == 1 else f"{number:,} {grain}s"


def number_of(name: str, grain: Grain) -> int:
    """
    Return the number of a period; neighbours differ by 1.

    :param name: of the period
    """
    match grain:
        case "hour":
            started = datetime.strptime(name, _HOUR_NAME).replace(tzinfo=UTC)
            return int(started.timestamp()) // _SECONDS_OF_AN_HOUR
        case "week":
            return _number_of_day(datetime.strptime(f"{name}-1", "%G-W%V-%u").replace(tzinfo=UTC).date(), grain)
        case "month":
            return _number_of_day(date.fromisoformat(f"{name}-01"), grain)
    return _number_of_day(date.fromisoformat(name), grain)


def _number_of_day(day: date, grain: Grain) -> int:
    match grain:
        case "week":
            return (day.toordinal() - 1) // DAYS_OF_A_WEEK
        case "month":
            return _MONTHS_OF_A_YEAR * day.year + day.month - 1
    return day.toordinal()


class Periods(NamedTuple):
    """The periods of a grain in a time zone."""

    grain: Grain
    timezone: str
    """IANA name."""

    def at(self, instant: datetime) -> int:
        """Return the number of the period that an instant lies in."""
        if self.grain == "hour":
            return int((instant - self.hours_apart).timestamp()) // _SECONDS_OF_AN_HOUR
        return _number_of_day(instant.astimezone(self._zone).date(), self.grain)

    def start(self, number: int) -> datetime:
        """Return the first instant of a period, in UTC."""
        if self.grain == "hour":
            return datetime.fromtimestamp(number * _SECONDS_OF_AN_HOUR, UTC) + self.hours_apart
        return datetime.combine(self.first_day(number), time(), self._zone).astimezone(UTC)

    def first_day(self, number: int) -> date:
        """Return the first calendar day of a period, or the one that an hour lies in."""
        match self.grain:
            case "hour":
                return self.start(number).astimezone(self._zone).date()
            case "week":
                return date.fromordinal(number * DAYS_OF_A_WEEK + 1)
            case "month":
                return date(number // _MONTHS_OF_A_YEAR, number % _MONTHS_OF_A_YEAR + 1, 1)
        return date.fromordinal(number)

    def begin(self, name: str) -> datetime:
        """
        Return the begin of a period, in the zone.

        :param name: of the period
        """
        return self.start(number_of(name, self.grain)).astimezone(self._zone)

    def days(self, number: int) -> list[date]:
        """Return the calendar days of a period; the one that an hour lies in."""
        first = self.first_day(number)
        if self.grain in ("hour", "day"):
            return [first]
        return [first + timedelta(days=step) for step in range((self.first_day(number + 1) - first).days)]

    def name(self, number: int) -> str:
        start = self.start(number) if self.grain == "hour" else self.first_day(number)
        return start.strftime(self.name_format)

    @property
    def name_format(self) -> str:
        """How an hour's start in UTC, or the first day of another period, is written as its name."""
        return {"hour": _HOUR_NAME, "day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}[self.grain]

    @property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    @property
    def hours_apart(self) -> timedelta:
        """How long after an hour of UTC an hour of the zone begins: 30 minutes in India, none in most zones."""
        offset = datetime(2000, 1, 1, tzinfo=self._zone).utcoffset()
        assert offset is not None, "a zone has an offset"
        return -offset % timedelta(hours=1)
