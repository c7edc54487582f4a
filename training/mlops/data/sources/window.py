"""The window of calendar days that a snapshot holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The calendar days that the snapshot holds."""

    start: datetime
    """First instant, UTC."""
    end: datetime
    """As-of time, UTC; not part of the window."""
    first_day: date
    last_day: date
    timezone: str

    @classmethod
    def before(cls, end: datetime, days: int, timezone: str) -> Window:
        """The last ``days`` calendar days of the zone before an instant; a day begun counts as one."""
        zone = ZoneInfo(timezone)
        last_day = (end - timedelta(microseconds=1)).astimezone(zone).date()
        first_day = last_day - timedelta(days=days - 1)
        start = datetime.combine(first_day, time(), zone).astimezone(ZoneInfo("UTC"))
        return cls(
            start=start, end=end.astimezone(ZoneInfo("UTC")), first_day=first_day, last_day=last_day, timezone=timezone
        )
