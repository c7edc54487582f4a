"""``exact_program.py RESULTS``: trains a small model in exact mode by several numbers of processes; digests of it."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from mlops.data.shards.batch import Batch
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.loader import Loader, in_memory
from mlops.random_states import seed_everything
from mlops.trainer.parallel import join
from mlops.trainer.strategies import build_strategy
from mlops.trainer.strategies.losses import sample_losses, weighted_backward

NUM_FEATURES, GLOBAL_BATCH, NUM_SHARDS, NUM_STEPS = 93, 32, 8, 12
State = dict[str, Any]


def loader(rank: int, world_size: int) -> Loader:
    rng = np.random.default_rng(7)
    features = rng.normal(size=(GLOBAL_BATCH * NUM_STEPS - 9, NUM_FEATURES)).astype(np.float32)
    labels = (features[:, 0] > features[:, 1]).astype(np.float32)
    table = FeatureTable(features=features, labels=labels, offsets=np.arange(len(labels) + 1))
    return Loader(
        source=in_memory(table, grouped=False), global_batch=GLOBAL_BATCH, seed=1, rank=rank, world_size=world_size,
        logical_shards=NUM_SHARDS,
    )  # fmt: skip


def build() -> nn.Module:
    seed_everything(3)
    first, last = nn.Linear(NUM_FEATURES, 64), nn.Linear(64, 1)
    return nn.Sequential(first, nn.GELU(), nn.Dropout(0.1), last, nn.Flatten(0))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return functional.binary_cross_entropy_with_logits(model(batch.features), batch.labels, reduction="none")


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def digest(model: nn.Module) -> str:
    whole = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(whole).hexdigest()


def seat(rank: int, world_size: int, folder: str, start: int, stop: int) -> None:
    """Steps ``start`` to ``stop``, from and to a checkpoint in the folder; rank 0 writes it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    torch.set_num_threads(1)
    if world_size > 1:
        place = f"file://{folder}/meeting-{start}"
        distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=world_size)
    ranks = join()
    strategy = build_strategy(build(), ranks, logical_shards=NUM_SHARDS)
    optimizer = optimizer_of(strategy.model)
    checkpoint = Path(folder, "checkpoint.pt")
    if start:
        saved: State = torch.load(checkpoint)
        strategy.model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for step in loader(rank, world_size).epoch(1, start):
        if step.index == stop:
            break
        for batch in step.batches:
            assert not any(each.data_ptr() % 64 for each in (batch.features, batch.labels, batch.weights))
        strategy.seed(5, step.index)
        strategy.step(step.batches, loss, 1 / step.num_samples)
        strategy.clip(0.3)
        strategy.update(optimizer)
    if ranks.leads:
        torch.save({"model": strategy.model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
        Path(folder, "digest").write_text(digest(strategy.model))


def naive(path: str) -> None:
    """As exact mode is defined: gradients of the logical shards, added up in pairs, clipped, and stepped."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = build()
    optimizer = optimizer_of(model)
    parameters = list(model.parameters())
    for step in loader(0, 1).epoch(1):
        sums = []
        for shard, batch in zip(step.shards, step.batches, strict=True):
            seed_everything(5, step.index, shard)
            model.zero_grad()
            if batch.weights.any():
                weighted_backward(sample_losses(loss, model, batch), batch, 1 / step.num_samples)
            sums.append([torch.zeros_like(each) if each.grad is None else each.grad for each in parameters])
        while len(sums) > 1:
            sums = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(sums[::2], sums[1::2], strict=True)]
        for parameter, gradient in zip(parameters, sums[0], strict=True):
            parameter.grad = gradient
        norm = torch.nn.utils.get_total_norm(sums[0])
        torch._foreach_mul_(sums[0], (0.3 / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()
    Path(path).write_text(digest(model))


def run(name: str, *phases: tuple[int, int, int]) -> str:
    """:param phases: processes, first step, and the step before which they stop"""
    with tempfile.TemporaryDirectory() as folder:
        for world_size, start, stop in phases:
            ranks = [forks.Process(target=seat, args=(r, world_size, folder, start, stop)) for r in range(world_size)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            if any(process.exitcode for process in ranks):
                raise SystemExit(f"{name}: {[process.exitcode for process in ranks]}")
        return Path(folder, "digest").read_text()


forks = multiprocessing.get_context("fork")

if __name__ == "__main__":
    join()  # imports in the process that the others are forked from what takes seconds in each
    found = {
        "1": run("1", (1, 0, NUM_STEPS)),
        "2": run("2", (2, 0, NUM_STEPS)),
        "3": run("3", (3, 0, NUM_STEPS)),
        "4": run("4", (4, 0, NUM_STEPS)),
        "2 then 3": run("2 then 3", (2, 0, 5), (3, 5, NUM_STEPS)),
        "4 then 1": run("4 then 1", (4, 0, 7), (1, 7, NUM_STEPS)),
    }
    with tempfile.NamedTemporaryFile() as file:
        process = forks.Process(target=naive, args=(file.name,))
        process.start()
        process.join()
        found["naive"] = Path(file.name).read_text()
    Path(sys.argv[1]).write_text(json.dumps(found))
