"""
One rank's share of every global batch, gathered ahead by a thread.

Global batch ``b`` of an epoch is a fixed stretch of :class:`mlops.data.shards.sampler.EpochSampler`, and a rank's
share is a pure function of that batch: any number of ranks, changed at any step, sees the same global batches, and each
sample exactly once per epoch.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mlops.contract.step import BadConfigError
from mlops.data.shards.batch import Batch, IntArray, SampleSource, block_of
from mlops.data.shards.dealing import Passes, cut
from mlops.data.shards.easy_first import EasyFirst
from mlops.data.shards.sampler import EpochSampler
from mlops.data.shards.table_source import InMemory, ShardRows, TableSource

if TYPE_CHECKING:
    from mlops.data.shards.feature_table import FeatureTable

__all__ = ["Batch", "Loader", "SampleSource", "Step", "in_memory", "in_order"]

T = TypeVar("T")

# Samples whose order is computed at once: numpy is slow by the thousand.
_STRETCH: Final = 1 << 14
# Groups are padded to the longest one.
_MEASURED_AT_ONCE: Final = 1 << 10
NO_SHARD: Final = -1

logger = logging.getLogger(__name__)
Difficulty = Callable[[Batch], npt.NDArray[np.float64]]
_Dealt = Sequence[tuple[IntArray, float, int]]
"""The samples, weight and logical shard of each of a rank's batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One rank's work for one optimizer step."""

    index: int
    """Index of the step within the epoch, from 0."""
    batches: Sequence[Batch]
    """
    Batches of the step, as many on every rank: micro batches, or in exact mode one for each logical shard that the rank
    owns.
    """
    shards: Sequence[int]
    """Number of each batch's logical shard, -1 for a batch that only fills up; without exact mode 0, 1, ..."""
    num_samples: int
    """Number of samples of the whole global batch, over all ranks."""
    num_rows: int
    """
    Number of rows of the whole global batch, over all ranks, without padding; ``num_samples`` if samples are not
    groups.
    """


class Loader:
    """
    One rank's share of a training split.

    Rows and sequences are dealt in the order of their shards, so that a rank needs few of a window's shards; groups by
    their lengths, see :mod:`mlops.data.shards.dealing`. A rank without samples for a batch gets a stand-in of weight 0:
    it must take part in the collectives all the same.

    :param global_batch: samples per optimizer step over all ranks
    :param rank: rank in the data-parallel group, whose size is ``world_size``
    :param micro_batch: samples per forward pass, at most; None: the rank's whole share at once
    :param micro_batch_rows: padded rows per forward pass over groups, at most; a longer group has one of its own
    :param pass_worth_rows: padded rows of groups that each further forward pass must save a rank; None: only the passes
        that the limits ask for
    :param one_shape: batches are padded to the largest of all ranks, as a pipeline's
    :param logical_shards: parts that every global batch is cut into whatever the world size, one batch each: for
        results that do not depend on the world size
    :param difficulty: measures the samples of a batch, ``[B]``
    :param ordered_epochs: the first epochs, whose samples come in the order of their difficulty; see
        :class:`mlops.data.shards.easy_first.EasyFirst`
    :param prefetch: steps, or blocks of small ones, gathered ahead by a thread; 0: none, and no thread
    :param pin: put batches into page-locked memory, if there is a GPU
    """

    def __init__(
        self, *, source: SampleSource, global_batch: int, seed: int, rank: int, world_size: int,
        micro_batch: int | None = None, micro_batch_rows: int | None = None, pass_worth_rows: int | None = None,
        one_shape: bool = False, logical_shards: int | None = None, difficulty: Difficulty | None = None,
        ordered_epochs: int = 0, prefetch: int = 2, pin: bool = False,
    ) -> None:  # fmt: skip
        limits = {"micro_batch": micro_batch, "micro_batch_rows": micro_batch_rows}
        for name, value in {"global_batch": global_batch, **limits, "shards": logical_shards}.items():
            if value is not None and value < 1:
                raise BadConfigError(f"{name} must be at least 1, got {value}")
        if logical_shards is not None and any(limits.values()):
            name, value = next((name, value) for name, value in limits.items() if value is not None)
            raise BadConfigError(
                f"{name} {value} cannot be had in exact mode, where a logical shard is one forward pass: "
                f"leave it out, and take more logical shards than {logical_shards} for smaller ones"
            )
        self.grouped = source.grouped
        if micro_batch_rows is not None and not self.grouped:
            raise BadConfigError(
                f"micro_batch_rows {micro_batch_rows} is for groups of rows, which these samples are not: "
                "set micro_batch instead"
            )
        self.num_samples = int(source.shard_sizes.sum())
        self.num_steps = _num_steps(self.num_samples, global_batch)
        """Optimizer steps per epoch; the last global batch may be short, or longer by one sample."""
        self._source, self._seed, self._global_batch = source, seed, global_batch
        self._rank, self._world_size = rank, world_size
        self._micro_batch, self._micro_batch_rows, self._logical_shards = micro_batch, micro_batch_rows, logical_shards
        self._passes = Passes(
            most_groups=micro_batch, most_rows=micro_batch_rows, worth_rows=pass_worth_rows, one_shape=one_shape
        )
        self._warns = rank == 0
        self._prefetch, self._pin = prefetch, pin and torch.cuda.is_available()
        self._difficulty, self._ordered_epochs = difficulty, ordered_epochs
        self._ordered: tuple[int, EasyFirst] | None = None

    def epoch(self, epoch: int, start: int = 0, *, last: bool = False) -> Iterator[Step]:
        """
        Iterate over this rank's steps of an epoch.

        Closing the iterator ends its thread. Errors in the thread are raised here.

        :param start: first step, e.g. where a checkpoint was taken, at whatever world size
        :param last: no epoch follows whose first shards should be fetched ahead
        """
        blocks = self._blocks(epoch, start, last=last)
        for block in _ahead(blocks, self._prefetch) if self._prefetch else blocks:
            yield from block

    def _blocks(self, epoch: int, start: int, *, last: bool) -> Iterator[Sequence[Step]]:
        """Iterate over blocks of steps that are gathered at once: a single step each, unless steps are small."""
        source, size = self._source, self._global_batch
        order = self._order(epoch)
        steps_at_once = max(1, _STRETCH // size)
        block = max(1, source.block_samples * self._world_size // size)
        hinted = -1
        for first in range(start, self.num_steps, steps_at_once):
            num_steps = min(steps_at_once, self.num_steps - first)
            is_last = first + num_steps == self.num_steps
            samples = order(np.arange(first * size, self.num_samples if is_last else (first + num_steps) * size))
            wholes = np.split(samples, range(size, num_steps * size, size))
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

    def _order(self, epoch: int) -> EpochSampler | EasyFirst:
        source = self._source
        order = EpochSampler(source.shard_sizes, seed=self._seed, epoch=epoch, window_samples=source.window_samples)
        if self._difficulty is None or epoch > self._ordered_epochs:
            return order
        if self._ordered is None or self._ordered[0] != epoch:  # measured once, also where the epoch before looks ahead
            self._ordered = epoch, EasyFirst(order, self._measured)
        return self._ordered[1]

    def _measured(self, samples: IntArray) -> npt.NDArray[np.float64]:
        assert self._difficulty is not None, "something orders them"
        parts = np.split(samples, range(_MEASURED_AT_ONCE, len(samples), _MEASURED_AT_ONCE))
        return np.concatenate([self._difficulty(self._source.gather(part)) for part in parts])

    def _gathered(self, first: int, wholes: Sequence[IntArray]) -> Sequence[Step]:
        """Gather the steps of these global batches; the first has index ``first``."""
        lengths = self._lengths(wholes)
        dealt = [
            self._deal(whole) if length is None else self._deal_groups(whole, length, first + number)
            for number, (whole, length) in enumerate(zip(wholes, lengths, strict=True))
        ]
        parts = [(part, weight) for step in dealt for part, weight, _ in step]
        batches = iter(self._source.gather_many(*zip(*parts, strict=True)))
        return [
            Step(
                index=first + number,
                batches=[batch.pin() if self._pin else batch for batch in islice(batches, len(step))],
                shards=[shard for _, _, shard in step],
                num_samples=len(whole),
                num_rows=len(whole) if length is None else int(length.sum()),
            )
            for number, (whole, length, step) in enumerate(zip(wholes, lengths, dealt, strict=True))
        ]

    def _lengths(self, wholes: Sequence[IntArray]) -> Sequence[IntArray | None]:
        if not self.grouped:
            return [None] * len(wholes)
        sizes = [len(whole) for whole in wholes]
        return np.split(self._source.lengths(np.concatenate(wholes)), np.cumsum(sizes)[:-1])

    def _hint(self, order: EpochSampler | EasyFirst, start: int) -> None:
        # The batch at the start of a window names the shards that this rank will need there.
        whole = order(np.arange(start, min(start + self._global_batch, self.num_samples)))
        # To deal groups, every rank needs the lengths of all.
        self._source.prefetch(whole if self.grouped else np.concatenate([part for part, _, _ in self._deal(whole)]))

    def _deal(self, whole: IntArray) -> _Dealt:
        """
        Deal equal shares, to within one sample, in the order of the split; as many batches on every rank.

        None is of one sample alone where whole steps have two for each share: a batch norm cannot do with a single row.
        """
        samples, num_shares = np.sort(whole), self._logical_shards or self._world_size
        shares = _Shares(samples, num_shares, 2 if self._global_batch >= 2 * num_shares else 1)
        if self._logical_shards is not None:
            return self._of_shards([shares[number] for number in self._owned], samples[:2])
        size = self._micro_batch or shares.largest
        # Micro batches of two stay below their limit, at the price of a single row.
        batches = _Shares(shares[self._rank], math.ceil(shares.largest / size), 2 if size > 2 else 1)
        return _numbered([batches[number] for number in range(batches.num_shares)], samples[:2])

    def _deal_groups(self, whole: IntArray, lengths: IntArray, step: int) -> _Dealt:
        """Deal shares of about equal padded rows, as many batches on every rank; each in the order of the split."""
        order = np.lexsort((whole, -lengths))
        longest_first, lengths = whole[order], lengths[order]
        # Of middle length: a batch norm cannot do with a single row.
        stand_in = longest_first[len(whole) // 2 :][:1]

        def samples(start: int, stop: int) -> IntArray:
            return np.sort(longest_first[start:stop])

        if self._logical_shards is not None:
            parts = cut(np.maximum(lengths, 1).tolist(), self._logical_shards)
            parts = [*parts, *[(0, 0)] * (self._logical_shards - len(parts))]
            return self._of_shards([samples(*parts[number]) for number in self._owned], stand_in)
        if self._micro_batch_rows is not None and self._warns and lengths[0] > self._micro_batch_rows:
            self._warns = False
            logger.warning(
                "training sample %d is a group of %d rows, more than train.micro_batch_rows: %d; such groups have a "
                "forward pass of their own",
                *(longest_first[0], lengths[0], self._micro_batch_rows),
            )
        dealt = self._passes.dealt(lengths, self._world_size)
        # By turns: else one rank would see long groups only, or short ones, and keep statistics of its own batches.
        mine = dealt[(self._rank + step) % self._world_size]
        turn = step % max(1, len(mine))
        batches = [samples(*part) for part in (*mine[turn:], *mine[:turn])]
        most = max(map(len, dealt))
        return _numbered([*batches, *[whole[:0]] * (most - len(batches))], stand_in)

    @property
    def _owned(self) -> range:
        """The logical shards of this rank."""
        assert self._logical_shards is not None, "exact mode"
        return range(*(self._logical_shards * rank // self._world_size for rank in (self._rank, self._rank + 1)))

    def _of_shards(self, owned: Sequence[IntArray], stand_in: IntArray) -> _Dealt:
        assert self._logical_shards is not None, "exact mode"
        missing = math.ceil(self._logical_shards / self._world_size) - len(owned)
        batches = _numbered(owned, stand_in)
        shards = [(part, weight, shard) for (part, weight, _), shard in zip(batches, self._owned, strict=True)]
        return [*shards, *[(stand_in.copy(), 0.0, NO_SHARD)] * missing]


def _num_steps(num_samples: int, global_batch: int) -> int:
    """Return the steps of an epoch: a sample that would be the last one's only one is the one's before it."""
    steps, left = divmod(num_samples, global_batch)
    return steps + (left > 1 or (left == 1 and steps == 0))


@dataclass(frozen=True, slots=True)
class _Shares:
    """Samples cut into shares, equal to within one sample, in their order."""

    samples: IntArray
    num_shares: int
    least: int
    """Samples of each share; where there are fewer, the last shares have none."""

    @property
    def largest(self) -> int:
        return math.ceil(len(self.samples) / self._used)

    @property
    def _used(self) -> int:
        return max(1, min(self.num_shares, len(self.samples) // self.least))

    def __getitem__(self, number: int) -> IntArray:
        if number >= self._used:
            return self.samples[:0]
        start, stop = (len(self.samples) * edge // self._used for edge in (number, number + 1))
        return self.samples[start:stop]


def _numbered(parts: Sequence[IntArray], stand_in: IntArray) -> _Dealt:
    """Number batches of these samples; where a part has none, its batch is the stand-in."""
    return [(part, 1.0, number) if len(part) else (stand_in.copy(), 0.0, number) for number, part in enumerate(parts)]


def _ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """Iterate over the same items, made by a thread that is at most ``depth`` ahead."""
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


def in_memory(table: FeatureTable, *, grouped: bool) -> SampleSource:
    """Make a table the source of a loader."""
    offsets = table.offsets if grouped else None
    num_samples = len(table.offsets) - 1
    return TableSource(
        InMemory(ShardRows(features=table.features, labels=table.labels, offsets=offsets)),
        np.array([num_samples], np.int64),
        grouped=grouped,
        window_samples=max(1, num_samples),
        block_samples=block_of(num_samples, table.features.nbytes),
    )


def in_order(table: FeatureTable, batch_size: int, *, grouped: bool) -> Iterator[Batch]:
    """Iterate over every sample once, in the order of the split: for validation and scoring."""
    source = in_memory(table, grouped=grouped)
    num_samples = len(table.offsets) - 1
    for first in range(0, num_samples, batch_size):
        yield source.gather(np.arange(first, min(first + batch_size, num_samples)))
