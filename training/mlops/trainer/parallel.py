"""The gang of processes that torchrun started: seats, device, process groups, determinism."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from mlops.contract.sections.train import Parallel
from mlops.contract.step import BadConfigError
from mlops.process import allow_open_files, open_files_of
from mlops.random_states import seed_everything
from mlops.trainer.determinism import set_numerics
from mlops.trainer.devices import check_gpus
from mlops.trainer.mesh import coordinates, device_mesh, resolve
from mlops.trainer.network import choose_interface

T = TypeVar("T")

_WORD_BITS: Final = 40
_NUM_WORDS: Final = 5
"""Words of a number that is summed: 200 bits with its sign, and 4 million ranks' words add up within 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
    """Numbers of all ranks together, in the order in which each rank gave them."""

    sums: list[int]
    largest: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
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
        return self.reduce(sums=[value]).sums[0] // self.copies

    def any(self, *flags: bool) -> list[bool]:
        """Whether each is so on any rank. Called by all."""
        return [bool(number) for number in self.reduce(largest=flags).largest]

    def any_stage(self, flag: bool) -> bool:
        """Whether it is so in any stage of the pipeline: one may have nothing to learn. Called by all."""
        return self.any(flag)[0] if self.parallel.pp > 1 else flag

    def from_leader(self, value: T) -> T:
        """Rank 0's value, on every rank. Called by all."""
        if self.world_size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0, group=self.cpu_group)
        return box[0]

    def reduce(self, *, sums: Sequence[int] = (), largest: Sequence[int] = ()) -> Reduced:
        """
        Exact sums and largest values over all ranks, on every rank. Called by all, with as many numbers each.

        What travels does not grow with the ranks, and passes from rank to rank 2 log2(ranks) times, up a tree and down
        again. gloo's own all_reduce passes it round a ring: 2 (ranks - 1) times, one after the other.

        :param sums: integers of at most 199 bits and a sign
        :param largest: integers of at most 63 bits and a sign
        """
        if self.world_size == 1:
            return Reduced(sums=list(map(int, sums)), largest=list(map(int, largest)))
        words = [word for value in sums for word in to_words(int(value))]
        mine = torch.tensor([*words, *map(int, largest)], dtype=torch.int64)
        distance = 1
        while distance < self.world_size:
            if self.rank & distance:
                distributed.send(mine, self.rank - distance, group=self.cpu_group)
                break
            if self.rank + distance < self.world_size:
                others = torch.empty_like(mine)
                distributed.recv(others, self.rank + distance, group=self.cpu_group)
                added, greater = mine[: len(words)] + others[: len(words)], torch.maximum(mine, others)[len(words) :]
                mine = torch.cat([added, greater])
            distance *= 2
        distributed.broadcast(mine, 0, group=self.cpu_group)
        numbers = mine.tolist()
        return Reduced(
            sums=[from_words(numbers[at : at + _NUM_WORDS]) for at in range(0, len(words), _NUM_WORDS)],
            largest=numbers[len(words) :],
        )

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
    parallel: Parallel | None = None,
    timeout: timedelta = timedelta(minutes=10),
    *,
    deterministic: bool | str = True,
    float32_matmul: str = "highest",
) -> Ranks:
    """
    Take the seat that torchrun's environment names.

    The process group is left to the end of the process when the training fails: closed earlier, it would make the
    other ranks fail with "connection closed" before this one has told what was really wrong.

    :param parallel: None: replicas only
    :param timeout: of every collective; one that takes longer fails on the ranks that wait
    :param deterministic: see :func:`mlops.trainer.determinism.set_numerics`, also for ``float32_matmul``
    :raises BadConfigError: where the sizes do not fit the number of processes, or the processes not the GPUs
    """
    device = own_device()
    if device.type == "cuda":
        # First: whatever is asked of CUDA before would take memory of GPU 0, by each process.
        torch.cuda.set_device(device)
    set_numerics(deterministic, float32_matmul)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    parallel = resolve(parallel or Parallel(), world_size)
    if world_size == 1:
        return Ranks(rank=rank, world_size=1, device=device, parallel=parallel)
    replicas_only = parallel.dp_replicate == world_size
    # A mesh connects the ranks of each of its dimensions anew.
    of_mesh = 0 if replicas_only else sum(parallel.model_dump().values())
    allow_open_files(open_files_of(world_size) + of_mesh, f"a training of {world_size} processes")
    if not distributed.is_initialized():
        choose_interface()
        if device.type == "cuda":
            # With its device NCCL connects at once, so that what is wrong with it is said here, and a mesh splits that
            # communicator. torch 2.13 then wants all ranks at any new_group, also of gloo and of some ranks only.
            distributed.init_process_group("nccl", timeout=timeout, device_id=device)
        else:
            distributed.init_process_group("gloo", timeout=timeout)
    return Ranks(
        rank=rank,
        world_size=world_size,
        device=device,
        parallel=parallel,
        mesh=None if replicas_only else device_mesh(parallel, device.type, timeout),
        cpu_group=distributed.new_group(backend="gloo", timeout=timeout),
    )


def from_leader_alone(value: T, timeout: timedelta) -> T:
    """
    Rank 0's value, on every rank, by a process group that is gone afterwards: the one of the training is somebody
    else's. Called by all.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return value
    choose_interface()
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    # Under keys of its own: whoever connects next would find the addresses of this one.
    store = PrefixStore("from_leader_alone", store)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    distributed.destroy_process_group()
    return box[0]


def own_device() -> torch.device:
    """
    The GPU of this process's number on its node, or the CPU where there is none.

    :raises BadConfigError: where the node has fewer GPUs than processes
    :raises NoGpuError: where this process was given one that it cannot use
    """
    if not torch.cuda.is_available():
        check_gpus()
        return torch.device("cpu")
    index, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= num_gpus:
        raise BadConfigError(
            f"train.processes: {os.environ.get('LOCAL_WORLD_SIZE', index + 1)} processes on a node with {num_gpus} "
            f"GPUs, and each takes one: set train.processes to at most {num_gpus}"
        )
    return torch.device("cuda", index)


def to_words(value: int) -> list[int]:
    """An integer in words that a tensor can hold; the last has the sign. Sums of words are words of the sum."""
    assert value.bit_length() < _NUM_WORDS * _WORD_BITS, f"{value} has more than 199 bits"
    mask = (1 << _WORD_BITS) - 1
    low = [value >> number * _WORD_BITS & mask for number in range(_NUM_WORDS - 1)]
    return [*low, value >> (_NUM_WORDS - 1) * _WORD_BITS]


def from_words(words: Sequence[int]) -> int:
    return sum(word << number * _WORD_BITS for number, word in enumerate(words))


def leave(ranks: Ranks) -> None:
    if ranks.world_size > 1:
        distributed.destroy_process_group()
