"""The gang of processes that torchrun started: device, process group, determinism."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """This process's seat. Without torchrun it is a gang of one, without process group."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Average gradients over the gang; parameters and buffers start as rank 0's."""
        if self.world_size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def sum(self, value: float) -> float:
        """The sum over all ranks. Called by all."""
        if self.world_size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return float(total)

    def from_leader(self, value: T) -> T:
        """Rank 0's value, on every rank. Called by all."""
        if self.world_size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


def join() -> Gang:
    """
    Take the seat that torchrun's environment names, with deterministic algorithms.

    The process group is left to the end of the process when the training fails: closed earlier, it would make the
    other ranks fail with "connection closed" before this one has told what was really wrong.
    """
    # cuBLAS is deterministic only with a fixed workspace, chosen before its first use.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Gang(rank=int(os.environ.get("RANK", "0")), world_size=world_size, device=device)


def leave(gang: Gang) -> None:
    if gang.world_size > 1:
        distributed.destroy_process_group()


def seed_everything(*seeds: int) -> None:
    """Seed torch, numpy and random with a hash of the given numbers, e.g. (seed, epoch, rank)."""
    state = np.random.SeedSequence(seeds).generate_state(2)
    torch.manual_seed(int(state[0]))
    np.random.seed(int(state[1]))
    random.seed(int(state[1]))
