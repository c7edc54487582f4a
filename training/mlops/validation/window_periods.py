"""The periods of a snapshot's window, and those in which its calendar expects rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def compared(self, volume: Volume, period: str | None = None) -> str | None:
        """
        Return the earlier period that a period's rows are compared with: one of its kind, unless ``against`` says
        another distance, and like it one in which the calendar expects rows, or not.

        :param period: None: the newest
        :return: None if the window has none
        :raises BadConfigError: where ``against`` is longer than the window
        """
        period = self.newest if period is None else period
        if volume.against is not None and volume.against >= len(self.all) > 1:
            raise BadConfigError(
                f"validate.volume.against is {volume.against}, but the snapshot's window has "
                f"{counted(len(self.all), self.grain)}, from {self.all[0]} to {self.all[-1]}: there is nothing to "
                f"compare {period} with. Set ingest.window to at least {volume.against + 1}, or "
                "validate.volume to null"
            )
        expected, failed = set(self.expected), set(self.failed)
        before = [each for each in reversed(self.looked_at) if each < period and each not in failed]
        alike = [each for each in before if (each in expected) == (period in expected)]
        names = {number_of(each, self.grain): each for each in alike}
        distances = [volume.against] if volume.against else ALIKE[self.grain]
        found = before_alike(number_of(period, self.grain), list(names), distances)
        return None if found is None else names[found]


def before_alike(newest: int, before: Sequence[int], distances: Sequence[int]) -> int | None:
    """
    Return the first of earlier periods that lies the first of the distances, or several times that, before one; or else
    by the next distance.

    :param before: numbers of the periods, newest first
    """
    return next((each for distance in distances for each in before if (newest - each) % distance == 0), None)
