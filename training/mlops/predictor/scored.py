"""Raw rows with the predictions of a model, and two models' predictions brought together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlops.contract.step import BadDataError
from mlops.data.shards.feature_table import offsets_of
from mlops.metrics.predictions import IntArray, Predictions, num_not_finite


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """N rows with a model's predictions, in the order of its feature set."""

    rows: IntArray
    """``[N]``, position of each in the raw rows; a feature set may leave rows out."""
    predictions: Predictions
    """Of these N rows."""

    def check_finite(self, whose: str) -> None:
        """
        Check that all scores are finite.

        :raises BadDataError: if a score is not finite
        """
        if num_wrong := num_not_finite(self.predictions.predicted):
            raise BadDataError(f"{num_wrong} of {len(self.rows)} scores of {whose} are not finite")

    def keep(self, kept: npt.NDArray[np.bool_]) -> Scored:
        """Keep only some of the rows; queries that lose all their rows are dropped."""
        found = self.predictions
        lengths = np.add.reduceat(kept, found.offsets[:-1]) if len(self.rows) else np.empty(0, np.int64)
        return Scored(
            rows=self.rows[kept],
            predictions=Predictions(
                labels=found.labels[kept],
                predicted=found.predicted[kept],
                offsets=offsets_of(lengths[lengths > 0]),
                settings=found.settings,
            ),
        )


def aligned(candidate: Scored, champion: Scored) -> tuple[Scored, Predictions]:
    """
    Match the rows that both models score, in the candidate's order and queries.

    :return: the candidate's part, and the champion's predictions for the same rows
    :raises BadDataError: where they have no row in common
    """
    where = np.full(int(max(candidate.rows.max(initial=-1), champion.rows.max(initial=-1))) + 1, -1)
    where[champion.rows] = np.arange(len(champion.rows))
    common = where[candidate.rows] >= 0
    if not common.any():
        raise BadDataError("the candidate and the champion have no held-out row in common; compare their feature sets")
    both = candidate if common.all() else candidate.keep(common)
    found = both.predictions
    predicted = champion.predictions.predicted[where[both.rows]]
    return both, Predictions(
        labels=found.labels, predicted=predicted, offsets=found.offsets, settings=champion.predictions.settings
    )
