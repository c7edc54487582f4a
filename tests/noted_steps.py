"""What each process of a gang began, step by step, and what of it was done again."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

RECIPE = """
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

from .model import slow_loss

HOME = Path(os.environ["MLOPS_HOME"])


class Centred(nn.Module):
    # Its buffer changes with each forward pass, and with it the next one's result.
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(), 0.1)
        return x - self.mean


def build_model(config):
    first, last = nn.Linear(config.num_features, config.hidden), nn.Linear(config.hidden, 1)
    return nn.Sequential(first, Centred(), nn.Tanh(), nn.Dropout(0.1), last, nn.Flatten(-2))


def write(**facts):
    name = "-".join(os.environ[key] for key in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
    with (HOME / "notes" / f"{name}-{os.getpid()}").open("a") as file:
        file.write(json.dumps({"at": time.time(), **facts}) + "\\n")


def loss(model, batch):
    write(begins=True)
    stall = HOME / f"stall-{os.environ['RANK']}"
    if stall.exists():
        stall.unlink()
        time.sleep(20)
    return slow_loss(model, batch)


def note(batch, progress):
    write(progress=progress, samples=[int(sample) for sample in batch.samples[batch.weights.numpy() > 0]])
    return torch.ones_like(batch.weights)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One rank of one start of a gang."""

    round: int
    rank: int
    world_size: int
    pid: int
    steps: list[int]
    """Whose loss was computed: optimizer steps that were done before each."""
    begun: int
    """The last one whose forward pass had begun; all before it were done."""
    ended_at: list[float]
    """Unix times at which each step's loss was there."""


def read_processes(folder: Path, num_steps: int, *, warm_up: bool = True) -> list[Process]:
    """
    Those that have begun a step.

    :param warm_up: whether the first call of the loss is that of DDP's first step, without effect
    """
    found = []
    for file in folder.iterdir():
        round_, rank, world_size, pid = map(int, file.name.split("-"))
        lines = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if warm_up:
            lines = lines[2:]
        steps = [round(line["progress"] * num_steps) for line in lines if "progress" in line]
        if steps:
            begun = steps[-1] + ("begins" in lines[-1])
            ended_at = [line["at"] for line in lines if "progress" in line]
            found.append(
                Process(round=round_, rank=rank, world_size=world_size, pid=pid, steps=steps, begun=begun,
                        ended_at=ended_at)
            )  # fmt: skip
    return sorted(found, key=lambda process: (process.round, process.rank))


def steps_redone(processes: list[Process]) -> list[int]:
    """At each restart, how many of the steps that some rank had done were done again."""
    rounds = sorted({process.round for process in processes})
    redone = []
    for before, after in itertools.pairwise(rounds):
        furthest = max(process.begun for process in processes if process.round <= before)
        first = min(process.steps[0] for process in processes if process.round == after)
        redone.append(max(0, furthest - first))
    return redone
