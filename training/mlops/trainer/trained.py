"""The result of a training: the weights of its best epoch that are whole, and how it came to them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlops.trainer.checkpoint.planning import CheckpointError
from mlops.trainer.checkpoint.weights import serialise
from mlops.trainer.job import TrainingJob
from mlops.trainer.state import TrainingState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The result of a training."""

    weights: bytes
    """The model as its learner stores it; of torch the state dict, whole and on the CPU."""
    history: Sequence[Mapping[str, Any]]
    epoch: int
    """Epoch that the weights are from."""
    metrics: Mapping[str, float]
    world_size: int
    trail: Mapping[str, Any] | None = None
    """Record of the training's steps, see :class:`mlops.trainer.fingerprint.StepFingerprint`; None if the loop was
    not ours."""
    lost_best: Mapping[str, Any] | None = None
    """A better epoch, whose weights are lost; None if these weights are the best."""


def best_of(job: TrainingJob, state: TrainingState, *, place: str, rank: int) -> Trained | None:
    """
    Load the best weights that are whole. Called by all ranks, for all look whether a checkpoint is whole.

    :param place: of the training, for messages
    :return: on rank 0; None on the others
    :raises CheckpointError: where no epoch's weights are whole
    """
    saved = job.checkpoints.choose_weights([epoch.step for epoch in state.ranking])
    if saved is None:
        raise CheckpointError(
            f"no weights of the {len(state.history)} epochs are whole in {place}/checkpoints, not even of the "
            "last one; a retry goes on from the newest checkpoint that is"
        )
    if rank != 0:
        return None
    best = next(epoch for epoch in state.history if epoch.step == saved.step)
    lost = None if best is state.best else state.best
    if lost is not None:
        logger.warning(
            "the weights of epoch %d, the best with %s %.4f, are lost in both copies: publishing epoch %d, with %.4f",
            *(lost.epoch, job.validation.metric.name, lost.validation_metric, best.epoch, best.validation_metric),
        )
    return Trained(
        weights=serialise(job.checkpoints.load_whole(saved, "model")["model"]),
        history=[asdict(epoch) for epoch in state.history],
        epoch=best.epoch,
        metrics={job.validation.metric.name: best.validation_metric, **best.losses},
        world_size=saved.world_size,
        trail=state.trail.document(),
        lost_best=None if lost is None else asdict(lost),
    )
