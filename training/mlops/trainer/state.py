"""How far a training is: all that a checkpoint holds beside tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from mlops.contract.sections.train import EarlyStopping
from mlops.trainer.fingerprint import StepFingerprint

LOSS_UNITS: Final = 1 << 24
"""Units of a loss of 1. Sums of whole units depend neither on their order nor on where a checkpoint cut them."""
SPENT: Final = "spent_seconds"
"""In a checkpoint's document: see :data:`mlops.contract.progress.TRAINING_SECONDS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """What one epoch came to; goes to MLflow and into the history."""

    epoch: int
    """From 1."""
    step: int
    """Optimizer steps since the start."""
    train_loss: float | None
    """Mean over the epoch's samples, each as the model was when it saw it; None: a learner that cannot tell."""
    validation_metric: float
    further_metrics: Mapping[str, float]
    """Values of ``train.metrics`` on the validation split, by name."""
    seconds: float
    samples_per_second: float
    finished_at: float
    """Unix time."""

    @property
    def losses(self) -> Mapping[str, float]:
        """The loss as a metric; empty where it is not known."""
        return {} if self.train_loss is None else {"train_loss": self.train_loss}


@dataclass(kw_only=True, slots=True)
class TrainingState:
    """Changed by the loop alone, and the same on every rank, but for the loss."""

    steps_per_epoch: int
    direction: int
    """1 where a higher value of the metric is better, -1 where a lower one is."""
    step: int = 0
    """Optimizer steps done since the start."""
    loss_units: int = 0
    """Loss units of this epoch's samples that this rank has seen; see :data:`LOSS_UNITS`."""
    seconds: float = 0.0
    """Seconds that this epoch took before the last resume."""
    history: list[Epoch] = field(default_factory=list)
    pruned: bool = False
    """Ended early by the pruner of a search."""
    trail: StepFingerprint = field(default_factory=StepFingerprint)
    lost: set[int] = field(default_factory=set)
    """Steps of epochs better than :attr:`kept`, whose weights are nowhere."""

    @property
    def epoch(self) -> int:
        """The epoch that the next step belongs to, from 1."""
        return len(self.history) + 1

    @property
    def step_in_epoch(self) -> int:
        return self.step - len(self.history) * self.steps_per_epoch

    @property
    def best(self) -> Epoch | None:
        """The epoch of the best validation metric; the first of equals."""
        return next(iter(self.ranking), None)

    @property
    def ranking(self) -> list[Epoch]:
        """The epochs, from the best to the worst; of equals the first is better."""
        return sorted(self.history, key=lambda epoch: -self.direction * epoch.validation_metric)

    @property
    def kept(self) -> Epoch | None:
        """The best epoch of those whose weights are kept."""
        return next((epoch for epoch in self.ranking if epoch.step not in self.lost), None)

    def keep_best(self, step: int | None) -> Epoch | None:
        """
        Note which weights are there.

        :param step: of the best ones, or None: there are none
        :return: the best epoch, where its weights are lost
        """
        steps = [epoch.step for epoch in self.ranking]
        self.lost = set(steps[: steps.index(step)] if step is not None else steps)
        return self.best if self.lost else None

    def finished(self, epochs: int, early_stopping: EarlyStopping | None) -> bool:
        return (
            self.pruned or len(self.history) >= epochs or (early_stopping is not None and self._stalled(early_stopping))
        )

    def _stalled(self, early_stopping: EarlyStopping) -> bool:
        best, since = float("-inf"), 0
        for epoch in self.history:
            value = self.direction * epoch.validation_metric
            if value > best + early_stopping.min_improvement:
                best, since = value, 0
            else:
                since += 1
        return since >= early_stopping.patience

    def document(self, loss_units: int, seconds: float) -> dict[str, Any]:
        """
        JSON for a checkpoint.

        :param loss_units: of all ranks together
        """
        return {
            "epoch": self.epoch,
            "step": self.step,
            "steps_per_epoch": self.steps_per_epoch,
            "loss_units": loss_units,
            "seconds": seconds,
            "history": [asdict(epoch) for epoch in self.history],
            "pruned": self.pruned,
            "trail": self.trail.document(),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any], *, direction: int, leads: bool) -> Self:
        """:param leads: whether this is the data-parallel rank that goes on with the sum of the losses"""
        return cls(
            steps_per_epoch=document["steps_per_epoch"],
            direction=direction,
            step=document["step"],
            loss_units=document["loss_units"] if leads else 0,
            seconds=document["seconds"],
            history=[Epoch(**epoch) for epoch in document["history"]],
            pruned=document["pruned"],
            trail=StepFingerprint.of(document["trail"]),
        )
