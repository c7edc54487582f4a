"""The setting ``ingest.calendar``: on which days rows are expected."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator

from mlops.contract.grain import DAYS_OF_A_WEEK, Grain
from mlops.contract.section import Holidays, Section

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: Final[tuple[Weekday, ...]] = (
    "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
)  # fmt: skip
"""As :meth:`datetime.date.weekday` numbers them."""


class OpenDays(Section):
    """
    Rows are expected on some weekdays, less the holidays. A day off may have rows; it need not. Of weeks and months,
    those are expected that are not off altogether.
    """

    weekdays: list[Weekday] = Field(default=list(WEEKDAYS[:5]), min_length=1)
    """Default: Monday to Friday."""
    holidays: Holidays | None = None
    """Code of a country, of a part of it, or of a market, whose holidays are days off: ``US``, ``US-NY``, ``XNYS``; as
    the package ``holidays`` knows them."""
    closed: list[date] = []
    """Single days off, such as that of a strike."""

    @field_validator("weekdays")
    @classmethod
    def _in_order(cls, value: list[Weekday]) -> list[Weekday]:
        return [day for day in WEEKDAYS if day in value]

    def most(self, window: int, grain: Grain) -> int:
        """Return the most periods with rows that may be expected in a window of so many."""
        if grain != "day":
            return window
        weeks, rest = divmod(window, DAYS_OF_A_WEEK)
        open_days = [day in self.weekdays for day in WEEKDAYS] * 2
        return weeks * len(self.weekdays) + max(sum(open_days[start : start + rest]) for start in range(DAYS_OF_A_WEEK))


class GapDays(Section):
    """Rows may come in any period, and need not; but not in too few."""

    gaps: int = Field(ge=1)
    """The most periods in a row without rows: 6 days where rows come once a week."""

    def most(self, window: int, grain: Grain) -> int:
        """Return the most periods with rows that may be expected in a window of so many."""
        return window


AnyCalendar = OpenDays | GapDays
EVERY_DAY: Final = OpenDays(weekdays=list(WEEKDAYS))
_NAMED: Final[Mapping[str, OpenDays]] = {"every_day": EVERY_DAY, "business_days": OpenDays()}


def _by_name(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in _NAMED:
        raise ValueError(
            f"{' or '.join(_NAMED)}, or settings such as {{holidays: US}}, {{weekdays: [monday, thursday]}}, "
            "{gaps: 6}"
        )
    return _NAMED[value]


def _kind_of_calendar(value: object) -> str:
    if isinstance(value, Section):
        return f"({type(value).__name__})"
    return "(GapDays)" if isinstance(value, Mapping) and "gaps" in value else "(OpenDays)"


Calendar = Annotated[
    Annotated[OpenDays, Tag("(OpenDays)")] | Annotated[GapDays, Tag("(GapDays)")],
    Discriminator(_kind_of_calendar),
    BeforeValidator(_by_name),
]
"""``every_day``, ``business_days``, or settings."""
