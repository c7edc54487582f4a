"""The periods of a snapshot's window, and those in which its calendar expects rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from mlops.contract.grain import Grain, counted, number_of
from mlops.contract.manifest import Manifest
from mlops.contract.sections.validate import Volume
from mlops.contract.step import BadConfigError

ALIKE: Final[Mapping[Grain, Sequence[int]]] = {"hour": (168, 24, 1), "day": (7, 1), "week": (1,), "month": (12, 1)}
"""How many periods before one lies another of its kind: the same hour of the weekday, or of the day; and so on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowPeriods:
    """The periods of a window by their names, oldest first."""

    grain: Grain
    all: Sequence[str]
    """Whether they have rows or not."""
    expected: Sequence[str]
    """Those in which there must be rows."""
    looked_at: Sequence[str]
    """Those in which there must be rows, or are some; never none."""
    gaps: int | None = None
    """The most periods in a row without rows, where any may be without."""
    failed: Sequence[str] = ()
    """Those of earlier nights that have not passed: nothing is compared with them."""
    earlier: Sequence[str] = ()
    """Those before the window, of the snapshot that passed last, in which there had to be rows."""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        with_rows = [partition.period for partition in manifest.partitions]
        gaps = manifest.calendar.get("gaps")
        expected = with_rows if gaps is not None else manifest.expected
        looked_at = sorted({*expected, *with_rows}) or list(manifest.window[-1:])
        return cls(grain=manifest.grain, all=manifest.window, expected=expected, looked_at=looked_at, gaps=gaps)

    @property
    def newest(self) -> str:
        return self.looked_at[-1]

    def alike(self, period: str, volume: Volume) -> Sequence[str]:
        """
        Return the earlier periods that a period's rows may be compared with, newest first: those of its kind, unless
        ``against`` says another distance, and like it ones in which the calendar expects rows, or not.

        :raises BadConfigError: where ``against`` is longer than the window
        """
        if volume.against is not None and volume.against >= len(self.all) > 1:
            raise BadConfigError(
                f"validate.volume.against is {volume.against}, but the snapshot's window has "
                f"{counted(len(self.all), self.grain)}, from {self.all[0]} to {self.all[-1]}: there is nothing to "
                f"compare {period} with. Set ingest.window to at least {volume.against + 1}, or "
                "validate.volume to null"
            )
        expected, failed = {*self.earlier, *self.expected}, set(self.failed)
        before = [each for each in (*self.earlier, *self.looked_at) if each < period and each not in failed]
        alike = [each for each in reversed(before) if (each in expected) == (period in expected)]
        names = {number_of(each, self.grain): each for each in alike}
        distances = [volume.against] if volume.against else ALIKE[self.grain]
        return [names[each] for each in before_alike(number_of(period, self.grain), list(names), distances)]


def not_passed(periods: Sequence[str], passed: Collection[str], interval_start: str) -> list[str]:
    """
    Return the periods of earlier nights that have not passed, oldest first. What is older than all that passed is no
    night's: the window has become longer.

    :param periods: with rows, oldest first
    :param passed: those of the snapshot that passed last
    :param interval_start: first period of the data interval: those before it were of earlier nights
    """
    first = min(passed, default=interval_start)
    return [period for period in periods[:-1] if first < period < interval_start and period not in passed]


def before_alike(newest: int, before: Sequence[int], distances: Sequence[int]) -> Sequence[int]:
    """
    Return the earlier periods that lie the first of the distances, or several times that, before one; or else those by
    the next distance.

    :param before: numbers of the periods, newest first
    """
    by_distance = ([each for each in before if (newest - each) % distance == 0] for distance in distances)
    return next(filter(None, by_distance), [])
