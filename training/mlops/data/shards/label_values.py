"""The labels that a split has, few enough for its manifest."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

MOST_VALUES: Final = 10_000
"""Different labels that are all kept."""
Labels = npt.NDArray[np.float32]


class LabelValues:
    """
    The different labels of a split; of more than :data:`MOST_VALUES` the least and the largest one, and of those that
    are no whole numbers one.
    """

    def __init__(self) -> None:
        self._values: Labels = np.empty(0, np.float32)

    def add(self, labels: Labels) -> None:
        """:param labels: ``[N]``; NaN is no label"""
        known = labels[~np.isnan(labels)]
        values: Labels = np.unique(np.concatenate([self._values, known]))
        if len(values) > MOST_VALUES:
            fractions = values[values != np.floor(values)][:1]
            values = np.unique(np.concatenate([values[[0, -1]], fractions]))
        self._values = values

    def listed(self) -> list[float]:
        """Return them in order."""
        return [float(value) for value in self._values]
