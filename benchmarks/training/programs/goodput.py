"""
What interruptions take from a training, by the rule that says when it saves: ours beside a save every ten minutes.

A simulation in real time: :class:`~mlops.trainer.rank_sync.RankSync` and
:class:`~mlops.trainer.interval.SaveInterval` are the training's own, with a clock that we turn. A save blocks, slows
the steps beside it, and is durable later, as measured; what no durable checkpoint holds is done again. A node is lost
whenever one was lost in a published trace of spot nodes, which is replayed again and again; within its resolution of
five minutes chance decides.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from benchmarks.rounds import OURS, records
from benchmarks.training.spot_trace import GAP_SECONDS, spot_nodes
from mlops.trainer import rank_sync
from mlops.trainer.interval import SaveInterval
from mlops.trainer.parallel import Ranks
from mlops.trainer.rank_sync import RankSync, Sigterm

FAILURES: Final = 1000
ROUNDS: Final = 3
STEP_SECONDS: Final = 2.0
MOST_SECONDS: Final = 600.0
"""``every_minutes: 10``."""
TARGET: Final = 0.98


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Seconds; as in the records ``save_*`` and ``kill_to_next_step`` of a state of 500 MB, and of agents' timeouts."""

    blocked: float = 0.06
    durable: float = 0.5
    slowed: float = 0.1
    """Share of its speed that a training loses while a save is written beside it."""
    restart: float = 10.0
    """From the loss of a node to the next step: it counts as lost after 6 s of silence, and at most 1.5 x 6 + 1 s after
    the others' connections broke; then a gang starts in less than two."""
    restart_announced: float = 2.0
    """After a SIGTERM: a node that leaves says so."""


BIG: Final = Costs(blocked=0.22, durable=1.9)
"""2 GB."""


class FixedInterval(SaveInterval):
    """The rule before: as seldom as it may."""

    @property
    def seconds(self) -> float:
        return self._most


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    goodput: float
    """Steps that counted times their duration, over the time with at least one node."""
    redone: float
    """Share of the time."""
    saves: float
    """Blocked and slowed by saves, as a share of the time."""
    interval: float
    """Median seconds between saves within one start."""


def lifetimes() -> list[float]:
    """Seconds with at least one node between two losses of a node, in the trace; its end goes on with its begin."""
    nodes = spot_nodes()
    lived, found = 0.0, []
    for before, after in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        lived += GAP_SECONDS if before else 0
        if after < before:
            found.append(lived)
            lived = 0.0
    return [found[0] + lived, *found[1:]]


def failures(number: int, announced: float, chance: random.Random) -> Iterator[tuple[float, bool]]:
    """Intervals between failures, and whether each is announced in time for a checkpoint."""
    intervals = lifetimes()
    for index in range(number):
        yield (
            intervals[index % len(intervals)] + chance.uniform(-GAP_SECONDS / 2, GAP_SECONDS / 2),
            chance.random() < announced,
        )


@dataclass(kw_only=True)
class Simulated:
    """One training; it is also the :class:`~mlops.trainer.interval.Saves` that its interval asks."""

    rule: type[SaveInterval]
    costs: Costs
    now: float = 0.0
    step: int = 0
    last_blocked_seconds: float = 0.0
    last_durable_seconds: float = 0.0
    redone: float = 0.0
    saving: float = 0.0
    apart: list[float] = field(default_factory=list)
    _restart: float = 0.0
    _durable: tuple[int, dict[str, Any]] | None = None
    _writing: tuple[float, int, dict[str, Any]] | None = None
    """Until when, and what."""

    @property
    def counted(self) -> int:
        """Steps of the newest durable checkpoint."""
        return self._durable[0] if self._durable else 0

    @property
    def busy(self) -> bool:
        if self._writing is not None and self.now >= self._writing[0]:
            _, step, document = self._writing
            self._durable, self._writing = (step, document), None
            self.last_durable_seconds = self.costs.durable
        return self._writing is not None

    def live(self, seconds: float, *, announced: bool) -> None:
        """Resume, train for so long, and be killed."""
        killed = self.now + seconds
        interval = self.rule(MOST_SECONDS, self)
        self.now += self._restart
        self._restart = self.costs.restart_announced if announced else self.costs.restart
        self.step = 0
        if self._durable is not None:
            self.step, document = self._durable
            interval.resume(document)
        self.last_blocked_seconds = self.last_durable_seconds = 0.0
        agreed = RankSync(Ranks(), interval, Sigterm(), self.step)
        saved_at = self.now
        while True:
            took = STEP_SECONDS
            if self.busy:
                slowed = min(took, self._writing[0] - self.now if self._writing else 0.0) * self.costs.slowed
                took, self.saving = took + slowed, self.saving + slowed
            if self.now + took > killed:
                break
            self.now += took
            self.step += 1
            if agreed.after(self.step).save and not self.busy:
                document = interval.document(announced=False)
                self.now += self.costs.blocked
                self.last_blocked_seconds = self.costs.blocked
                self.saving += self.costs.blocked
                self._writing = (self.now + self.costs.durable, self.step, document)
                interval.saved(self.now)
                self.apart.append(self.now - saved_at)
                saved_at = self.now
        if announced:
            self._durable = (self.step, interval.document(announced=True))
        assert not self.busy or self._writing, "what was durable in time counts"
        self.redone += (self.step - self.counted) * STEP_SECONDS
        self._writing = None
        self.now = killed


def simulate(
    rule: type[SaveInterval],
    *,
    number: int = FAILURES,
    announced: float = 0.0,
    seed: int = 0,
    costs: Costs | None = None,
) -> Outcome:
    """:param announced: share of the failures"""
    training = Simulated(rule=rule, costs=costs or Costs())
    with patch.object(rank_sync, "time", SimpleNamespace(monotonic=lambda: training.now)):
        for seconds, notice in failures(number, announced, random.Random(seed)):
            training.live(seconds, announced=notice)
    return Outcome(
        goodput=training.counted * STEP_SECONDS / training.now,
        redone=training.redone / training.now,
        saves=training.saving / training.now,
        interval=statistics.median(training.apart),
    )


def goodput_records(name: str, ours: Sequence[Outcome], fixed: Sequence[Outcome]) -> list[dict[str, Any]]:
    values = {
        OURS: [each.goodput for each in ours],
        "ten_minutes": [each.goodput for each in fixed],
        "bound": [1.0] * len(ours),
    }
    baselines = {"bound": ("no failure and no save", TARGET), "ten_minutes": ("a save every ten minutes", 1.0)}
    redone = {OURS: [100 * each.redone for each in ours], "ten_minutes": [100 * each.redone for each in fixed]}
    return [
        *records(f"training.goodput_{name}", values, unit="", baselines=baselines),
        *records(
            f"training.redone_{name}",
            redone,
            unit="%",
            baselines={"ten_minutes": baselines["ten_minutes"]},
            better="lower",
        ),
    ]


CASES: Final = {
    "500MB": (0.5, Costs()),
    "500MB_unannounced": (0.0, Costs()),
    "2GB": (0.5, BIG),
}
"""The share of failures that are announced in time for a checkpoint, and what a save costs."""


def main() -> list[dict[str, Any]]:
    made = []
    for name, (announced, costs) in CASES.items():
        ours, fixed = (
            [simulate(rule, announced=announced, seed=seed, costs=costs) for seed in range(ROUNDS)]
            for rule in (SaveInterval, FixedInterval)
        )
        made += goodput_records(name, ours, fixed)
    return made


if __name__ == "__main__":
    print(json.dumps(main()))
