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
        """:param labels: any number of them; NaN is no label"""
        known = labels[~np.isnan(labels)]
        values: Labels = np.unique(np.concatenate([self._values, known]))
        if len(values) > MOST_VALUES:
            fractions = values[values != np.floor(values)][:1]
            values = np.unique(np.concatenate([values[[0, -1]], fractions]))
        self._values = values

    def listed(self) -> list[float]:
        """Return them in order."""
        return [float(value) for value in self._values]


class SplitLabels:
    """:class:`LabelValues` of the label of a split or, where it has several, of each."""

    def __init__(self) -> None:
        self._found: dict[int | None, LabelValues] = {}

    def add(self, labels: Labels) -> None:
        """:param labels: ``[N]`` or ``[N, L]``"""
        for number, column in [(None, labels)] if labels.ndim == 1 else enumerate(labels.T):
            self._found.setdefault(number, LabelValues()).add(column)

    def listed(self) -> list[float] | list[list[float]]:
        """Return the values; of several labels a list for each."""
        if None in self._found:
            return self._found[None].listed()
        return [each.listed() for each in self._found.values()]
