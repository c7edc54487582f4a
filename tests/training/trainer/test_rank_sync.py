from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from mlops.trainer import rank_sync as module
from mlops.trainer.interval import SaveInterval
from mlops.trainer.parallel import Reduced
from mlops.trainer.rank_sync import RankReport, RankSync, Sigterm


class TwoRanks:
    """This rank is the first; the other says what it is told to."""

    leads = True

    def __init__(self) -> None:
        self.num_talks = 0
        self.other_ends = False

    def reduce(self, *, sums: Sequence[int], largest: Sequence[int]) -> Reduced:
        self.num_talks += 1
        gap, overdue, ends, waited = map(int, largest)
        return Reduced(sums=[*sums], largest=[gap, overdue, max(ends, self.other_ends), waited])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


class Seldom(SaveInterval):
    """As seldom as it may."""

    def __init__(self, seconds: float = 600) -> None:
        super().__init__(seconds, NoSaves())

    @property
    def seconds(self) -> float:
        return self._most


class NoSaves:
    last_blocked_seconds = last_durable_seconds = 0.0
    busy = False


def saved_steps(rank_sync: RankSync, interval: SaveInterval, clock: list[float]) -> list[int]:
    """Of a hundred steps of a second each."""
    saved = []
    for step in range(1, 101):
        clock[0] += 1.0
        if rank_sync.after(step).save:
            saved.append(step)
            interval.saved(clock[0])
    return saved


def test_ranks_talk_about_once_a_second_however_long_a_step_is(clock: list[float]) -> None:
    """Broken: short steps would pay for talk, or SIGTERM would be heard too late in long ones."""
    for seconds_per_step, talks in ((0.001, range(8, 26)), (3.0, range(10_000, 10_001))):
        ranks = TwoRanks()
        rank_sync = RankSync(ranks, Seldom(), Sigterm(), step=0)  # type: ignore[arg-type]
        for step in range(1, 10_001):
            clock[0] += seconds_per_step
            rank_sync.after(step, RankReport(loss_units=7) if rank_sync.due(step) else None)
        assert ranks.num_talks in talks


def test_a_save_is_due_by_steps_or_by_the_first_ranks_clock(clock: list[float]) -> None:
    """Broken: the ranks would save at different steps, and the checkpoint would be none."""
    interval = Seldom()
    rank_sync = RankSync(TwoRanks(), interval, Sigterm(), step=0, every_steps=4)  # type: ignore[arg-type]
    assert saved_steps(rank_sync, interval, clock) == list(range(4, 101, 4))
    interval = Seldom(30)
    rank_sync = RankSync(TwoRanks(), interval, Sigterm(), step=0)  # type: ignore[arg-type]
    assert saved_steps(rank_sync, interval, clock) == [30, 60, 90]


def test_sigterm_at_any_rank_ends_all(clock: list[float]) -> None:
    ranks, sigterm = TwoRanks(), Sigterm()
    rank_sync = RankSync(ranks, Seldom(), sigterm, step=0)  # type: ignore[arg-type]
    clock[0] += 1.0
    assert not rank_sync.after(1).end
    ranks.other_ends = True
    clock[0] += 1.0
    assert rank_sync.after(2).end
    ranks.other_ends = False
    with sigterm.noted():
        os.kill(os.getpid(), signal.SIGTERM)
        clock[0] += 1.0
        assert rank_sync.after(3).end
