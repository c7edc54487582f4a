"""The window of periods that a snapshot holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from mlops.contract.grain import Grain, Periods


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The periods that the snapshot holds, and the instant as of which its sources are read."""

    periods: Periods
    first: int
    """Number of the first period."""
    last: int
    end: datetime
    """As-of time, UTC."""

    @classmethod
    def before(cls, end: datetime, length: int, timezone: str, grain: Grain = "day", *, begun: bool = False) -> Self:
        """
        The last periods before an instant. One that is not over yet has not all of its rows.

        :param length: number of periods
        :param begun: a period that is not over yet counts nevertheless
        """
        periods = Periods(grain, timezone)
        last = periods.at(end - timedelta(microseconds=1)) if begun else periods.at(end) - 1
        return cls(periods=periods, first=last - length + 1, last=last, end=end.astimezone(UTC))

    @property
    def start(self) -> datetime:
        """First instant, UTC."""
        return self.periods.start(self.first)

    @property
    def stop(self) -> datetime:
        """First instant after the last period, UTC."""
        return self.periods.start(self.last + 1)

    @property
    def names(self) -> list[str]:
        """Names of the periods, oldest first."""
        return [self.periods.name(number) for number in range(self.first, self.last + 1)]
