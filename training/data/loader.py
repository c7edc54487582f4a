"""
One rank's share of every global batch, gathered ahead by a thread.

Global batch ``b`` of an epoch is a fixed stretch of :class:`training.data.order.EpochOrder`, and a rank's share is a
pure function of that batch: any number of ranks, changed at any step, sees the same global batches, and each sample
exactly once per epoch.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import torch

from mlops_provider.step import BadConfigError
from training.data.batch import Batch, IntArray, Source, block_of
from training.data.order import EpochOrder
from training.data.table_source import InMemory, Rows, TableSource

if TYPE_CHECKING:
    from training.data.feature_table import FeatureTable

__all__ = ["Batch", "Loader", "Source", "Step", "in_memory", "in_order"]

T = TypeVar("T")

# Samples whose order is computed at once: numpy is slow by the thousand.
_STRETCH: Final = 1 << 14
NO_SHARD: Final = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one rank computes for one optimizer step."""

    index: int
    """Within the epoch, from 0."""
    batches: Sequence[Batch]
    """As many on every rank: micro batches, or in exact mode one for each logical shard that the rank owns."""
    shards: Sequence[int]
    """Number of each batch's logical shard, -1 for a batch that only fills up; without exact mode 0, 1, ..."""
    num_samples: int
    """Of the whole global batch, over all ranks."""


class Loader:
    """
    One rank's share of a training split.

    Rows and sequences are dealt in the order of their shards, so that a rank needs few of a window's shards; groups by
    their lengths, so that ranks carry about equal rows and a micro batch has little padding. A rank without samples
    for a batch gets a stand-in of weight 0: it must take part in the collectives all the same.

    :param global_batch: samples per optimizer step over all ranks
    :param rank: of the data-parallel group, as ``world_size``
    :param micro_batch: samples per forward pass, at most; None: the rank's whole share at once
    :param logical_shards: parts that every global batch is cut into whatever the world size, one batch each: for
        results that do not depend on the world size
    :param prefetch: steps, or blocks of small ones, gathered ahead by a thread; 0: none, and no thread
    :param pin: in page-locked memory, where there is a GPU
    """

    def __init__(
        self, *, source: Source, global_batch: int, seed: int, rank: int, world_size: int,
        micro_batch: int | None = None, logical_shards: int | None = None, prefetch: int = 2, pin: bool = False,
    ) -> None:  # fmt: skip
        for name, value in (("global_batch", global_batch), ("micro_batch", micro_batch), ("shards", logical_shards)):
            if value is not None and value < 1:
                raise BadConfigError(f"{name} must be at least 1, got {value}")
        if micro_batch is not None and logical_shards is not None:
            raise BadConfigError(
                f"micro_batch {micro_batch} cannot be had in exact mode, where a logical shard is one forward pass: "
                f"leave it out, and take more logical shards than {logical_shards} for smaller ones"
            )
        self.grouped = source.grouped
        self.num_samples = int(source.shard_sizes.sum())
        self.num_steps = math.ceil(self.num_samples / global_batch)
        """Optimizer steps per epoch; the last global batch may be short."""
        self._source, self._seed, self._global_batch = source, seed, global_batch
        self._rank, self._world_size = rank, world_size
        self._micro_batch, self._logical_shards = micro_batch, logical_shards
        self._prefetch, self._pin = prefetch, pin and torch.cuda.is_available()

    def epoch(self, epoch: int, start: int = 0, *, last: bool = False) -> Iterator[Step]:
        """
        This rank's steps of an epoch.

        Closing the iterator ends its thread. What goes wrong in the thread is raised here.

        :param start: first step, e.g. where a checkpoint was taken, at whatever world size
        :param last: no epoch follows whose first shards should be fetched ahead
        """
        blocks = self._blocks(epoch, start, last=last)
        for block in _ahead(blocks, self._prefetch) if self._prefetch else blocks:
            yield from block

    def _blocks(self, epoch: int, start: int, *, last: bool) -> Iterator[Sequence[Step]]:
        """Steps that are gathered at once: a single one, unless they are small."""
        source, size = self._source, self._global_batch
        order = self._order(epoch)
        steps_at_once = max(1, _STRETCH // size)
        block = max(1, source.block_samples * self._world_size // size)
        hinted = -1
        for first in range(start, self.num_steps, steps_at_once):
            samples = order(np.arange(first * size, min((first + steps_at_once) * size, self.num_samples)))
            wholes = np.split(samples, range(size, len(samples), size))
            for place in range(0, len(wholes), block):
                yield self._gathered(first + place, wholes[place : place + block])
            # Once in a window, and behind what is needed now.
            if (window := order.window_of(first * size)) > hinted:
                hinted = window
                ahead, position = order, int(order.window_starts[window + 1])
                if position == self.num_samples:
                    ahead, position = self._order(epoch + 1), 0
                if not (last and ahead is not order):
                    self._hint(ahead, position)

    def _order(self, epoch: int) -> EpochOrder:
        source = self._source
        return EpochOrder(source.shard_sizes, seed=self._seed, epoch=epoch, window_samples=source.window_samples)

    def _gathered(self, first: int, wholes: Sequence[IntArray]) -> Sequence[Step]:
        """The steps of these global batches; the first has that index."""
        lengths = self._lengths(wholes)
        dealt = [self._deal(whole, length) for whole, length in zip(wholes, lengths, strict=True)]
        parts = [
            (part, 1.0) if len(part) else (whole[:1].copy(), 0.0)
            for whole, step in zip(wholes, dealt, strict=True)
            for part, _ in step
        ]
        batches = iter(self._source.gather_many(*zip(*parts, strict=True)))
        return [
            Step(
                index=first + number,
                batches=[batch.pin() if self._pin else batch for batch in islice(batches, len(step))],
                shards=[shard for _, shard in step],
                num_samples=len(whole),
            )
            for number, (whole, step) in enumerate(zip(wholes, dealt, strict=True))
        ]

    def _lengths(self, wholes: Sequence[IntArray]) -> Sequence[IntArray | None]:
        if not self.grouped:
            return [None] * len(wholes)
        sizes = [len(whole) for whole in wholes]
        return np.split(self._source.lengths(np.concatenate(wholes)), np.cumsum(sizes)[:-1])

    def _hint(self, order: EpochOrder, start: int) -> None:
        # The batch at the start of a window names the shards that this rank will need there.
        whole = order(np.arange(start, min(start + self._global_batch, self.num_samples)))
        # To deal groups, every rank needs the lengths of all.
        self._source.prefetch(whole if self.grouped else np.concatenate([part for part, _ in self._deal(whole, None)]))

    def _deal(self, whole: IntArray, lengths: IntArray | None) -> Sequence[tuple[IntArray, int]]:
        """The samples of each of this rank's batches, and its logical shard; as many on every rank."""
        shares = _Shares(whole, lengths)
        if self._logical_shards is None:
            mine = shares.of(self._rank, self._world_size)
            largest = math.ceil(len(whole) / self._world_size)
            size = self._micro_batch or largest
            return [
                (self._ascending(mine[number * size : (number + 1) * size]), number)
                for number in range(math.ceil(largest / size))
            ]
        first, last = (self._logical_shards * rank // self._world_size for rank in (self._rank, self._rank + 1))
        owned = [(self._ascending(shares.of(number, self._logical_shards)), number) for number in range(first, last)]
        missing = math.ceil(self._logical_shards / self._world_size) - len(owned)
        return owned + [(whole[:0], NO_SHARD)] * missing

    def _ascending(self, part: IntArray) -> IntArray:
        return np.sort(part) if self.grouped else part  # which is so already


class _Shares:
    """
    A global batch, to be dealt in shares that differ by at most one sample.

    :param lengths: of the samples, where shares shall have about equal rows
    """

    def __init__(self, whole: IntArray, lengths: IntArray | None) -> None:
        self._by_length = lengths is not None
        self._ranked = np.sort(whole) if lengths is None else whole[np.lexsort((whole, -lengths))]

    def of(self, number: int, num_shares: int) -> IntArray:
        """In ascending order, or by length."""
        size = len(self._ranked)
        if not self._by_length:
            return self._ranked[size * number // num_shares : size * (number + 1) // num_shares]
        # To and fro, so that no share has the longer sample of every round.
        rounds = np.arange(math.ceil(size / num_shares))
        places = rounds * num_shares + np.where(rounds % 2 == 0, number, num_shares - 1 - number)
        return self._ranked[places[places < size]]


def _ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """The same items, made by a thread that is at most so many ahead."""
    made: queue.Queue[T | BaseException | None] = queue.Queue(depth)
    closed = threading.Event()

    def make() -> None:
        try:
            for item in items:
                made.put(item)
                if closed.is_set():
                    return
            made.put(None)
        except BaseException as error:  # raised where the steps are used
            made.put(error)

    thread = threading.Thread(target=make, name="loader", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        # The thread may wait for room, once at most.
        while not made.empty():
            made.get_nowait()
        thread.join()


def in_memory(table: FeatureTable, *, grouped: bool) -> Source:
    """A table as the source of a loader."""
    offsets = table.offsets if grouped else None
    num_samples = len(table.offsets) - 1
    return TableSource(
        InMemory(Rows(features=table.features, labels=table.labels, offsets=offsets)),
        np.array([num_samples], np.int64),
        grouped=grouped,
        window_samples=max(1, num_samples),
        block_samples=block_of(num_samples, table.features.nbytes),
    )


def in_order(table: FeatureTable, batch_size: int, *, grouped: bool) -> Iterator[Batch]:
    """Every sample once, in the order of the split: for validation and scoring."""
    source = in_memory(table, grouped=grouped)
    num_samples = len(table.offsets) - 1
    for first in range(0, num_samples, batch_size):
        yield source.gather(np.arange(first, min(first + batch_size, num_samples)))
