"""
The same training by five loops: AdamW, fused; gradients clipped to a norm of 1; averaged over processes.

The baselines index tensors that lie in memory and move nothing else than what their loop needs: loggers, progress bars,
checkpoints and samplers are off. Ours runs as it does in production, from memory-mapped shards, deterministic, with
its own checks; see ``ours.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import lightning
import torch
from accelerate import Accelerator
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.training.programs.workloads import Stopwatch, Workload

LEARNING_RATE: Final = 1e-3
WEIGHT_DECAY: Final = 0.01
CLIP_NORM: Final = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One rank's part of a training."""

    workload: Workload
    features: Tensor
    """``[S, ...]``, of all samples."""
    labels: Tensor
    order: Sequence[Tensor]
    """The samples of this rank at each step."""
    world_size: int

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for samples in self.order:
            yield self.features.index_select(0, samples), self.labels.index_select(0, samples)

    def loss(self, watch: Stopwatch, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        watch.tick()
        return self.workload.losses(model, features, labels).mean()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)


def bare(task: Task, watch: Stopwatch) -> nn.Module:
    """What a good engineer writes."""
    module = task.workload.build()
    model = DistributedDataParallel(module) if task.world_size > 1 else module
    optimizer = optimizer_of(module)
    model.train()
    total = torch.zeros(())
    for features, labels in task.batches():
        loss = task.loss(watch, model, features, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), CLIP_NORM)
        optimizer.step()
        total += loss.detach()
    return module


def fabric(task: Task, watch: Stopwatch) -> nn.Module:
    """Lightning Fabric."""
    launched = Fabric(accelerator="cpu", devices=task.world_size, strategy="ddp" if task.world_size > 1 else "auto")
    launched.launch()
    module = task.workload.build()
    model, optimizer = launched.setup(module, optimizer_of(module))
    model.train()
    total = torch.zeros(())
    for features, labels in task.batches():
        loss = task.loss(watch, model, features, labels)
        optimizer.zero_grad(set_to_none=True)
        launched.backward(loss)
        launched.clip_gradients(model, optimizer, max_norm=CLIP_NORM)
        optimizer.step()
        total += loss.detach()
    return module


def accelerate(task: Task, watch: Stopwatch) -> nn.Module:
    """Hugging Face Accelerate."""
    accelerator = Accelerator(cpu=True)
    module = task.workload.build()
    model, optimizer = accelerator.prepare(module, optimizer_of(module))
    model.train()
    total = torch.zeros(())
    for features, labels in task.batches():
        loss = task.loss(watch, model, features, labels)
        optimizer.zero_grad(set_to_none=True)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        total += loss.detach()
    return module


class Lit(lightning.LightningModule):  # type: ignore[misc]  # it ships no types that are installed where this is checked
    def __init__(self, task: Task, watch: Stopwatch) -> None:
        super().__init__()
        self.task, self.watch, self.module = task, watch, task.workload.build()

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return self.task.loss(self.watch, self.module, *batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.module)


class Batches:
    """What the Trainer iterates over: sized, so that it need not guess."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._task.batches()

    def __len__(self) -> int:
        return len(self._task.order)


def lightning_trainer(task: Task, watch: Stopwatch) -> nn.Module:
    """Lightning Trainer."""
    module = Lit(task, watch)
    off: Mapping[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler"),
        False,
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=task.world_size, strategy="ddp" if task.world_size > 1 else "auto", max_epochs=1,
        gradient_clip_val=CLIP_NORM, **off,
    )  # fmt: skip
    trainer.fit(module, Batches(task))
    return module.module


Contender = Callable[[Task, Stopwatch], nn.Module]
BASELINES: Final[Mapping[str, Contender]] = {
    "bare": bare,
    "fabric": fabric,
    "lightning": lightning_trainer,
    "accelerate": accelerate,
}
