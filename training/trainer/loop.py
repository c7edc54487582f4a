"""The training loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mlops_provider.step import INTERRUPTED, BadDataError
from training.data.loader import Batch, Loader, Step
from training.store import StoreError
from training.trainer.agreement import Agreement, Sigterm
from training.trainer.checkpoint.checkpoints import Checkpoints
from training.trainer.checkpoint.committed import Saved, read_listing
from training.trainer.config import Loss, TrainConfig
from training.trainer.flops import flops_per_sample
from training.trainer.health import REST, Heartbeat
from training.trainer.layouts import Layout
from training.trainer.layouts.state import load_model_state, load_optimizer_state, model_state, optimizer_state
from training.trainer.metrics import direction
from training.trainer.parallel import Gang
from training.trainer.progress import Moment, Progress, Window
from training.trainer.schedule import LearningRate
from training.trainer.state import LOSS_UNITS, Epoch, TrainingState
from training.trainer.validation import Validation

Curriculum = Callable[[Batch, float], Tensor]
GivesUp = Callable[[TrainingState], bool]

logger = logging.getLogger(__name__)


class NonFiniteLossError(BadDataError):
    """The loss or a gradient is NaN or infinite. The last whole checkpoint stays; trying again gives the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """All that the loop works on."""

    config: TrainConfig
    layout: Layout
    optimizer: Optimizer
    loss: Loss
    curriculum: Curriculum | None
    loader: Loader
    validation: Validation
    checkpoints: Checkpoints
    heartbeat: Heartbeat


class Curves(Protocol):
    """Where rank 0 tells how the training goes."""

    def moment(self, moment: Moment) -> None:
        """About once a second."""

    def epoch(self, epoch: Epoch) -> None:
        """After each epoch."""


class Trainer:
    """
    Trains, or goes on from the newest whole checkpoint; the result is the same to the bit either way.

    Made and run by all ranks; curves are rank 0's, which also says after each epoch whether all give up. The random
    state of a step is a pure function of (seed, step, seat), so that a checkpoint need not hold any.
    """

    def __init__(
        self, job: TrainingJob, gang: Gang, curves: Curves | None = None, gives_up: GivesUp | None = None
    ) -> None:
        config = job.config
        self._job, self._gang, self._config, self._curves = job, gang, config, curves
        self._gives_up = gives_up
        self._state = TrainingState(steps_per_epoch=job.loader.num_steps, direction=direction(config.metric))
        self._num_steps = config.epochs * job.loader.num_steps
        job.layout.adopt(job.optimizer)
        self._rate = LearningRate(config.schedule, job.optimizer, self._num_steps)
        self._progress = Progress(epochs=config.epochs, steps_per_epoch=job.loader.num_steps)
        self._window = Window()
        self._learning_rate = 0.0
        self._flops_per_sample: float | None = None
        self._prepared = False
        self._epoch_started = 0.0

    def train(self) -> TrainingState:
        """
        :return: the same on every rank; the last checkpoint is durable
        :raises NonFiniteLossError: naming epoch, step and samples
        :raises SystemExit: after SIGTERM, when a checkpoint is durable
        """
        job, config = self._job, self._config
        sigterm = Sigterm()
        with sigterm.noted():
            batch = next(iter(job.loader.epoch(1))).batches[0].to(self._gang.device)
            job.layout.warm_up(batch, self._loss)
            if self._gang.mesh is None:
                self._flops_per_sample = flops_per_sample(job.layout.model, batch)
            self._resume()
            state = self._state
            agreement = Agreement(self._gang, config.checkpoint, sigterm, state.step)
            while not state.finished(config.epochs, config.early_stopping):
                self._train_epoch(state, agreement)
                self._end_epoch(state)
            job.heartbeat.beat(state.step, REST)
            job.checkpoints.wait()
        return state

    def _train_epoch(self, state: TrainingState, agreement: Agreement) -> None:
        job = self._job
        self._epoch_started = time.monotonic() - state.seconds
        steps = job.loader.epoch(state.epoch, start=state.step_in_epoch, last=state.epoch == self._config.epochs)
        for step in self._timed(steps):
            job.heartbeat.beat(state.step, "step")
            self._train_step(state, step)
            if not self._prepared and job.optimizer.state:
                # Not before a first step (in fp16 some overflow) has given the optimizer its state.
                job.checkpoints.prepare(self._tensors())
                self._prepared = True
            decision = agreement.after(state.step, self._window.said() if agreement.due(state.step) else ())
            if decision.told is not None:
                self._tell(decision.told)
            if decision.end:
                self._save(wait=True)
                job.checkpoints.wait()
                logger.info("told to end; the checkpoint of step %d is saved", state.step)
                raise SystemExit(INTERRUPTED)
            if decision.save and state.step_in_epoch < job.loader.num_steps:
                self._save()

    def _train_step(self, state: TrainingState, step: Step) -> None:
        job = self._job
        self._learning_rate = self._rate.set(state.step)
        batches = [batch.to(self._gang.device) for batch in step.batches]
        job.layout.seed(self._config.seed, state.step)
        losses = job.layout.step(batches, self._loss, 1 / step.num_samples)
        norm = float(job.layout.clip(self._config.clip_norm))
        totals = [float(loss.sum(dtype=torch.float64)) for loss in losses]
        if not (math.isfinite(norm) or job.layout.may_overflow) or not all(map(math.isfinite, totals)):
            self._fail(step, totals, norm)
        job.layout.update(job.optimizer)
        units = sum(round(total * LOSS_UNITS) for total in totals)
        state.step += 1
        state.trail.add(state.step, norm)
        state.loss_units += units
        self._window.add(num_samples=step.num_samples, loss_units=units, norm=norm)

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """``[B]``"""
        losses = self._job.loss(model, batch)
        if self._job.curriculum is None:
            return losses
        return losses * self._job.curriculum(batch, self._state.step / self._num_steps)

    def _end_epoch(self, state: TrainingState) -> None:
        job, gang = self._job, self._gang
        metric, further = job.validation.measure(job.layout, gang, lambda: job.heartbeat.beat(state.step, "validation"))
        train_loss = gang.sum(state.loss_units) / LOSS_UNITS / job.loader.num_samples
        # Clocks differ: the first rank's counts.
        seconds, now = gang.from_leader((time.monotonic() - self._epoch_started, time.time()))
        record = Epoch(
            epoch=state.epoch,
            step=state.step,
            train_loss=train_loss,
            validation_metric=metric,
            further_metrics=further,
            seconds=seconds,
            samples_per_second=job.loader.num_samples / seconds,
            finished_at=now,
        )
        state.history.append(record)
        state.loss_units, state.seconds = 0, 0.0
        if self._gives_up is not None:
            # Before the save: what was not told when this process is killed is done again, and told then.
            state.given_up = gang.from_leader(gang.leads and self._gives_up(state))
        best = state.best is record
        # The best weights and the end must not be lost; any other save gives way to the one under way.
        self._save(wait=best or state.finished(self._config.epochs, self._config.early_stopping))
        if gang.leads:
            logger.info(
                "epoch %d/%d done: loss %.4f, validation %s %.4f%s, %.0f samples/s",
                *(record.epoch, self._config.epochs, train_loss, self._config.metric, metric),
                *(" (best)" if best else "", record.samples_per_second),
            )
        if self._curves is not None:
            self._curves.epoch(record)

    def _save(self, *, wait: bool = False) -> None:
        job, state = self._job, self._state
        # A slow store is no hang.
        job.heartbeat.beat(state.step, REST if wait else "checkpoint")
        within_epoch = state.step_in_epoch > 0
        loss_units = self._gang.sum(state.loss_units)
        seconds = time.monotonic() - self._epoch_started if within_epoch else 0.0
        best_step = None if state.best is None else state.best.step
        document = state.document(loss_units, seconds)
        job.checkpoints.save(state.step, self._tensors(), document, best_step=best_step, wait=wait)

    def _tensors(self) -> dict[str, Any]:
        job = self._job
        tensors = {
            "model": model_state(job.layout),
            "optimizer": optimizer_state(job.layout, job.optimizer),
        }
        if job.layout.scaler is not None:
            tensors["scaler"] = job.layout.scaler.state_dict()
        return tensors

    def _resume(self) -> None:
        job, gang = self._job, self._gang
        saved = job.checkpoints.newest()
        if saved is None:
            return
        tensors = self._tensors()
        job.checkpoints.load(saved, tensors)
        load_model_state(job.layout, tensors["model"])
        load_optimizer_state(job.layout, job.optimizer, tensors["optimizer"])
        if job.layout.scaler is not None:
            job.layout.scaler.load_state_dict(tensors["scaler"])
        self._state = TrainingState.of(saved.meta, direction=self._state.direction, leads=gang.data_rank == 0)
        if gang.leads:
            logger.info(
                "going on after step %d of epoch %d, from %s",
                *(self._state.step_in_epoch, self._state.epoch, saved.folder),
            )

    def _tell(self, told: Sequence[Sequence[int]]) -> None:
        if self._gang.leads:
            moment = Moment.of(
                self._window, told, self._gang.copies, self._state.step, self._learning_rate, self._flops_per_sample
            )
            self._progress.show(moment, self._state)
            if self._curves is not None:
                self._curves.moment(moment)
        self._window = Window()

    def _timed(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Count the time for which this rank waits for data."""
        while True:
            asked = time.perf_counter()
            step = next(steps, None)
            self._window.waited += time.perf_counter() - asked
            if step is None:
                return
            yield step

    def _fail(self, step: Step, totals: list[float], norm: float) -> NoReturn:
        """:raises NonFiniteLossError: with the samples of the batches whose loss is not finite, wherever they are"""
        state = self._state
        wrong = [
            int(sample)
            # Those that only fill up a rank's logical shards have no loss.
            for batch, total in zip(step.batches, totals, strict=False)
            if not math.isfinite(total)
            for sample in batch.samples[batch.weights.numpy() > 0]
        ]
        if not math.isfinite(norm) and not self._job.layout.may_overflow:
            # Then all ranks are here, and only some of them may know the samples.
            found = self._gang.from_leader(self._gang.gather_objects((wrong, totals)))
            wrong = sorted({sample for samples, _ in found or () for sample in samples})
        what = "loss" if wrong else "gradient"
        samples = wrong or sorted(int(sample) for batch in step.batches for sample in batch.samples)
        shown = ", ".join(map(str, samples[:8])) + (", ..." if len(samples) > 8 else "")
        saved = self._last_listed()
        raise NonFiniteLossError(
            f"the {what} is not finite in epoch {state.epoch}, step {state.step_in_epoch + 1}, on training samples "
            f"{shown}: look for extreme or missing features there, or lower train.learning_rate; "
            + (f"the last good checkpoint is that of step {saved.step}" if saved else "no checkpoint was found"),
            epoch=state.epoch,
            step=state.step_in_epoch + 1,
            samples=samples,
            checkpoint=None if saved is None else saved.folder,
        )

    def _last_listed(self) -> Saved | None:
        """By this rank alone, as far as the store can be read: what is to be said must not fail with it."""
        try:
            complete = read_listing(self._job.checkpoints.store, self._job.checkpoints.place).complete
        except StoreError as error:
            logger.warning("%s", error)
            return None
        return complete[-1] if complete else None
