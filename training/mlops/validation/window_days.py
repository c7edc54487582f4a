"""The days of a snapshot's window, and those on which its calendar expects rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Self
from zoneinfo import ZoneInfo

from mlops.contract.sections.calendar import DAYS_OF_A_WEEK
from mlops.contract.sections.validate import Volume
from mlops.contract.step import BadConfigError
from mlops.data.snapshots.manifest import Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowDays:
    """The days of a window, ``YYYY-MM-DD``, oldest first."""

    calendar: Sequence[str]
    """All calendar days, whether they have rows or not."""
    expected: Sequence[str]
    """Those on which there must be rows."""
    looked_at: Sequence[str]
    """Those on which there must be rows, or are some; never none."""
    gaps: int | None = None
    """The most days in a row without rows, where any day may be without."""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        days = calendar_days(manifest.interval_start, manifest.interval_end, manifest.timezone)
        with_rows = [partition.day for partition in manifest.partitions]
        gaps = manifest.calendar.get("gaps")
        if gaps is not None:
            expected: Sequence[str] = with_rows
        else:
            expected = manifest.expected_days if manifest.calendar else days
        looked_at = sorted({*expected, *with_rows}) or days[-1:]
        return cls(calendar=days, expected=expected, looked_at=looked_at, gaps=gaps)

    @property
    def newest(self) -> str:
        return self.looked_at[-1]

    def compared(self, volume: Volume) -> str | None:
        """
        Return the earlier day that the newest one's rows are compared with: of the same weekday, unless
        ``against_days`` says another distance, and like it one on which the calendar expects rows, or not.

        :return: None if the window has none
        :raises BadConfigError: where ``against_days`` is longer than the window
        """
        if volume.against_days is not None and volume.against_days >= len(self.calendar) > 1:
            raise BadConfigError(
                f"validate.volume.against_days is {volume.against_days}, but the snapshot's window has "
                f"{len(self.calendar)} day(s), from {self.calendar[0]} to {self.calendar[-1]}: there is nothing to "
                f"compare {self.newest} with. Set ingest.window_days to at least {volume.against_days + 1}, or "
                "validate.volume to null"
            )
        newest = date.fromisoformat(self.newest)
        alike = [day for day in self.looked_at[-2::-1] if (day in self.expected) == (self.newest in self.expected)]
        for distance in [volume.against_days] if volume.against_days else [DAYS_OF_A_WEEK, 1]:
            for day in alike:
                if (newest - date.fromisoformat(day)).days % distance == 0:
                    return day
        return None


def calendar_days(interval_start: str, interval_end: str, timezone: str) -> list[str]:
    """
    Return the days of a data window, whether they have rows or not.

    :param interval_start: first instant, ISO 8601
    :param interval_end: first instant after it, ISO 8601
    :param timezone: IANA name of the time zone of the days
    :return: ``YYYY-MM-DD``, oldest first
    """
    zone = ZoneInfo(timezone)
    first = datetime.fromisoformat(interval_start).astimezone(zone).date()
    last = (datetime.fromisoformat(interval_end) - timedelta(microseconds=1)).astimezone(zone).date()
    return [str(first + timedelta(days=step)) for step in range((last - first).days + 1)]
