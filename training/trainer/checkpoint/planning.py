"""
Who writes what: planned once by torch's distributed checkpointing, and kept while the state's structure stays.

DCP's planner knows DTensors and their meshes, and deals tensors that several ranks hold among them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from mlops_provider.step import StepError
from training.trainer.checkpoint.committed import Index, IndexedTensor
from training.trainer.checkpoint.files import PAGE_BYTES, Chunk
from training.trainer.checkpoint.tree import Flat, Path
from training.trainer.parallel import Gang

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
    values: frozenset[str]
    """Keys of the plain values that this rank reports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    structure: tuple[Any, ...]
    """See :func:`structure_of`."""
    mine: RankPlan
    attempt: str
    """Chosen by rank 0: files of two gangs never have one name."""
    ranks: Sequence[RankPlan]
    """On rank 0, everyone's part."""
    paths: Mapping[str, Path]
    """On rank 0, everyone's."""

    @property
    def num_bytes(self) -> int:
        return sum(placed.num_bytes for rank in self.ranks for placed in rank.placed)

    def index(self, checksums: Sequence[Sequence[int]], values: Mapping[str, Any]) -> Index:
        """
        Rank 0.

        :param checksums: a rank's CRC-32s, in the order of its items
        """
        chunks: dict[str, list[Chunk]] = {}
        facts: dict[str, tuple[str, tuple[int, ...]]] = {}
        writers = [rank for rank, plan in enumerate(self.ranks) if plan.file_bytes]
        for file, rank in enumerate(writers):
            for placed, crc32 in zip(self.ranks[rank].placed, checksums[rank], strict=True):
                key, data = placed.item.index.fqn, placed.item.tensor_data
                assert data is not None, "only tensors are planned"
                facts[key] = (str(placed.dtype).removeprefix("torch."), tuple(data.size))
                chunks.setdefault(key, []).append(
                    Chunk(tuple(data.chunk.offsets), tuple(placed.shape), file, placed.start, placed.num_bytes, crc32)
                )
        return Index(
            tensors={
                key: IndexedTensor(path=self.paths[key], dtype=dtype, shape=shape, chunks=tuple(chunks[key]))
                for key, (dtype, shape) in facts.items()
            },
            values={key: (self.paths[key], value) for key, value in values.items()},
        )


def structure_of(flat: Flat) -> tuple[Any, ...]:
    """What a plan depends on. Compared at each save, in a millisecond for a thousand tensors."""
    tensors = tuple(
        (key, tensor.shape, tensor.dtype, isinstance(tensor, DTensor) and (tensor.device_mesh, tensor.placements))
        for key, tensor in flat.tensors.items()
    )
    return (tensors, tuple(flat.values))


def make_plan(flat: Flat, *, attempt: str, gang: Gang) -> Plan:
    """Called by all ranks, with what each holds."""
    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner(flat.tensors, is_coordinator=gang.leads)
    wish = (planner.create_local_plan(), list(flat.values), flat.paths)
    wishes = gang.gather_objects(wish)
    ranks: list[RankPlan] = []
    answers: list[tuple[str, RankPlan] | str] | None = None
    if wishes is not None:
        try:
            ranks = _deal(planner, wishes)
            answers = [(attempt, mine) for mine in ranks]
        except ValueError as error:
            # To all: they wait for an answer.
            answers = [str(error)] * gang.world_size
    answer = gang.scatter_objects(answers)
    if isinstance(answer, str):
        raise CheckpointError(f"the ranks' states do not make up one checkpoint: {answer}")
    attempt, mine = answer
    paths = {key: path for _, _, theirs in wishes or () for key, path in theirs.items()}
    return Plan(structure=structure_of(flat), mine=mine, attempt=attempt, ranks=ranks, paths=paths)


def _deal(planner: DefaultSavePlanner, wishes: Sequence[tuple[SavePlan, list[str], dict[str, Path]]]) -> list[RankPlan]:
    plans, _ = planner.create_global_plan([plan for plan, _, _ in wishes])
    taken: set[str] = set()
    ranks = []
    for plan, (_, values, _) in zip(plans, wishes, strict=True):
        placed, start = [], 0
        for item in plan.items:
            assert item.tensor_data is not None, "only tensors are planned"
            num_bytes = item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
            placed.append(Placed(item=item, start=start, num_bytes=num_bytes))
            start = _up(start + num_bytes, _ALIGNED_BYTES)
        mine = frozenset(values) - taken
        taken |= mine
        ranks.append(RankPlan(placed=placed, file_bytes=_up(start, PAGE_BYTES), values=mine))
    return ranks


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
