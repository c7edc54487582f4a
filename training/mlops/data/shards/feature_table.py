"""Rows ready for a model, in memory or in a memory map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # what trains has no keys, and is spared the import
    import polars as pl

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureTable:
    """Rows ready for a model. A sample is a row, or a group of rows that are ranked together."""

    features: npt.NDArray[np.float32]
    """``[N, F]``, the features of each row."""
    labels: npt.NDArray[np.float32]
    """``[N]``, the label of each row; ``[N, L]`` where it has several."""
    offsets: IntArray
    """``[S + 1]``; sample i is rows ``offsets[i]:offsets[i + 1]``."""
    ids: npt.NDArray[np.uint64] | None = None
    """``[S]``; hash of the group's or the row's keys: identifies a sample, whatever the order of the samples."""
    keys: pl.DataFrame | None = None
    """``[N]`` rows of further columns that are stored beside the features, for the feature store."""

    def __post_init__(self) -> None:
        assert self.features.ndim == 2, self.features.shape
        assert self.labels.ndim in (1, 2), self.labels.shape
        assert len(self.labels) == len(self.features), (self.labels.shape, self.features.shape)
        dtypes = [str(array.dtype) for array in (self.features, self.labels, self.offsets)]
        assert dtypes == ["float32", "float32", "int64"], dtypes
        assert (self.offsets[0], self.offsets[-1]) == (0, len(self.features)), "offsets span all rows"
        assert self.ids is None or self.ids.shape == (self.num_samples,), "one id for each sample"
        assert self.keys is None or self.keys.height == self.num_rows, "keys for each row"

    @property
    def num_rows(self) -> int:
        return len(self.features)

    @property
    def num_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def num_samples(self) -> int:
        return len(self.offsets) - 1

    def samples(self, start: int, stop: int) -> FeatureTable:
        """Return samples ``start:stop`` as views of the same memory."""
        first, last = self.offsets[start], self.offsets[stop]
        return FeatureTable(
            features=self.features[first:last],
            labels=self.labels[first:last],
            offsets=self.offsets[start : stop + 1] - first,
            ids=None if self.ids is None else self.ids[start:stop],
            keys=None if self.keys is None else self.keys[int(first) : int(last)],
        )

    def take(self, samples: IntArray) -> FeatureTable:
        """Return a copy of some samples, in that order."""
        rows = rows_of(self.offsets, samples)
        return FeatureTable(
            features=self.features[rows],
            labels=self.labels[rows],
            offsets=offsets_of(np.diff(self.offsets)[samples]),
            ids=None if self.ids is None else self.ids[samples],
            keys=None if self.keys is None else self.keys[rows],
        )


def concat(tables: Sequence[FeatureTable]) -> FeatureTable:
    """Join the samples of one or more tables of the same features; a copy, unless there is only one."""
    if len(tables) == 1:
        return tables[0]
    ids = [table.ids for table in tables if table.ids is not None]
    keys = [table.keys for table in tables if table.keys is not None]
    return FeatureTable(
        features=np.concatenate([table.features for table in tables]),
        labels=np.concatenate([table.labels for table in tables]),
        offsets=offsets_of(np.concatenate([np.diff(table.offsets) for table in tables])),
        ids=np.concatenate(ids) if len(ids) == len(tables) else None,
        keys=_concat_keys(keys) if len(keys) == len(tables) else None,
    )


def _concat_keys(keys: Sequence[pl.DataFrame]) -> pl.DataFrame:
    import polars as pl

    return pl.concat(keys)


def offsets_of(lengths: IntArray) -> IntArray:
    """Return ``[S + 1]``, the offsets of samples with these numbers of rows."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def rows_of(offsets: IntArray, samples: IntArray) -> IntArray:
    """Return the rows of some samples, in that order; one may be there several times."""
    lengths = np.diff(offsets)[samples]
    places = offsets_of(lengths)
    return np.arange(places[-1]) + np.repeat(offsets[:-1][samples] - places[:-1], lengths)
