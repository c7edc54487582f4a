"""
What all ranks must do at the same step although only one of them knows of it: save because time is up, end because of
SIGTERM.

They talk about once a second, and each time settle the step at which they will talk next: no step between costs
anything. What is to be known of all ranks, such as the loss, travels along.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

    from training.trainer.config import Checkpointing
    from training.trainer.parallel import Gang

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
class Decision:
    save: bool = False
    end: bool = False
    """Some rank was told to end."""
    told: Sequence[Sequence[int]] | None = None
    """What each rank said, by rank; None where they did not talk."""


class Agreement:
    """
    One for a training; called after each step by all ranks, with the same steps.

    :param step: optimizer steps done before
    """

    def __init__(self, gang: Gang, checkpointing: Checkpointing, sigterm: Sigterm, step: int) -> None:
        self._gang, self._checkpointing, self._sigterm = gang, checkpointing, sigterm
        self._saved_at = self._talked_at = time.monotonic()
        self._talked_step = step
        self._next_step = step + 1
        self._gap = 1

    def due(self, step: int) -> bool:
        """Whether the ranks talk after this step."""
        return step >= self._next_step

    def after(self, step: int, say: Sequence[int] = ()) -> Decision:
        """
        :param step: optimizer steps done since the start of the training
        :param say: as many numbers on each rank, for the others to know; looked at where :meth:`due`
        """
        every = self._checkpointing.every_steps
        decision = self._talk(step, say) if self.due(step) else Decision()
        if decision.save or (every is not None and step % every == 0):
            self._saved_at = time.monotonic()
            return Decision(save=True, end=decision.end, told=decision.told)
        return decision

    def _talk(self, step: int, say: Sequence[int]) -> Decision:
        now = time.monotonic()
        seconds_per_step = (now - self._talked_at) / max(1, step - self._talked_step)
        # At most twice the last one: the next steps may be slower.
        gap = max(1, min(_MOST_STEPS, 2 * self._gap, int(INTERVAL_SECONDS / max(seconds_per_step, 1e-9))))
        overdue = now - self._saved_at >= 60 * self._checkpointing.every_minutes
        told = self._gang.gather([gap, overdue, self._sigterm.received, *say])
        # Clocks differ: the first rank's counts.
        self._gap, overdue = told[0][0], bool(told[0][1])
        self._talked_at, self._talked_step = now, step
        self._next_step = step + self._gap
        return Decision(save=overdue, end=any(row[2] for row in told), told=[row[3:] for row in told])
