"""
What all ranks must do at the same step although only one of them knows of it: save because time is up, end because of
SIGTERM.

They talk about once a second, and each time settle the step at which they will talk next: no step between costs
anything. What is to be known of all ranks, such as the loss, travels along.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

    from mlops.trainer.interval import SaveInterval
    from mlops.trainer.parallel import Ranks

INTERVAL_SECONDS: Final = 1.0
_MOST_STEPS: Final = 10_000


class Sigterm:
    """Noted instead of obeyed, within the context."""

    def __init__(self) -> None:
        self.received = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        def note(_: int, __: FrameType | None) -> None:
            self.received = True

        before = signal.signal(signal.SIGTERM, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReport:
    """What one rank says, or all of them together."""

    loss_units: int = 0
    """Loss units of the rank's samples since the last exchange; summed over the ranks."""
    waited_microseconds: int = 0
    """For data; the longest counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncDecision:
    save: bool = False
    end: bool = False
    """Some rank was told to end."""
    told: RankReport | None = None
    """None where they did not talk."""


class RankSync:
    """
    One for a training; called after each step by all ranks, with the same steps.

    :param interval: when to save; only rank 0's counts
    :param every_steps: also save at each multiple of so many steps
    :param step: optimizer steps done before
    """

    def __init__(
        self, ranks: Ranks, interval: SaveInterval, sigterm: Sigterm, step: int, *, every_steps: int | None = None
    ) -> None:
        self._ranks, self._interval, self._sigterm, self._every_steps = ranks, interval, sigterm, every_steps
        self._talked_at = time.monotonic()
        interval.due(self._talked_at)
        self._pure = False  # the first step compiles
        self._talked_step = step
        self._next_step = step + 1
        self._gap = 1

    def due(self, step: int) -> bool:
        """Whether the ranks talk after this step."""
        return step >= self._next_step

    def after(self, step: int, say: RankReport | None = None) -> SyncDecision:
        """
        :param step: optimizer steps done since the start of the training
        :param say: for all to know; looked at where :meth:`due`
        """
        every = self._every_steps
        decision = self._talk(step, say or RankReport()) if self.due(step) else SyncDecision()
        if every is not None and step % every == 0:
            return replace(decision, save=True)
        return decision

    def pause(self) -> None:
        """Something else than steps comes before the next talk: no speed is measured until then."""
        self._pure = False

    def _talk(self, step: int, say: RankReport) -> SyncDecision:
        now = time.monotonic()
        seconds, steps = now - self._talked_at, step - self._talked_step
        self._interval.ran(seconds, steps, pure=self._pure)
        self._pure = True
        seconds_per_step = seconds / max(1, steps)
        # At most twice the last one: the next steps may be slower.
        gap = max(1, min(_MOST_STEPS, 2 * self._gap, int(INTERVAL_SECONDS / max(seconds_per_step, 1e-9))))
        overdue = self._interval.due(now)
        # Clocks differ: the first rank's counts.
        mine = [gap, overdue] if self._ranks.leads else [0, 0]
        together = self._ranks.reduce(
            sums=[say.loss_units], largest=[*mine, self._sigterm.received, say.waited_microseconds]
        )
        self._gap, saves, end, waited = together.largest
        self._talked_at, self._talked_step = now, step
        self._next_step = step + self._gap
        told = RankReport(loss_units=together.sums[0], waited_microseconds=waited)
        return SyncDecision(save=bool(saves), end=bool(end), told=told)
