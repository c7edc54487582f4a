"""Labelled rows with the predictions of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mlops.contract.section import Section
from mlops.data.shards.feature_table import offsets_of, rows_of

Floats = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictions:
    """
    N rows in S samples. A sample is a query where rows are grouped, else a row.

    Of a language model a row is a document: its label the number of its tokens, its prediction the sum of their losses.
    """

    labels: Floats
    """``[N]``; ``[N, L]`` where a row has several."""
    predicted: Floats
    """``[N]``, or ``[N, K]`` where the objective predicts several numbers for a row."""
    offsets: IntArray
    """``[S + 1]``: sample s is rows ``offsets[s]:offsets[s + 1]``."""
    settings: Section
    """Settings of the model's objective."""

    @property
    def num_rows(self) -> int:
        return len(self.labels)

    @property
    def num_samples(self) -> int:
        return len(self.offsets) - 1

    def sample_of_rows(self) -> IntArray:
        """Return ``[N]``, the sample that each row belongs to."""
        return np.repeat(np.arange(self.num_samples), np.diff(self.offsets))

    def take(self, samples: IntArray) -> Self:
        """Return some samples, in that order; one may be there several times."""
        rows, offsets = rows_of(self.offsets, samples), offsets_of(np.diff(self.offsets)[samples])
        return type(self)(
            labels=self.labels[rows], predicted=self.predicted[rows], offsets=offsets, settings=self.settings
        )


def num_not_finite(predicted: Floats) -> int:
    """Return the number of rows with a prediction that is not finite."""
    finite: Any = np.isfinite(predicted)
    return int((~(finite if finite.ndim == 1 else finite.all(axis=1))).sum())
