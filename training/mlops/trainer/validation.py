"""The validation split, scored by all ranks together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mlops.data.shards.loader import SampleSource, in_memory
from mlops.metrics.metric import Metric
from mlops.metrics.predictions import Floats, IntArray
from mlops.objectives.objective import LoadedObjective
from mlops.objectives.scoring import SCORING_BATCH, SCORING_TOKENS
from mlops.random_states import seed_everything

if TYPE_CHECKING:
    from mlops.data.shards.feature_table import FeatureTable
    from mlops.trainer.parallel import Ranks
    from mlops.trainer.strategies import ParallelStrategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """
    What the best epoch is chosen by.

    The split is scored in blocks of a fixed size, whoever scores them, so that scores do not depend on the number of
    processes.
    """

    source: SampleSource
    labels: Floats
    """``[N]``, or ``[N, L]``"""
    offsets: IntArray
    """``[S + 1]``"""
    block: int
    """Samples scored at once."""
    objective: LoadedObjective
    metric: Metric
    further: Sequence[Metric] = ()

    @classmethod
    def of_table(
        cls,
        table: FeatureTable,
        *,
        grouped: bool,
        objective: LoadedObjective,
        metric: Metric,
        further: Sequence[Metric] = (),
    ) -> Self:
        """
        Rows, or groups of rows, in memory.

        :raises BadDataError: where the objective is not defined for their labels
        """
        objective.functions.check_labels(table.labels)
        return cls(
            source=in_memory(table, grouped=grouped),
            labels=table.labels,
            offsets=table.offsets,
            block=SCORING_BATCH,
            objective=objective,
            metric=metric,
            further=further,
        )

    @classmethod
    def of_tokens(
        cls,
        source: SampleSource,
        *,
        context: int,
        objective: LoadedObjective,
        metric: Metric,
        further: Sequence[Metric] = (),
    ) -> Self:
        """Sequences of ``context`` tokens."""
        num_samples = int(source.shard_sizes.sum())
        return cls(
            source=source,
            labels=np.full(num_samples, context, np.float32),
            offsets=np.arange(num_samples + 1),
            block=max(1, SCORING_TOKENS // context),
            objective=objective,
            metric=metric,
            further=further,
        )

    def measure(
        self,
        strategy: ParallelStrategy,
        ranks: Ranks,
        beat: Callable[[], None] = lambda: None,
        *,
        seed: Sequence[int] = (),
    ) -> tuple[float, Mapping[str, float]]:
        """
        The metric, and further ones; the same on every rank. Called by all.

        :param beat: called before each block
        :param seed: numbers that what a model draws depends on beside its block, e.g. (seed, step)
        :raises BadDataError: where the split cannot be measured
        """
        scores = self._scores(strategy, ranks, beat, seed)
        measured = ranks.from_leader(None if scores is None else self._metrics(scores))
        assert measured is not None, "rank 0 has the scores"
        return measured

    def _metrics(self, scores: Floats) -> tuple[float, Mapping[str, float]]:
        predictions = self.objective.predictions(self.labels, scores, self.offsets)
        return self.metric.measure_with(self.further, predictions)

    def _scores(
        self, strategy: ParallelStrategy, ranks: Ranks, beat: Callable[[], None], seed: Sequence[int]
    ) -> Floats | None:
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
                # Some models draw in evaluation mode too: then by the block, for any rank may score it, and any process
                # may have taken the step before.
                seed_everything(*seed, first)
                scores = strategy.forward(batch.to(ranks.device))
                if scores is not None and round_ < len(mine):
                    found[first] = self.objective.functions.predict(scores, batch)
        parts: dict[int, Any] = {}
        for each in ranks.gather_objects(found) or ():
            parts |= each
        return np.concatenate([parts[first] for first in firsts]) if ranks.leads else None
