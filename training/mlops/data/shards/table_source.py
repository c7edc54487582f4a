"""Samples of a table, gathered out of its mapped shards."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mlops.data.shards.aligned import ALIGNMENT, BOOL, FLOAT, aligned
from mlops.data.shards.batch import Batch, IntArray

# Samples in a row from one shard, below which those of a shard are brought together first: a run costs as much.
_SHORT_RUN: Final = 64
# Of the rows of a block over those of its batches.
_MOST_GAPS: Final = 1.5

T_co = TypeVar("T_co", covariant=True)
Run = tuple[int, IntArray]
"""Neighbouring samples of one shard: the shard's number, and the samples' numbers within it."""
_Wanted = tuple[slice, IntArray, float]
"""A batch to gather: the slice of its samples among those of all batches, their numbers, and their weight."""


class Shards(Protocol[T_co]):
    """A split's shards by number; see :class:`mlops.data.shards.shard_cache.OpenShards`."""

    def __getitem__(self, number: int, /) -> T_co: ...

    def prefetch(self, numbers: Sequence[int]) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRows:
    """The rows of a shard."""

    features: npt.NDArray[np.float32]
    """``[N, F]``, the features of each row."""
    labels: npt.NDArray[np.float32]
    """``[N]``, the label of each row; ``[N, L]`` where it has several."""
    offsets: IntArray | None
    """``[S + 1]``; sample i is rows ``offsets[i]:offsets[i + 1]``. None if every sample is a row."""

    def __getitem__(self, place: slice) -> ShardRows:
        """Return some rows, as views."""
        return ShardRows(features=self.features[place], labels=self.labels[place], offsets=None)

    def memory(self, num_rows: int) -> ShardRows:
        """Return aligned memory for so many rows of the same features and labels."""
        features, labels = aligned(*(((num_rows, *own.shape[1:]), FLOAT) for own in (self.features, self.labels)))
        return ShardRows(features=features, labels=labels, offsets=None)


@dataclass(frozen=True, slots=True)
class InMemory:
    """One shard that is in memory already."""

    rows: ShardRows

    def __getitem__(self, number: int) -> ShardRows:
        return self.rows

    def prefetch(self, numbers: Sequence[int]) -> None:
        pass


class Numbering:
    """The mapping from samples to the shards that hold them."""

    def __init__(self, shard_sizes: IntArray) -> None:
        self._ends = np.cumsum(shard_sizes)
        self._starts = self._ends - shard_sizes

    def numbers(self, samples: IntArray) -> Sequence[int]:
        """Return the numbers of the shards that samples are in, each once."""
        numbers: list[int] = np.unique(np.searchsorted(self._ends, samples, side="right")).tolist()
        return numbers

    def runs(self, samples: IntArray) -> tuple[Sequence[Run], IntArray | None]:
        """
        Group samples by shard.

        :return: the runs, and the place of each sample in the concatenated runs; None if samples are in order, with a
            run for every change of the shard
        """
        if len(self._ends) == 1:
            return [(0, samples)], None
        numbers = np.searchsorted(self._ends, samples, side="right")
        changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        places: IntArray | None = None
        if len(samples) < _SHORT_RUN * len(changes):
            # A table has fewer shards than that, or a batch knows few of them: small numbers are sorted quickly.
            small = numbers - numbers.min()
            order = np.argsort(small.astype(np.uint16) if small.max() < 1 << 16 else small, kind="stable")
            samples, numbers = samples[order], numbers[order]
            changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
            places = np.empty_like(order)
            places[order] = np.arange(len(order))
        edges = [0, *changes.tolist(), len(samples)]
        found = [(int(numbers[start]), samples[start:stop]) for start, stop in pairwise(edges) if start < stop]
        return [(number, part - self._starts[number]) for number, part in found], places


class TableSource:
    """
    A :class:`mlops.data.shards.batch.SampleSource` of rows or of groups of rows.

    Many small batches are gathered as one block, shard by shard, and then taken out of that, which is in the core's
    cache: to go to every shard for every batch would cost more than the copy.
    """

    def __init__(
        self,
        shards: Shards[ShardRows],
        shard_sizes: IntArray,
        *,
        grouped: bool,
        window_samples: int,
        block_samples: int = 1,
    ) -> None:
        self._shards = shards
        self._numbering = Numbering(shard_sizes)
        self.shard_sizes = shard_sizes
        self.grouped = grouped
        self.window_samples = window_samples
        self.block_samples = block_samples
        self._scratch = threading.local()

    def prefetch(self, samples: IntArray) -> None:
        self._shards.prefetch(self._numbering.numbers(samples))

    def lengths(self, samples: IntArray) -> IntArray:
        if not self.grouped:
            return np.ones(len(samples), np.int64)
        runs, places = self._numbering.runs(samples)
        self._shards.prefetch([number for number, _ in runs])
        lengths = np.concatenate([self._span(run)[1] for run in runs])
        return lengths if places is None else lengths[places]

    def gather(self, samples: IntArray, weight: float = 1.0) -> Batch:
        return self.gather_many([samples], [weight])[0]

    def gather_many(self, parts: Sequence[IntArray], weights: Sequence[float]) -> Sequence[Batch]:
        runs, places = self._numbering.runs(parts[0] if len(parts) == 1 else np.concatenate(parts))
        self._shards.prefetch([number for number, _ in runs])
        assert runs, "a batch has a sample"
        sizes = [len(part) for part in parts]
        edges = pairwise(np.cumsum([0, *sizes]).tolist())
        wanted = [(slice(*edge), part, weight) for edge, part, weight in zip(edges, parts, weights, strict=True)]
        shards: Shards[ShardRows] = self._shards
        first = shards[runs[0][0]]
        if self.grouped:
            return self._groups(runs, places, wanted, first)
        starts, num_rows = _aligned_starts(sizes)
        block = first.memory(num_rows)
        batches = [block[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        if places is not None:
            gathered = self._gathered(sum(sizes), first)
            _take(((shards[number], rows) for number, rows in runs), [gathered])
            runs, shards = [(0, places)], InMemory(gathered)
        if len(runs) == 1 and num_rows < _MOST_GAPS * sum(sizes):
            # In one go, with any rows in the gaps: each call takes as long as copying hundreds of rows.
            [(number, rows)] = runs
            spread = np.zeros(num_rows, np.int64)
            for start, (place, _, _) in zip(starts, wanted, strict=True):
                spread[start : start + place.stop - place.start] = rows[place]
            _take([(shards[number], spread)], [block])
        else:
            _take(((shards[number], rows) for number, rows in runs), batches)
        return [
            _batch(batch, None, samples, weight) for batch, (_, samples, weight) in zip(batches, wanted, strict=True)
        ]

    def _gathered(self, num_rows: int, like: ShardRows) -> ShardRows:
        """Return memory that this thread uses again for each block: new memory takes as long to get as to fill."""
        rows: ShardRows | None = getattr(self._scratch, "rows", None)
        if rows is None or len(rows.labels) < num_rows:
            rows = self._scratch.rows = like.memory(num_rows)
        return rows[:num_rows]

    def _groups(
        self, runs: Sequence[Run], places: IntArray | None, wanted: Sequence[_Wanted], like: ShardRows
    ) -> Sequence[Batch]:
        spans = [self._span(run) for run in runs]
        lengths = np.concatenate([lengths for _, lengths in spans])
        starts = np.cumsum(lengths) - lengths
        rows = ((self._shards[number], _ranges(*span)) for (number, _), span in zip(runs, spans, strict=True))
        block = self._gathered(int(lengths.sum()), like)
        _take(rows, [block])
        if places is not None:
            starts, lengths = starts[places], lengths[places]
        return [_padded(block, starts[place], lengths[place], part, weight) for place, part, weight in wanted]

    def _span(self, run: Run) -> tuple[IntArray, IntArray]:
        """Return each sample's first row in its shard, and its number of rows."""
        number, samples = run
        offsets = self._shards[number].offsets
        assert offsets is not None, "grouped"
        return offsets[samples], offsets[samples + 1] - offsets[samples]


def _aligned_starts(sizes: Sequence[int]) -> tuple[Sequence[int], int]:
    """Return the row at which each batch begins in a block of them, and the number of rows of that block."""
    step = ALIGNMENT // FLOAT.itemsize
    *starts, end = np.cumsum([0, *(-(-size // step) * step for size in sizes)]).tolist()
    return starts, end


def _take(shards: Iterable[tuple[ShardRows, IntArray]], places: Sequence[ShardRows]) -> None:
    """Copy rows of some shards, one behind the other, to places that are filled in turn and hold as many."""
    following = iter(places)
    size = filled = 0
    for shard, wanted in shards:
        rows = wanted
        while len(rows):
            if filled == size:
                place = next(following)
                size, filled = len(place.labels), 0
            part = rows if len(rows) <= size - filled else rows[: size - filled]
            stop = filled + len(part)
            # Without a mode np.take would check first and fill a buffer.
            np.take(shard.features, part, axis=0, out=place.features[filled:stop], mode="clip")
            np.take(shard.labels, part, axis=0, out=place.labels[filled:stop], mode="clip")
            rows, filled = rows[len(part) :], stop


def _ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return ``starts[i], starts[i] + 1, ...``, ``lengths[i]`` of them, for each i."""
    ends = np.cumsum(lengths)
    within: IntArray = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    return within + np.repeat(starts, lengths)


def _padded(block: ShardRows, starts: IntArray, lengths: IntArray, samples: IntArray, weight: float) -> Batch:
    within = np.arange(lengths.max(initial=1))
    shape = (len(lengths), len(within))
    wanted = [(*shape, *own.shape[1:]) for own in (block.features, block.labels)]
    features, labels, mask = aligned((wanted[0], FLOAT), (wanted[1], FLOAT), (shape, BOOL))
    np.less(within, lengths[:, None], out=mask)
    # Padding points at the sample's first row, which exists; its values are then cleared.
    rows = np.where(mask, starts[:, None] + within, starts[:, None])
    np.take(block.features, rows, axis=0, out=features, mode="clip")
    np.take(block.labels, rows, axis=0, out=labels, mode="clip")
    features[~mask] = 0
    labels[~mask] = 0
    return _batch(ShardRows(features=features, labels=labels, offsets=None), mask, samples, weight)


def _batch(rows: ShardRows, mask: npt.NDArray[np.bool_] | None, samples: IntArray, weight: float) -> Batch:
    return Batch(
        features=torch.from_numpy(rows.features),
        labels=torch.from_numpy(rows.labels),
        mask=None if mask is None else torch.from_numpy(mask),
        weights=torch.full((len(samples),), weight),
        samples=samples,
    )
