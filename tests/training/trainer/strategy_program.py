"""
Trains small models in the layouts that it is told, under torchrun or alone.

``strategy_program.py CASES RESULTS``: a JSON list of :class:`Case` in, ``{name: result}`` of rank 0 out. Beside that,
``stall PARALLEL TOLD`` and ``plan PATH``.
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpt import GPT
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import SequenceParallel
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from mlops.contract.sections.train import Parallel
from mlops.contract.step import StepError
from mlops.data.shards.loader import Batch
from mlops.random_states import seed_everything
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.mesh import device_mesh, resolve
from mlops.trainer.parallel import Ranks, join, leave
from mlops.trainer.state import LOSS_UNITS
from mlops.trainer.strategies import ParallelStrategy, build_strategy
from mlops.trainer.strategies.state_dicts import load_training_state, model_state, state_to_fill, training_state

VOCABULARY, LENGTH, GLOBAL_BATCH = 32, 8, 12


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    model: str = "gpt"
    dropout: float = 0.0
    parallel: dict[str, int] = field(default_factory=dict)
    steps: int = 8
    global_batch: int = GLOBAL_BATCH
    micro_batch: int = 100
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of build_strategy."""
    optimizer: str | None = None
    """Of torch.optim; None: AdamW, fused."""
    warm_up: bool = True
    save: str | None = None
    """Folder for a checkpoint, written after ``save_step``."""
    save_step: int = 3
    load: str | None = None
    first_step: int = 0
    spoil_step: int | None = None
    """The step whose loss overflows on one rank."""
    ragged: bool = False
    """Ranks hold unequal numbers of samples in every other step, padded to unequal lengths."""


def tokens_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch.features)
    losses = functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
    return losses.view(batch.labels.shape).mean(1)


def rows_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Of grouped rows."""
    scores = model(batch.features).squeeze(-1)
    return ((scores - batch.labels) ** 2 * batch.mask).sum(1) / batch.mask.sum(1)


class Normed(nn.Module):
    """Batch norm over all rows of grouped samples, ``[B, D, F]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, rows: Tensor) -> Tensor:
        return self.norm(rows.flatten(0, 1)).view(rows.shape)


class Jitter(nn.Module):
    """Adds a number that it draws from numpy."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows + float(np.random.normal()) if self.training else rows


class Planned(nn.Sequential):
    """With a frozen layer norm in sequence parallel, which each rank computes on all of its input."""

    def tensor_parallel_plan(self) -> dict[str, SequenceParallel]:
        return {"1": SequenceParallel(use_local_output=True)}


def build(case: Case) -> nn.Module:
    seed_everything(1)
    if case.model == "rows frozen":
        return Planned(nn.Linear(5, 16), nn.LayerNorm(16).requires_grad_(False), nn.Linear(16, 1))
    if case.model.startswith("gpt"):
        return GPT(vocabulary=VOCABULARY, length=LENGTH, dropout=case.dropout, tied=case.model == "gpt tied")
    first = {"rows normed": [Normed(16)], "rows jitter": [Jitter()]}.get(case.model, [])
    middle = [layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.Tanh(), nn.Dropout(case.dropout))]
    return nn.Sequential(nn.Linear(5, 16), *first, *middle, nn.Linear(16, 1))


def whole_batch(case: Case, step: int) -> Batch:
    """The global batch of a step."""
    rng = np.random.default_rng([3, step])
    size = case.global_batch - (step % 2 if case.ragged else 0)
    if case.model.startswith("gpt"):
        tokens = torch.from_numpy(rng.integers(0, VOCABULARY // 2, (size, LENGTH + 1)))
        features, labels, mask = tokens[:, :-1], tokens[:, 1:], None
    else:
        lengths = torch.from_numpy(rng.integers(1, 7, size))
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        features = torch.from_numpy(rng.normal(size=(*mask.shape, 5)).astype(np.float32)) * mask[..., None]
        labels = features.sum(-1)
    return Batch(features=features, labels=labels, mask=mask, weights=torch.ones(size), samples=np.arange(size))


def share(case: Case, step: int, ranks: Ranks) -> list[Batch]:
    """The micro batches of a data-parallel rank, filled up with stand-ins."""
    whole = whole_batch(case, step)
    mine = np.arange(ranks.data_rank, len(whole.samples), ranks.data_world_size)
    most = len(mine) if case.ragged else -(-case.global_batch // ranks.data_world_size)
    samples = np.concatenate([mine, np.zeros(most - len(mine), np.int64)])
    weights = (np.arange(most) < len(mine)).astype(np.float32)
    rows = int(whole.mask[samples].sum(1).max()) if case.ragged and whole.mask is not None else None
    return [
        Batch(
            features=whole.features[part, :rows],
            labels=whole.labels[part, :rows],
            mask=None if whole.mask is None else whole.mask[part, :rows],
            weights=torch.from_numpy(weights[first : first + case.micro_batch]),
            samples=part,
        ).to(ranks.device)
        for first in range(0, most, case.micro_batch)
        for part in [samples[first : first + case.micro_batch]]
    ]


def train(case: Case) -> dict[str, Any]:
    ranks = join(Parallel(**case.parallel), timedelta(seconds=60))
    loss = tokens_loss if case.model.startswith("gpt") else rows_loss
    try:
        strategy = build_strategy(build(case), ranks, **case.options)
    except StepError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    optimizer = optimizer_of(case, strategy.model)
    strategy.adopt(optimizer)
    if case.load is not None:
        checkpoints = Checkpoints(store=Store(f"file://{case.load}"), place="layout", ranks=ranks)
        saved = checkpoints.newest()
        assert saved is not None, "the case before has saved it"
        state = state_to_fill(strategy, optimizer, checkpoints.contents(saved))
        checkpoints.load(saved, state)
        load_training_state(strategy, optimizer, state)
    if case.warm_up:
        strategy.warm_up(share(case, 0, ranks)[0], loss)
    result: dict[str, Any] = {"losses": [], "norms": [], "taken": [], "held": 0}

    def watched_loss(model: nn.Module, batch: Batch) -> Tensor:
        if step == case.first_step:  # in each of its micro batches: a look at all objects takes a while
            result["held"] = max(result["held"], gradients_besides(strategy.model))
        return loss(model, batch)

    for step in range(case.first_step, case.first_step + case.steps):
        ranks.seed(5, step)
        scale = 1 / case.global_batch
        if step == case.spoil_step and ranks.rank == ranks.world_size - 1:
            scale *= 1e36
        losses = strategy.step(share(case, step, ranks), watched_loss, scale)
        result["losses"].append(
            ranks.sum(round(float(sum(each.sum() for each in losses)) * LOSS_UNITS)) / LOSS_UNITS / case.global_batch
        )
        result["norms"].append(float(strategy.clip(0.3)))
        scale = strategy.loss_scale
        strategy.update(optimizer)
        result["taken"].append(scale is None or bool(strategy.loss_scale == scale))
        if case.save is not None and step == case.save_step:
            checkpoints = Checkpoints(store=Store(f"file://{case.save}"), place="layout", ranks=ranks)
            checkpoints.save(step, training_state(strategy, optimizer), {}, wait=True)
            checkpoints.wait()
    result["agreed"] = every(ranks, result["norms"]) and every(ranks, result["taken"])
    result["scores"] = scores(strategy, case, ranks)
    result["weights"] = digest(strategy, ranks)
    result["frozen"] = [name for name, each in strategy.model.named_parameters() if not each.requires_grad]
    return result


def gradients_besides(model: nn.Module) -> int:
    """Numbers in gradients of parameters that are not the model's own, such as those that FSDP gathers."""
    own = {id(parameter) for parameter in model.parameters()}
    others = [each for each in gc.get_objects() if type(each) is nn.Parameter and id(each) not in own]
    return sum(each.grad.numel() for each in others if each.grad is not None)


def optimizer_of(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    if case.optimizer is None:
        return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    # Muon takes matrices only.
    return getattr(torch.optim, case.optimizer)([each for each in model.parameters() if each.ndim == 2], lr=0.01)


def every(ranks: Ranks, value: Any) -> bool:
    """Whether all ranks have the same."""
    values = ranks.from_leader(ranks.gather_objects(value))
    return values is not None and len({repr(each) for each in values}) == 1


def scores(strategy: ParallelStrategy, case: Case, ranks: Ranks) -> list[float] | None:
    """The model's first output for each sample of two batches, from the last stage."""
    mine: dict[tuple[int, int], float] = {}
    for step in (98, 99):
        batch = share(case, step, ranks)[0] if case.ragged else whole_batch(case, step)
        with strategy.evaluating():
            output = strategy.forward(batch.to(ranks.device))
        if output is not None:
            assert output.shape[:2] == batch.labels.shape, "the output is not cut to the batch"
            first = output.flatten(1)[:, 0].tolist()
            mine |= {(step, sample): value for sample, value in zip(batch.samples.tolist(), first, strict=True)}
    parts = ranks.gather_objects(mine)
    return None if parts is None else [value for _, value in sorted(ChainMap(*parts).items())]


def digest(strategy: ParallelStrategy, ranks: Ranks) -> str | None:
    """Of the whole model's weights and buffers, on rank 0."""
    parts = {}
    for name, value in model_state(strategy).items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        parts[name] = hashlib.sha256(whole.detach().cpu().numpy().tobytes()).hexdigest()
    found = ranks.gather_objects(parts)
    if found is None:
        return None
    merged = {name: part for parts in found for name, part in parts.items()}
    assert all(merged[name] == part for parts in found for name, part in parts.items()), "copies differ"
    return hashlib.sha256(json.dumps(sorted(merged.items())).encode()).hexdigest()


def stall(parallel: Mapping[str, int], told: Path) -> None:
    """The last rank does not come to a sum; rank 0 tells what became of its wait."""
    ranks = join(Parallel(**parallel), timedelta(seconds=10))  # a rank may start as late as this
    group = None if ranks.mesh is None else ranks.mesh.get_group("tp")
    distributed.barrier(group=group)
    if ranks.leads:
        try:
            distributed.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            told.write_text(str(error))
    else:
        while not told.exists():
            time.sleep(0.05)
    os._exit(0)


def plan(path: Path) -> None:
    """What some of 1,024 ranks hold, by torch's process group that only pretends to talk."""
    model = {"vocabulary": 512, "length": LENGTH, "width": 256, "num_heads": 8}
    ranks = (0, 1, 130, 1023)
    plans: dict[str, Any] = {"ranks": ranks, "names": [name for name, _ in GPT(**model).named_parameters()]}
    # torch remembers groups by name for as long as a process lives, so that each seat takes one of its own.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        shards = [(rank, Parallel(dp_shard=16, tp=8), model) for rank in ranks]
        stages = [(rank, Parallel(pp=4, dp_shard=8, tp=8), model) for rank in range(0, 1024, 256)]
        plans["8 x 16 x 8"] = pool.starmap(seat, shards, chunksize=1)
        plans["4 stages"] = pool.starmap(seat, stages, chunksize=1)
    path.write_text(json.dumps(plans))


def seat(rank: int, parallel: Parallel, model: Mapping[str, Any]) -> dict[str, Any]:
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=1024)
    sizes = resolve(parallel, 1024)
    mesh = device_mesh(sizes, "cpu", timedelta(seconds=60))
    ranks = Ranks(rank=rank, world_size=1024, device=torch.device("cpu"), parallel=sizes, mesh=mesh)
    strategy = build_strategy(GPT(**model), ranks)
    found: dict[str, Any] = {"mesh": list(mesh.shape), "local": local_shapes(model_state(strategy))}
    if sizes.pp == 1:
        strategy.step(share(Case(name="", global_batch=1024), 0, ranks), tokens_loss, 1 / 1024)
        found["gradients"] = local_shapes({name: each.grad for name, each in strategy.model.named_parameters()})
    distributed.destroy_process_group()
    return found


def local_shapes(tensors: Mapping[str, Any]) -> dict[str, list[int]]:
    return {
        name: list((each.to_local() if isinstance(each, DTensor) else each).shape) for name, each in tensors.items()
    }


def main() -> None:
    match sys.argv[1:]:
        case ["stall", parallel, told]:
            stall(json.loads(parallel), Path(told))
        case ["plan", path]:
            plan(Path(path))
        case [cases, results]:
            train_all([Case(**case) for case in json.loads(Path(cases).read_text())], Path(results))


def train_all(cases: Sequence[Case], path: Path) -> None:
    results = {case.name: train(case) for case in cases}
    ranks = join()
    if ranks.leads:
        path.write_text(json.dumps(results))
    if distributed.is_initialized():
        leave(ranks)


if __name__ == "__main__":
    main()
