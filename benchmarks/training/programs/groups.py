"""
Groups of rows, dealt by a budget of padded rows beside equal numbers of groups.

The lengths are log-normal (median 20 rows, sigma 1): queries of a search, most with few documents and some with
hundreds. All ranks' passes are taken in this process, one after the other, so that the slowest rank's processor time
is measured without the others in its way. The best deal is one without padding, in which all ranks have equal rows, but
for a group that alone has more.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from benchmarks.rounds import OURS, in_rotation, records
from benchmarks.training.programs.workloads import NUM_FEATURES, SEED
from mlops.data.shards.batch import IntArray, SampleSource
from mlops.data.shards.dealing import PASS_WORTH_ROWS
from mlops.data.shards.feature_table import FeatureTable, offsets_of
from mlops.data.shards.loader import Loader, Step, in_memory
from mlops.objectives.ranking import ranking_loss

GLOBAL_BATCH: Final = 1024
STEPS: Final = 4
ROUNDS: Final = 5
EVEN_ROUNDS: Final = 15
EVEN_STEPS: Final = 40
EVEN_ROWS: Final = 32
BEFORE: Final = "equal_groups"
DESCRIPTION: Final = "as many groups to each rank and pass, by length, to and fro"
CASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "1": {"ranks": 1},
    "4": {"ranks": 4},
    "4_accumulated": {"ranks": 4, "micro_batch": 32},
    "4_exact": {"ranks": 4, "logical_shards": 8},
}


class EqualGroups(Loader):
    """The deal of before: shares and passes of equal numbers of groups."""

    def _deal_groups(self, whole: IntArray, lengths: IntArray, step: int) -> Any:
        ranked = whole[np.lexsort((whole, -lengths))]

        def share(number: int, num_shares: int) -> IntArray:
            rounds = np.arange(math.ceil(len(ranked) / num_shares))
            places = rounds * num_shares + np.where(rounds % 2 == 0, number, num_shares - 1 - number)
            return ranked[places[places < len(ranked)]]

        if self._logical_shards is not None:
            shares = [share(number, self._logical_shards) for number in self._owned]
            return self._of_shards([np.sort(each) for each in shares], whole[:1])
        mine = share(self._rank, self._world_size)
        size = self._micro_batch or math.ceil(len(whole) / self._world_size)
        firsts = range(0, math.ceil(len(whole) / self._world_size), size)
        return [(np.sort(mine[first : first + size]), 1.0, number) for number, first in enumerate(firsts)]


KINDS: Final[Mapping[str, type[Loader]]] = {OURS: Loader, BEFORE: EqualGroups}


def groups(lengths: IntArray) -> SampleSource:
    offsets = offsets_of(lengths)
    rng = np.random.default_rng(SEED)
    features = rng.standard_normal((int(offsets[-1]), NUM_FEATURES), np.float32)
    return in_memory(
        FeatureTable(features=features, labels=(features[:, 0] > 1).astype(np.float32), offsets=offsets), grouped=True
    )


def loaders(kind: str, source: SampleSource, ranks: int, **settings: Any) -> Sequence[Loader]:
    arguments = {"global_batch": GLOBAL_BATCH, "seed": SEED, "prefetch": 0, "world_size": ranks, **settings}
    return [
        KINDS[kind](source=source, rank=rank, pass_worth_rows=PASS_WORTH_ROWS, **arguments) for rank in range(ranks)
    ]


def padded(step: Step) -> int:
    return sum(batch.labels.numel() for batch in step.batches)


def slowest(model: nn.Module, steps: Sequence[Sequence[Step]]) -> float:
    """Processor milliseconds a step, of the rank that takes longest: forward and backward passes."""
    total = 0.0
    for ranks in steps:
        seconds = []
        for step in ranks:
            begin = time.process_time()
            for batch in step.batches:
                ((ranking_loss(model, batch) * batch.weights).sum() / step.num_samples).backward()
            seconds.append(time.process_time() - begin)
        total += max(seconds)
    return 1000 * total / len(steps)


def measure(name: str, source: SampleSource, model: nn.Module, settings: Mapping[str, Any]) -> list[Any]:
    steps = {
        kind: list(islice(zip(*(each.epoch(1) for each in loaders(kind, source, **settings)), strict=True), STEPS))
        for kind in KINDS
    }
    whole = [ranks[0].num_rows for ranks in steps[OURS]]
    best = sum(max(rows / settings["ranks"], longest_of(ranks)) for rows, ranks in zip(whole, steps[OURS], strict=True))
    padding = {
        kind: [sum(padded(step) for ranks in each for step in ranks) / sum(whole)] for kind, each in steps.items()
    }
    most = {kind: [sum(max(map(padded, ranks)) for ranks in each) / best] for kind, each in steps.items()}
    taken = in_rotation({kind: partial(slowest, model, each) for kind, each in steps.items()}, ROUNDS)
    made = []
    for what, unit, found in (
        ("padding", "of the real rows", padding),
        ("slowest", "of the best deal", most),
        ("cpu", "ms", taken),
    ):
        baselines = {BEFORE: (DESCRIPTION, 1.0)}
        made += records(f"training.groups_{name}_{what}", found, unit=unit, baselines=baselines, better="lower")
    return made


def longest_of(ranks: Sequence[Step]) -> int:
    return max(batch.labels.shape[1] for step in ranks for batch in step.batches)


def gathered(kind: str, source: SampleSource) -> float:
    """Processor milliseconds of one of four ranks to deal and gather a global batch."""
    [loader, *_] = loaders(kind, source, 4)
    begin = time.process_time()
    for _ in islice(loader.epoch(1), EVEN_STEPS):
        pass
    return 1000 * (time.process_time() - begin) / EVEN_STEPS


def main() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(-2))
    rng = np.random.default_rng(SEED)
    lengths = np.ceil(rng.lognormal(3, 1, STEPS * GLOBAL_BATCH)).astype(np.int64)
    source = groups(lengths)
    made = [record for name, settings in CASES.items() for record in measure(name, source, model, settings)]
    even = groups(np.full(EVEN_STEPS * GLOBAL_BATCH, EVEN_ROWS))
    times = in_rotation({kind: partial(gathered, kind, even) for kind in KINDS}, EVEN_ROUNDS)
    baselines = {BEFORE: (DESCRIPTION, 1.05)}
    return made + records("training.groups_even_loader_cpu", times, unit="ms", baselines=baselines, better="lower")


if __name__ == "__main__":
    print(json.dumps(main()))
