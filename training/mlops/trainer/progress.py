"""How a training goes: what the ranks tell each other about once a second, and lines for the task log."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Final

from mlops.contract.durations import duration
from mlops.trainer.rank_sync import RankReport
from mlops.trainer.state import LOSS_UNITS, TrainingState

LINE_SECONDS: Final = 5.0
_MICROSECONDS: Final = 1_000_000

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class StepWindow:
    """This rank's steps since the ranks last talked."""

    started: float = field(default_factory=time.monotonic)
    num_steps: int = 0
    num_samples: int = 0
    """Number of samples of the global batches."""
    loss_units: int = 0
    """Loss units of this rank's samples."""
    waited: float = 0.0
    """Seconds for data."""
    norm: float = 0.0
    """Norm of the last gradient, before clipping."""

    def add(self, *, num_samples: int, loss_units: int, norm: float) -> None:
        self.num_steps += 1
        self.num_samples += num_samples
        self.loss_units += loss_units
        self.norm = norm

    def told(self) -> RankReport:
        """For the other ranks."""
        return RankReport(loss_units=self.loss_units, waited_microseconds=int(self.waited * _MICROSECONDS))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetrics:
    """All ranks' steps between two talks."""

    step: int
    """Optimizer steps since the start."""
    unix_time: float
    loss: float
    """Mean over the samples."""
    gradient_norm: float
    learning_rate: float
    samples_per_second: float
    flops_per_second: float | None
    """FLOP/s of the model; None where it is spread over processes, and not counted."""
    data_latency_ms: float
    """Milliseconds that the slowest rank waited for a batch, on average."""
    training_seconds: float
    """See :data:`mlops.contract.progress.TRAINING_SECONDS`."""

    @classmethod
    def of(
        cls,
        window: StepWindow,
        told: RankReport,
        copies: int,
        step: int,
        learning_rate: float,
        flops_per_sample: float | None,
        training_seconds: float,
    ) -> StepMetrics:
        """
        :param told: by all ranks together, see :meth:`StepWindow.told`
        :param copies: ranks that say the same, for they hold parts of one replica
        """
        samples_per_second = window.num_samples / (time.monotonic() - window.started)
        return cls(
            step=step,
            unix_time=time.time(),
            loss=told.loss_units / copies / LOSS_UNITS / window.num_samples,
            gradient_norm=window.norm,
            learning_rate=learning_rate,
            samples_per_second=samples_per_second,
            flops_per_second=None if flops_per_sample is None else samples_per_second * flops_per_sample,
            data_latency_ms=told.waited_microseconds / _MICROSECONDS * 1000 / window.num_steps,
            training_seconds=training_seconds,
        )


class Spent:
    """
    Measures :data:`mlops.contract.progress.TRAINING_SECONDS`, from when it is made.

    :param before: of what a checkpoint holds; what was done after that counts for nothing
    """

    def __init__(self, before: float = 0.0) -> None:
        self._since = time.monotonic() - before

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since


class Progress:
    """
    A line every few seconds.

    :param num_steps: of the whole training
    """

    def __init__(self, *, epochs: int, steps_per_epoch: int) -> None:
        self._epochs, self._steps_per_epoch = epochs, steps_per_epoch
        self._last_line = time.monotonic()
        self._since: tuple[float, int] | None = None

    def show(self, step_metrics: StepMetrics, state: TrainingState) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = (now, step_metrics.step)
        if now - self._last_line < LINE_SECONDS or step_metrics.step == self._since[1]:
            return
        self._last_line = now
        seconds_per_step = (now - self._since[0]) / (step_metrics.step - self._since[1])
        remaining = (self._epochs * self._steps_per_epoch - step_metrics.step) * seconds_per_step
        logger.info(
            "epoch %d/%d  step %d/%d  loss %.4f  %.0f samples/s  about %s left",
            *(state.epoch, self._epochs, state.step_in_epoch, self._steps_per_epoch),
            *(step_metrics.loss, step_metrics.samples_per_second, duration(remaining)),
        )
