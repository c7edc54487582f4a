"""The gang of processes that torchrun started: seats, device, process groups, determinism."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from training.trainer.config import Parallel
from training.trainer.layouts.mesh import coordinates, device_mesh, resolve

T = TypeVar("T")

_WORD_BITS: Final = 62
_WORD: Final = (1 << _WORD_BITS) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """This process's seat. Without torchrun it is a gang of one, without process group."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    parallel: Parallel = field(default_factory=lambda: Parallel(dp_replicate=1))
    """Resolved: its product is the world size."""
    mesh: DeviceMesh | None = None
    """None where there is nothing but replicas, for which the whole process group will do."""
    cpu_group: distributed.ProcessGroup | None = None
    """Gloo, for small talk; None in a gang of one."""

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def place(self) -> Mapping[str, int]:
        """The coordinate on each dimension of the mesh."""
        return coordinates(self.parallel, self.rank)

    @property
    def data_rank(self) -> int:
        """Ranks of equal data rank, stages and slices of one model, take the same samples."""
        place = self.place
        return place["dp_replicate"] * self.parallel.dp_shard + place["dp_shard"]

    @property
    def data_world_size(self) -> int:
        return self.parallel.dp_replicate * self.parallel.dp_shard

    def seed(self, *numbers: int) -> None:
        """
        Seed dropout and the like for this seat, e.g. with (seed, epoch).

        Other samples and other stages draw other numbers; slices of one layer draw the same, for what they hold in
        common must stay the same.
        """
        seed_everything(*numbers, self.data_rank, *([self.place["pp"]] if self.parallel.pp > 1 else []))

    @property
    def copies(self) -> int:
        """Ranks that hold parts of one replica: they take the same samples and know the same losses."""
        return self.parallel.tp * self.parallel.pp

    def sum(self, value: int) -> int:
        """The exact sum over data-parallel ranks, on every rank. Called by all."""
        return sum(from_words(words) for words in self.gather(to_words(value))) // self.copies

    def any(self, *flags: bool) -> list[bool]:
        """Whether each is so on any rank. Called by all."""
        return [any(told) for told in zip(*self.gather(list(flags)), strict=True)]

    def from_leader(self, value: T) -> T:
        """Rank 0's value, on every rank. Called by all."""
        if self.world_size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0, group=self.cpu_group)
        return box[0]

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """As many numbers of each rank, by rank, on every rank. Called by all."""
        if self.world_size == 1:
            return [[int(number) for number in numbers]]
        mine = torch.tensor([int(number) for number in numbers], dtype=torch.int64)
        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        distributed.all_gather(rows, mine, group=self.cpu_group)
        return [row.tolist() for row in rows]

    def gather_objects(self, value: T) -> list[T] | None:
        """Each rank's value, by rank, on rank 0; None on the others. Called by all."""
        if self.world_size == 1:
            return [value]
        found: list[T] | None = [value] * self.world_size if self.leads else None
        distributed.gather_object(value, found, dst=0, group=self.cpu_group)
        return found

    def scatter_objects(self, values: Sequence[T] | None) -> T:
        """
        This rank's one of rank 0's values. Called by all.

        :param values: by rank, on rank 0; None on the others
        """
        if self.world_size == 1:
            assert values is not None, "rank 0 has them"
            return values[0]
        box: list[Any] = [None]
        distributed.scatter_object_list(box, None if values is None else list(values), src=0, group=self.cpu_group)
        mine: T = box[0]
        return mine


def join(
    parallel: Parallel | None = None, timeout: timedelta = timedelta(minutes=10), *, deterministic: bool = True
) -> Gang:
    """
    Take the seat that torchrun's environment names.

    The process group is left to the end of the process when the training fails: closed earlier, it would make the
    other ranks fail with "connection closed" before this one has told what was really wrong.

    :param parallel: None: replicas only
    :param timeout: of every collective; one that takes longer fails on the ranks that wait
    :param deterministic: only algorithms that give the same bits each time
    :raises BadConfigError: where the sizes do not fit the number of processes
    """
    # cuBLAS is deterministic only with a fixed workspace, chosen before its first use.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    # That shows who reads memory before it is written, and takes 3% of a step of a small GPT.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    parallel = resolve(parallel or Parallel(), world_size)
    if world_size == 1:
        return Gang(rank=rank, world_size=1, device=device, parallel=parallel)
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    replicas_only = parallel.dp_replicate == world_size
    return Gang(
        rank=rank,
        world_size=world_size,
        device=device,
        parallel=parallel,
        mesh=None if replicas_only else device_mesh(parallel, device.type, timeout),
        cpu_group=distributed.new_group(backend="gloo", timeout=timeout),
    )


def to_words(value: int) -> list[int]:
    """An integer of up to 185 bits in three that a tensor can hold."""
    return [value & _WORD, value >> _WORD_BITS & _WORD, value >> 2 * _WORD_BITS]


def from_words(words: Sequence[int]) -> int:
    low, middle, high = words
    return low + (middle << _WORD_BITS) + (high << 2 * _WORD_BITS)


def leave(gang: Gang) -> None:
    if gang.world_size > 1:
        distributed.destroy_process_group()


def seed_everything(*numbers: int) -> None:
    """Seed torch, numpy and random with a hash of the numbers, e.g. (seed, step, seat). Costs about 10 microseconds."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest[:4], "little")
    # torch.manual_seed looks for every kind of accelerator, which takes ten times as long.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    np.random.seed(seed)
    random.seed(int.from_bytes(digest[4:], "little"))
