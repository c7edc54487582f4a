"""The validation split, scored by all ranks together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from mlops.contract.step import BadConfigError
from mlops.data.shards.loader import Batch, SampleSource, in_memory
from mlops.trainer.metrics import Floats, IntArray, measure
from mlops.trainer.objectives import SCORING_BATCH, SCORING_TOKENS, check_scores, rows_of, token_losses

if TYPE_CHECKING:
    from mlops.data.shards.feature_table import FeatureTable
    from mlops.trainer.parallel import Ranks
    from mlops.trainer.strategies import ParallelStrategy

Metrics = Callable[[Floats, Floats, IntArray], Mapping[str, float]]
"""
``metrics(labels, scores, offsets)``: rows ``[N]``, sample i is rows ``offsets[i]:offsets[i + 1]``. What they are for a
language model says :mod:`mlops.trainer.metrics`.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """
    What the best epoch is chosen by.

    The split is scored in blocks of a fixed size, whoever scores them, so that scores do not depend on the number of
    processes.
    """

    source: SampleSource
    labels: Floats
    """``[N]``"""
    offsets: IntArray
    """``[S + 1]``"""
    block: int
    """Samples scored at once."""
    score: Callable[[Tensor, Batch], Floats]
    """The rows' scores, of what the model gave for a batch, which is on the CPU."""
    metric: str
    further: Metrics | None = None

    @classmethod
    def of_table(cls, table: FeatureTable, *, grouped: bool, metric: str, further: Metrics | None = None) -> Self:
        """Rows, or groups of rows, in memory."""
        return cls(
            source=in_memory(table, grouped=grouped),
            labels=table.labels,
            offsets=table.offsets,
            block=SCORING_BATCH,
            score=lambda scores, batch: rows_of(check_scores(scores, batch), batch),
            metric=metric,
            further=further,
        )

    @classmethod
    def of_tokens(cls, source: SampleSource, *, context: int, metric: str, further: Metrics | None = None) -> Self:
        """Sequences of ``context`` tokens. Their losses are added up in float64: the sum is that of any block."""
        num_samples = int(source.shard_sizes.sum())
        return cls(
            source=source,
            labels=np.full(num_samples, context, np.float32),
            offsets=np.arange(num_samples + 1),
            block=max(1, SCORING_TOKENS // context),
            score=_summed_losses,
            metric=metric,
            further=further,
        )

    def measure(
        self, strategy: ParallelStrategy, ranks: Ranks, beat: Callable[[], None] = lambda: None
    ) -> tuple[float, Mapping[str, float]]:
        """
        The metric, and further ones; the same on every rank. Called by all.

        :param beat: called before each block
        :raises BadDataError: where the split cannot be measured
        """
        scores = self._scores(strategy, ranks, beat)
        measured = ranks.from_leader(None if scores is None else self._metrics(scores))
        assert measured is not None, "rank 0 has the scores"
        return measured

    def _metrics(self, scores: Floats) -> tuple[float, Mapping[str, float]]:
        value = measure(self.metric, self.labels, scores, self.offsets)
        if self.further is None:
            return value, {}
        found = self.further(self.labels, scores, self.offsets)
        if not isinstance(found, Mapping) or not all(isinstance(each, Real) for each in found.values()):
            raise BadConfigError(f"train.metrics must return a dict of numbers, got {found!r}")
        for name, each in found.items():
            if not math.isfinite(each):
                raise BadConfigError(f"train.metrics: {name} is {each}; leave out what cannot be measured")
        return value, {name: float(each) for name, each in found.items()}

    def _scores(self, strategy: ParallelStrategy, ranks: Ranks, beat: Callable[[], None]) -> Floats | None:
        """``[N]`` on rank 0."""
        num_samples = len(self.offsets) - 1
        firsts = range(0, num_samples, self.block)
        mine = firsts[ranks.data_rank :: ranks.data_world_size]
        found: dict[int, Floats] = {}
        with strategy.evaluating():
            # All ranks make as many forward passes: sharded layers gather their parameters in each.
            for round_ in range(math.ceil(len(firsts) / ranks.data_world_size)):
                beat()
                first = mine[round_] if round_ < len(mine) else firsts[0]
                batch = self.source.gather(np.arange(first, min(first + self.block, num_samples)))
                scores = strategy.forward(batch.to(ranks.device))
                if scores is not None and round_ < len(mine):
                    found[first] = self.score(scores, batch)
        parts: dict[int, Any] = {}
        for each in ranks.gather_objects(found) or ():
            parts |= each
        return np.concatenate([parts[first] for first in firsts]) if ranks.leads else None


def _summed_losses(logits: Tensor, batch: Batch) -> Floats:
    losses = token_losses(logits, batch.labels.to(logits.device))
    summed: Floats = losses.sum(1, dtype=torch.float64).cpu().numpy()
    return summed
