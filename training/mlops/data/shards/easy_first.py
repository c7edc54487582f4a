"""
The order of an epoch by a measure of its samples, the least first: a curriculum (Bengio et al. 2009).

The windows of :class:`mlops.data.shards.sampler.EpochSampler` stay, so that a reader needs the shards of one at a time:
samples are sorted within each. Where all samples fit one window, as they mostly do, that is the whole epoch. Equal ones
keep the pseudo-random order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mlops.data.shards.batch import IntArray
from mlops.data.shards.sampler import EpochSampler

Measure = Callable[[IntArray], npt.NDArray[np.float64]]
"""A number ``[B]`` for each of some samples, by their numbers in the split; a function of each sample alone."""


class EasyFirst:
    """
    As :class:`EpochSampler`, which it takes; a window's samples are measured when the first of its positions is asked
    for, and the last two windows are kept: 16 bytes a sample.
    """

    def __init__(self, sampler: EpochSampler, measure: Measure) -> None:
        self.window_starts, self.window_of = sampler.window_starts, sampler.window_of
        self._sampler, self._measure = sampler, measure
        self._sorted: dict[int, IntArray] = {}

    def __call__(self, positions: IntArray) -> IntArray:
        """Map positions in the epoch to samples of the split; see :class:`EpochSampler`."""
        samples = np.empty(positions.shape, np.int64)
        windows = np.searchsorted(self.window_starts[1:-1], positions, side="right")
        for window in np.unique(windows).tolist():
            inside = windows == window
            samples[inside] = self._window(window)[positions[inside] - self.window_starts[window]]
        return samples

    def _window(self, window: int) -> IntArray:
        """Return the samples of a window in their order."""
        if window not in self._sorted:
            start, stop = self.window_starts[window : window + 2].tolist()
            samples = self._sampler(np.arange(start, stop))
            self._sorted = {number: kept for number, kept in self._sorted.items() if number == window - 1}
            self._sorted[window] = samples[np.argsort(self._measure(samples), kind="stable")]
        return self._sorted[window]
