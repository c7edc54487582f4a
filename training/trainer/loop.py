"""The training loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mlops_provider.refs import Artifact
from mlops_provider.step import BadConfigError, BadDataError
from training.data.loader import Batch, Loader
from training.trainer.checkpoint import Checkpoints, serialise
from training.trainer.config import Loss, TrainConfig
from training.trainer.metrics import measure
from training.trainer.objectives import score
from training.trainer.parallel import Gang, seed_everything
from training.trainer.progress import Progress

if TYPE_CHECKING:
    from training.data.feature_table import FeatureTable

logger = logging.getLogger(__name__)


class NonFiniteLossError(BadDataError):
    """The loss or a gradient is NaN or infinite. The last whole checkpoint stays; trying again gives the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """What one epoch came to; goes to MLflow and into the history."""

    epoch: int
    step: int
    """Optimizer steps since the start."""
    train_loss: float
    """Mean over the epoch's samples, each as the model was when it saw it."""
    validation_metric: float
    seconds: float
    samples_per_second: float
    finished_at: float
    """Unix time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The epoch of the highest validation metric; the first of equals."""

    epoch: int
    metric: float
    weights: Artifact


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """All that the loop works on."""

    config: TrainConfig
    model: nn.Module
    loss: Loss
    loader: Loader
    validation: FeatureTable
    checkpoints: Checkpoints
    on_epoch: Callable[[Epoch], None]
    """Called on rank 0 after the epoch's checkpoint is safe."""


def fit(job: TrainingJob, gang: Gang) -> tuple[list[Epoch], Best]:
    """
    Train, or go on from the newest whole checkpoint; the result is the same to the bit either way.

    Called by all ranks. Every epoch's random state is a pure function of (seed, epoch, rank), so that a checkpoint
    between two epochs need not hold any.

    :return: the history and the best epoch; the same on every rank
    :raises NonFiniteLossError: naming epoch, step and samples
    """
    config = job.config
    model = job.model.to(gang.device)
    parallel = gang.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    _settle_buckets(parallel, model, job, gang)
    history, best = _resume(job, gang, model, optimizer)
    progress = Progress(epochs=config.epochs, steps_per_epoch=job.loader.num_steps, speaks=gang.leads)

    for epoch in range(len(history) + 1, config.epochs + 1):
        seed_everything(config.seed, epoch, gang.rank)
        started = time.monotonic()
        loss_sum = 0.0
        parallel.train()
        for step, (host_batch, global_count) in enumerate(job.loader.epoch(epoch), start=1):
            batch = host_batch.to(gang.device)
            total = _sample_losses(job.loss, parallel, batch).sum()
            local = _finite(total, epoch, step, batch)
            optimizer.zero_grad(set_to_none=True)
            # DDP averages over ranks; this scale makes that the mean over the global batch.
            (total * (gang.world_size / global_count)).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
            _finite(norm, epoch, step, batch, what="gradient")
            optimizer.step()
            loss_sum += local
            progress.step(epoch, step, local / max(len(batch.samples), 1), global_count)
        loss_sum = gang.sum(loss_sum)

        if gang.leads:
            seconds = time.monotonic() - started
            record = Epoch(
                epoch=epoch,
                step=epoch * job.loader.num_steps,
                train_loss=loss_sum / job.loader.num_samples,
                validation_metric=_validate(job, model, gang),
                seconds=seconds,
                samples_per_second=job.loader.num_samples / seconds,
                finished_at=time.time(),
            )
            history.append(record)
            best = _keep_best(job, model, record, best)
            job.checkpoints.save(epoch, _state(model, optimizer, history, best))
            logger.info(
                "epoch %d/%d done: loss %.4f, validation %s %.4f%s, %.0f samples/s",
                *(epoch, config.epochs, record.train_loss, config.metric, record.validation_metric),
                *(" (best)" if best.epoch == epoch else "", record.samples_per_second),
            )
            job.on_epoch(record)
        history, best = gang.from_leader((history, best))

    assert best is not None, "epochs >= 1"
    return history, best


def _sample_losses(loss: Loss, model: nn.Module, batch: Batch) -> Tensor:
    """``[B]``; the stand-in of a rank without samples weighs nothing."""
    losses = loss(model, batch)
    if not isinstance(losses, Tensor):
        raise BadConfigError(f"train.loss must return a tensor of one value per sample, got {type(losses).__name__}")
    if losses.shape != batch.weights.shape:
        raise BadConfigError(
            f"train.loss must return one value per sample, {list(batch.weights.shape)}, got {list(losses.shape)}"
        )
    return losses * batch.weights


def _finite(value: Tensor, epoch: int, step: int, batch: Batch, what: str = "loss") -> float:
    number = value.item()
    if not math.isfinite(number):
        samples = ", ".join(map(str, batch.samples[:8])) + (", ..." if len(batch.samples) > 8 else "")
        raise NonFiniteLossError(
            f"the {what} is {number} in epoch {epoch}, step {step}, on training samples {samples}: "
            "look for extreme or missing features there, or lower train.learning_rate",
            epoch=epoch,
            step=step,
            samples=batch.samples.tolist(),
        )
    return number


def _settle_buckets(parallel: nn.Module, model: nn.Module, job: TrainingJob, gang: Gang) -> None:
    # After its first iteration DDP sorts gradients into other buckets, which with three or more ranks sums them in
    # another order. A first iteration without effect lets a resumed run start with the same buckets as one that
    # was never interrupted.
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seed_everything(job.config.seed, 0, gang.rank)
    parallel.train()
    batch, _ = next(job.loader.epoch(0))
    _sample_losses(job.loss, parallel, batch.to(gang.device)).sum().backward()
    model.zero_grad(set_to_none=True)
    model.load_state_dict(before)


def _validate(job: TrainingJob, model: nn.Module, gang: Gang) -> float:
    scores = score(model, job.validation, gang.device, grouped=job.loader.grouped)
    return measure(job.config.metric, job.validation.labels, scores, job.validation.offsets)


def _keep_best(job: TrainingJob, model: nn.Module, record: Epoch, best: Best | None) -> Best:
    if best is not None and record.validation_metric <= best.metric:
        return best
    checkpoints = job.checkpoints
    weights = checkpoints.store.put_artifact(checkpoints.place, "weights.pt", serialise(model.state_dict()))
    return Best(epoch=record.epoch, metric=record.validation_metric, weights=weights)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, history: list[Epoch], best: Best) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": [asdict(record) for record in history],
        "best": asdict(best),
    }


def _resume(
    job: TrainingJob, gang: Gang, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[list[Epoch], Best | None]:
    # One rank looks, so that all agree, whatever another attempt writes meanwhile.
    artifact = gang.from_leader(job.checkpoints.newest() if gang.leads else None)
    if artifact is None:
        return [], None
    state = job.checkpoints.load(artifact, gang.device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    history = [Epoch(**record) for record in state["history"]]
    weights = Artifact(**state["best"].pop("weights"))
    if gang.leads:
        logger.info("going on after epoch %d of %d, from %s", len(history), job.config.epochs, artifact.key)
    return history, Best(**state["best"], weights=weights)
