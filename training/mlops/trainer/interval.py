"""
How long a training goes on between two checkpoints: as long as loses least to saving and to steps that are done again.

With C the time that a save takes from the training, and M the mean time between failures, that is about sqrt(2 C M)
(Young, "A first order approximation to the optimum checkpoint interval", CACM 17, 1974). We use the formula of Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22
(2006), equation 37: the same for a save that is cheap beside M, and also right for one that is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

PRIOR_SECONDS: Final = 3600.0
"""Before any failure was seen, one is expected after so long. Spot nodes last about half an hour, a machine of one's
own months; to be wrong costs little, for C is small: in its first hour a training of 500 MB saves every 20 s, and takes
0.3% longer. Each hour without a failure makes the interval longer."""
MEMORY_SECONDS: Final = 8 * 3600.0
"""What was seen counts for 1/e after so long: machines that are lost come in bursts."""
PRIOR_COST: Final = 1.0
"""Seconds that the first save is taken to cost."""
MOST_SHARE: Final = 0.02
"""Largest share of the time that saves may take, however often the training fails."""
_NEWEST: Final = 0.5
"""Weight of the newest measurement of a save's cost."""


class Saves(Protocol):
    """What is known of the saves of one rank."""

    last_blocked_seconds: float
    """How long the newest held up the training."""

    @property
    def last_durable_seconds(self) -> float:
        """How long the newest successful one took, in the background too; 0 before there is one."""

    @property
    def busy(self) -> bool:
        """Whether one is being written."""


class SaveInterval:
    """
    Rank 0's, who decides for all. Hears of each window of steps between two talks, each save, and each resume.

    :param most_seconds: the interval is never longer
    """

    def __init__(self, most_seconds: float, saves: Saves) -> None:
        self._most, self._saves = most_seconds, saves
        self._cost, self._durable = PRIOR_COST, 0.0
        self._failures = self._running = 0.0
        self._resumed = False
        self._saved_at: float | None = None
        self._quiet: float | None = None
        self._measured: float | None = None
        """Seconds that the save under way took from the training so far; None where there is none to measure."""

    @property
    def seconds(self) -> float:
        """From one save to the next."""
        # Twice: a save must be through before the next one, also where the store has a slow moment.
        least = max(self._cost / MOST_SHARE, 2 * self._durable)
        if self._resumed:
            # Soon: until then nobody would know of this failure, were another to come.
            return min(self._most, least)
        return min(self._most, max(least, optimal_interval(self._cost, self.seconds_between_failures)))

    @property
    def seconds_between_failures(self) -> float:
        """The mean, of what was seen and one failure that is expected before any was."""
        return (PRIOR_SECONDS + self._running) / (1 + self._failures)

    def due(self, now: float) -> bool:
        """
        Whether it is time to save.

        :param now: of the clock that :meth:`saved` is told too; begins to count with the first call
        """
        if self._saved_at is None:
            self._saved_at = now
        return now - self._saved_at >= self.seconds and not self._saves.busy

    def ran(self, seconds: float, steps: int, *, pure: bool = True) -> None:
        """
        Count a window of steps.

        :param pure: False where it held more than steps, e.g. a validation: nothing is measured in it
        """
        kept = math.exp(-seconds / MEMORY_SECONDS)
        self._failures, self._running = self._failures * kept, self._running * kept + seconds
        if not pure:
            self._measured = None
        elif self._measured is not None:
            if self._quiet is not None:
                self._measured += seconds - steps * self._quiet
            if not self._saves.busy:
                self._settle(self._measured)
        elif not self._saves.busy:
            per_step = seconds / max(1, steps)
            self._quiet = per_step if self._quiet is None else (1 - _NEWEST) * self._quiet + _NEWEST * per_step

    def saved(self, now: float, *, begun: bool = True) -> None:
        """
        A save was due, and what it blocked falls into the next window.

        :param begun: False where it was skipped, for the one before is still being written
        """
        self._saved_at = now
        if begun:
            self._measured, self._resumed = 0.0, False

    def document(self, *, announced: bool) -> dict[str, Any]:
        """
        JSON for the checkpoint.

        :param announced: whether this process ends as soon as it is saved, so that nothing is lost when it does
        """
        return {
            "failures": self._failures,
            "running_seconds": self._running,
            "cost_seconds": self._cost,
            "durable_seconds": self._durable,
            "announced": announced,
        }

    def resume(self, document: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: where its process did not announce its end, it failed."""
        self._failures, self._running = document["failures"], document["running_seconds"]
        self._cost, self._durable = document["cost_seconds"], document["durable_seconds"]
        if not document["announced"]:
            self._failures += 1
            self._resumed = True

    def _settle(self, taken: float) -> None:
        blocked, durable = self._saves.last_blocked_seconds, self._saves.last_durable_seconds
        # It takes what it blocks, and no more than all the time until it is written: the rest is other work's.
        cost = min(max(taken, blocked), max(blocked, durable))
        weight = _NEWEST if self._durable else 1.0
        self._cost += weight * (cost - self._cost)
        self._durable += weight * (durable - self._durable)
        self._measured = None


def optimal_interval(cost: float, between_failures: float) -> float:
    """
    Daly's interval between the end of a save and the begin of the next.

    :param cost: seconds of a save, > 0
    :param between_failures: seconds, the mean
    """
    if cost >= 2 * between_failures:
        return between_failures
    ratio = cost / (2 * between_failures)
    return math.sqrt(2 * cost * between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost
