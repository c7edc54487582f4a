"""The validation split, scored by all ranks together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlops_provider.step import BadConfigError
from training.data.loader import gather
from training.trainer.metrics import measure
from training.trainer.objectives import SCORING_BATCH, check_scores, rows_of

if TYPE_CHECKING:
    from training.data.feature_table import FeatureTable
    from training.trainer.layouts import Layout
    from training.trainer.parallel import Gang

Metrics = Callable[[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int64]], Mapping[str, float]]
"""``metrics(labels, scores, offsets)``: rows ``[N]``, sample i is rows ``offsets[i]:offsets[i + 1]``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """
    What the best epoch is chosen by.

    The split is scored in blocks of a fixed size, whoever scores them, so that scores do not depend on the number of
    processes.
    """

    table: FeatureTable
    grouped: bool
    metric: str
    further: Metrics | None = None

    def measure(
        self, layout: Layout, gang: Gang, beat: Callable[[], None] = lambda: None
    ) -> tuple[float, Mapping[str, float]]:
        """
        The metric, and further ones; the same on every rank. Called by all.

        :param beat: called before each block
        :raises BadDataError: where the split cannot be measured
        """
        scores = self._scores(layout, gang, beat)
        measured = gang.from_leader(None if scores is None else self._metrics(scores))
        assert measured is not None, "rank 0 has the scores"
        return measured

    def _metrics(self, scores: npt.NDArray[np.float32]) -> tuple[float, Mapping[str, float]]:
        table = self.table
        value = measure(self.metric, table.labels, scores, table.offsets)
        if self.further is None:
            return value, {}
        found = self.further(table.labels, scores, table.offsets)
        if not isinstance(found, Mapping) or not all(isinstance(each, Real) for each in found.values()):
            raise BadConfigError(f"train.metrics must return a dict of numbers, got {found!r}")
        for name, each in found.items():
            if not math.isfinite(each):
                raise BadConfigError(f"train.metrics: {name} is {each}; leave out what cannot be measured")
        return value, {name: float(each) for name, each in found.items()}

    def _scores(self, layout: Layout, gang: Gang, beat: Callable[[], None]) -> npt.NDArray[np.float32] | None:
        """``[N]`` on rank 0."""
        firsts = range(0, self.table.num_samples, SCORING_BATCH)
        mine = firsts[gang.data_rank :: gang.data_world_size]
        found: dict[int, npt.NDArray[np.float32]] = {}
        with layout.evaluating():
            # All ranks make as many forward passes: sharded layers gather their parameters in each.
            for round_ in range(math.ceil(len(firsts) / gang.data_world_size)):
                beat()
                first = mine[round_] if round_ < len(mine) else firsts[0]
                samples = np.arange(first, min(first + SCORING_BATCH, self.table.num_samples))
                batch = gather(self.table, samples, grouped=self.grouped)
                scores = layout.forward(batch.to(gang.device))
                if scores is not None and round_ < len(mine):
                    found[first] = rows_of(check_scores(scores, batch), batch)
        parts: dict[int, Any] = {}
        for each in gang.gather_objects(found) or ():
            parts |= each
        return np.concatenate([parts[first] for first in firsts]) if gang.leads else None
