"""
Who writes what: planned once by torch's distributed checkpointing, and kept while the state's structure stays.

DCP's planner knows DTensors and their meshes, and deals tensors that several ranks hold among them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from mlops.contract.step import StepError
from mlops.trainer.checkpoint.files import PAGE_BYTES
from mlops.trainer.checkpoint.index import IndexWriter, TensorPart
from mlops.trainer.checkpoint.tree import Flat, Path
from mlops.trainer.parallel import Ranks

MODEL: Final = "model"
"""First key of the model's weights in a state."""
_ALIGNED_BYTES: Final = 64

logger = logging.getLogger(__name__)


class CheckpointError(StepError):
    """A checkpoint cannot be written or read; trying again may help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """An item of a rank's file."""

    item: WriteItem
    start: int
    """Byte in the file."""
    num_bytes: int

    @property
    def is_weight(self) -> bool:
        return _is_weight(self.item)

    @property
    def part(self) -> TensorPart:
        data = self.item.tensor_data
        assert data is not None, "only tensors are planned"
        return TensorPart(
            key=self.item.index.fqn,
            dtype=str(self.dtype).removeprefix("torch."),
            item_bytes=self.dtype.itemsize,
            tensor_shape=tuple(data.size),
            offsets=tuple(data.chunk.offsets),
            shape=tuple(data.chunk.sizes),
            start=self.start,
        )

    @property
    def dtype(self) -> torch.dtype:
        assert self.item.tensor_data is not None, "only tensors are planned"
        return self.item.tensor_data.properties.dtype

    @property
    def shape(self) -> torch.Size:
        assert self.item.tensor_data is not None, "only tensors are planned"
        return self.item.tensor_data.chunk.sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """One rank's part."""

    placed: Sequence[Placed]
    file_bytes: int
    """Whole pages; 0 where the rank writes nothing."""
    weight_bytes: int
    """Bytes of the model's weights, with which the file begins; whole pages, 0 where the rank writes none."""
    values: frozenset[str]
    """Keys of the plain values that this rank reports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    structure: tuple[Any, ...]
    """See :func:`structure_of`."""
    mine: RankPlan
    ranks: Sequence[RankPlan]
    """On rank 0, everyone's part."""
    paths: Mapping[str, Path]
    """On rank 0, everyone's."""
    _indices: dict[bool, IndexWriter] = field(default_factory=dict)
    """What of the indices stays from save to save: of the copy of the weights, and of all."""

    def writers(self, *, weights: bool = False) -> list[tuple[int, int]]:
        """
        The ranks that write a file, with its bytes; their order is that of the checkpoint's files.

        :param weights: of the copy of the weights
        """
        sizes = [plan.weight_bytes if weights else plan.file_bytes for plan in self.ranks]
        return [(rank, num_bytes) for rank, num_bytes in enumerate(sizes) if num_bytes]

    def num_bytes(self, *, weights: bool = False) -> int:
        """Return the bytes of tensors."""
        placed = (placed for rank in self.ranks for placed in rank.placed)
        return sum(one.num_bytes for one in placed if not weights or one.is_weight)

    def index(self, checksums: Sequence[Sequence[int]], values: Mapping[str, Any], *, weights: bool = False) -> bytes:
        """
        Rank 0.

        :param checksums: a rank's CRC-32s, in the order of its items
        :param weights: of the copy of the weights
        """
        if weights not in self._indices:
            self._indices[weights] = self._index_writer(weights)
        counts = [len(self._parts(rank, weights)) for rank, _ in self.writers(weights=weights)]
        return self._indices[weights].dump(
            [checksums[rank][:count] for (rank, _), count in zip(self.writers(weights=weights), counts, strict=True)],
            {key: value for key, value in values.items() if not weights or self.paths[key][0] == MODEL},
        )

    def _index_writer(self, weights: bool) -> IndexWriter:
        parts = [[placed.part for placed in self._parts(rank, weights)] for rank, _ in self.writers(weights=weights)]
        return IndexWriter(parts, self.paths)

    def _parts(self, rank: int, weights: bool) -> Sequence[Placed]:
        placed = self.ranks[rank].placed
        # They come first in a file.
        return [one for one in placed if one.is_weight] if weights else placed


def structure_of(flat: Flat) -> tuple[Any, ...]:
    """What a plan depends on. Compared at each save, in a millisecond for a thousand tensors."""
    tensors = tuple(
        (key, tensor.shape, tensor.dtype, isinstance(tensor, DTensor) and (tensor.device_mesh, tensor.placements))
        for key, tensor in flat.tensors.items()
    )
    return (tensors, tuple(flat.values))


def make_plan(flat: Flat, *, ranks: Ranks) -> Plan:
    """Called by all ranks, with what each holds."""
    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner(flat.tensors, is_coordinator=ranks.leads)
    wish = (planner.create_local_plan(), list(flat.values), flat.paths)
    wishes = ranks.gather_objects(wish)
    plans: list[RankPlan] = []
    answers: list[RankPlan | str] | None = None
    if wishes is not None:
        try:
            plans = _deal(planner, wishes)
            answers = [*plans]
        except ValueError as error:
            # To all: they wait for an answer.
            answers = [str(error)] * ranks.world_size
    answer = ranks.scatter_objects(answers)
    if isinstance(answer, str):
        raise CheckpointError(f"the ranks' states do not make up one checkpoint: {answer}")
    paths = {key: path for _, _, theirs in wishes or () for key, path in theirs.items()}
    return Plan(structure=structure_of(flat), mine=answer, ranks=plans, paths=paths)


def _deal(planner: DefaultSavePlanner, wishes: Sequence[tuple[SavePlan, list[str], dict[str, Path]]]) -> list[RankPlan]:
    plans, _ = planner.create_global_plan([plan for plan, _, _ in wishes])
    taken: set[str] = set()
    ranks = []
    for plan, (_, values, _) in zip(plans, wishes, strict=True):
        placed: list[Placed] = []
        start = weight_bytes = 0
        # The weights first: a file's beginning is then their copy.
        for item in sorted(plan.items, key=lambda item: not _is_weight(item)):
            assert item.tensor_data is not None, "only tensors are planned"
            num_bytes = item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
            placed.append(Placed(item=item, start=start, num_bytes=num_bytes))
            start = _up(start + num_bytes, _ALIGNED_BYTES)
            weight_bytes = max(start, 1) if placed[-1].is_weight else weight_bytes
        mine = frozenset(values) - taken
        taken |= mine
        # A page at least, also for empty tensors: they are listed with a file.
        file_bytes = _up(max(start, 1), PAGE_BYTES) if placed else 0
        weight_bytes = _up(weight_bytes, PAGE_BYTES)
        ranks.append(RankPlan(placed=placed, file_bytes=file_bytes, weight_bytes=weight_bytes, values=mine))
    return ranks


def _is_weight(item: WriteItem) -> bool:
    return item.index.fqn.startswith(f"{MODEL}.")


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
