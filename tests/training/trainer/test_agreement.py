from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from training.trainer import agreement as module
from training.trainer.agreement import Agreement, Sigterm
from training.trainer.config import Checkpointing


class TwoRanks:
    """This rank is the first; the other says what it is told to."""

    def __init__(self) -> None:
        self.num_talks = 0
        self.other = [1, 0, 0]

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        self.num_talks += 1
        return [[int(number) for number in numbers], [*self.other, *([0] * (len(numbers) - 3))]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def checkpointing(every_steps: int | None = None, every_minutes: float = 10) -> Checkpointing:
    return Checkpointing(every_steps=every_steps, every_minutes=every_minutes, keep_latest=3)


def test_ranks_talk_about_once_a_second_however_long_a_step_is(clock: list[float]) -> None:
    """Broken: short steps would pay for talk, or SIGTERM would be heard too late in long ones."""
    for seconds_per_step, talks in ((0.001, range(8, 26)), (3.0, range(10_000, 10_001))):
        gang = TwoRanks()
        agreement = Agreement(gang, checkpointing(), Sigterm(), step=0)  # type: ignore[arg-type]
        for step in range(1, 10_001):
            clock[0] += seconds_per_step
            agreement.after(step, (7,) if agreement.due(step) else ())
        assert gang.num_talks in talks


def test_a_save_is_due_by_steps_or_by_the_first_ranks_clock(clock: list[float]) -> None:
    """Broken: the ranks would save at different steps, and the checkpoint would be none."""
    agreement = Agreement(TwoRanks(), checkpointing(4, 1.0), Sigterm(), step=0)  # type: ignore[arg-type]
    saved = []
    for step in range(1, 101):
        clock[0] += 1.0
        if agreement.after(step).save:
            saved.append(step)
    assert saved == list(range(4, 101, 4))
    agreement = Agreement(TwoRanks(), checkpointing(None, 0.5), Sigterm(), step=0)  # type: ignore[arg-type]
    saved = []
    for step in range(1, 101):
        clock[0] += 1.0
        if agreement.after(step).save:
            saved.append(step)
    assert saved == [30, 60, 90]


def test_sigterm_at_any_rank_ends_all(clock: list[float]) -> None:
    gang, sigterm = TwoRanks(), Sigterm()
    agreement = Agreement(gang, checkpointing(), sigterm, step=0)  # type: ignore[arg-type]
    clock[0] += 1.0
    assert not agreement.after(1).end
    gang.other[2] = 1
    clock[0] += 1.0
    assert agreement.after(2).end
    gang.other[2] = 0
    with sigterm.noted():
        os.kill(os.getpid(), signal.SIGTERM)
        clock[0] += 1.0
        assert agreement.after(3).end
