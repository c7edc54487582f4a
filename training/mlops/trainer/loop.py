"""The training loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from mlops.contract.checkpoint_listing import start_of
from mlops.contract.checkpoint_markers import Saved
from mlops.contract.resumption import FACTS
from mlops.contract.step import INTERRUPTED, BadDataError
from mlops.data.shards.loader import Batch, Step
from mlops.store_errors import StoreError
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.checkpoint.planning import CheckpointError
from mlops.trainer.checkpoint.tree import Contents
from mlops.trainer.environment import NUM_THREADS, keep_num_threads
from mlops.trainer.flops import flops_per_sample
from mlops.trainer.health import DATA, REST, TALK, VALIDATION, use
from mlops.trainer.interval import SaveInterval
from mlops.trainer.job import TrainingJob
from mlops.trainer.notes import note_resumed
from mlops.trainer.outcome import StepOutcome, TakenStep
from mlops.trainer.parallel import Ranks
from mlops.trainer.progress import Progress, Spent, StepMetrics, StepWindow
from mlops.trainer.rank_sync import RankReport, RankSync, Sigterm
from mlops.trainer.schedule import LearningRate
from mlops.trainer.state import LOSS_UNITS, SPENT, Epoch, TrainingState
from mlops.trainer.strategies.buffers import refuse_other_shapes, saved_shapes
from mlops.trainer.strategies.state_dicts import load_training_state, state_to_fill, training_state

ShouldPrune = Callable[[TrainingState], bool]

logger = logging.getLogger(__name__)

_LAST_SAVE_SECONDS = 10.0
"""A failed training waits so long for the save that is being written: it is the one to go on from."""


class NonFiniteLossError(BadDataError):
    """The loss or a gradient is NaN or infinite. The last whole checkpoint stays; trying again gives the same."""


class Curves(Protocol):
    """Where rank 0 tells how the training goes."""

    def step_metrics(self, step_metrics: StepMetrics) -> None:
        """About once a second."""

    def epoch(self, epoch: Epoch) -> None:
        """After each epoch."""


class Trainer:
    """
    Trains, or goes on from the newest whole checkpoint; the result is the same to the bit either way.

    Made and run by all ranks; curves are rank 0's, which also decides after each epoch whether the training is
    pruned. The random state of a step is a pure function of (seed, step, seat), so that a checkpoint need not hold any.
    """

    def __init__(
        self, job: TrainingJob, ranks: Ranks, curves: Curves | None = None, should_prune: ShouldPrune | None = None
    ) -> None:
        config = job.config
        self._job, self._ranks, self._config, self._curves = job, ranks, config, curves
        self._should_prune = should_prune
        self._state = TrainingState(steps_per_epoch=job.loader.num_steps, direction=job.validation.metric.direction)
        self._num_steps = config.epochs * job.loader.num_steps
        use(job.heartbeat)
        job.strategy.adopt(job.optimizer)
        self._rate = LearningRate(config.schedule, job.optimizer, self._num_steps)
        self._progress = Progress(epochs=config.epochs, steps_per_epoch=job.loader.num_steps)
        self._window = StepWindow()
        self._interval = SaveInterval(60 * config.checkpoint.every_minutes, job.checkpoints)
        self._learning_rate = 0.0
        self._flops_per_sample: dict[int | None, float] = {}  # by the length of sequences
        self._prepared = False
        self._epoch_started = 0.0
        self._unseen: TakenStep | None = None
        self._noted_units = 0
        self._epochs_ended = 0
        self._spent = Spent()
        self._shapes: dict[str, tuple[int, ...]] = {}

    def train(self) -> TrainingState:
        """
        :return: the same on every rank; the last checkpoint is durable
        :raises NonFiniteLossError: naming epoch, step and samples
        :raises SystemExit: after SIGTERM, when a checkpoint is durable
        """
        job, config = self._job, self._config
        sigterm = Sigterm()
        with sigterm.noted():
            first = next(iter(job.loader.epoch(1)))
            batch = first.batches[0].to(self._ranks.device)
            changing = job.strategy.warm_up(batch, self._loss, finds_changing=job.memory.keeps)
            if self._ranks.mesh is None:
                for start in (0.0, *(each.until for each in job.loss.lengths)):
                    read = job.loss.read(batch, start)
                    rows = first.num_rows / first.num_samples * len(read.weights) / len(batch.weights)
                    flops = flops_per_sample(job.strategy.model, read, rows)
                    self._flops_per_sample[job.loss.tokens(start)] = flops
            # After the passes above: what a model makes in its first one is there in each process that resumes it.
            self._shapes = saved_shapes(job.strategy.model)
            self._spent = Spent(self._resume())
            state = self._state
            every_steps = config.checkpoint.every_steps
            rank_sync = RankSync(self._ranks, self._interval, sigterm, state.step, every_steps=every_steps)
            self._epochs_ended = len(state.history)
            guarding = job.memory.guarding(
                job.strategy.model,
                self._snapshot,
                changing=changing,
                step=state.step,
                loss_units=self._ranks.sum(state.loss_units),
            )
            with guarding:
                while not state.finished(config.epochs, config.early_stopping):
                    self._train_epoch(state, rank_sync)
                    self._end_epoch(state)
                    rank_sync.pause()
            job.heartbeat.beat(state.step, REST)
            job.checkpoints.wait()
        return state

    def _train_epoch(self, state: TrainingState, rank_sync: RankSync) -> None:
        job = self._job
        self._epoch_started = time.monotonic() - state.seconds
        steps = job.loader.epoch(state.epoch, start=state.step_in_epoch, last=state.epoch == self._config.epochs)
        for step in self._timed(steps, state):
            try:
                self._train_step(state, step)
            except Exception:
                # On weights that are not finite anything may fail: then the step before says what is wrong. Other ranks
                # may be elsewhere by now.
                self._look(together=False)
                raise
            if not self._prepared and self._ranks.any_stage(bool(job.optimizer.state)):
                # Not before a first step (in fp16 some overflow) has given the optimizer its state.
                job.checkpoints.prepare(self._tensors())
                self._prepared = True
            job.checkpoints.raise_if_ended()
            if rank_sync.due(state.step):
                job.heartbeat.beat(state.step, TALK)
                self._look()
            decision = rank_sync.after(state.step, self._window.told() if rank_sync.due(state.step) else None)
            if decision.told is not None:
                self._tell(decision.told)
            if decision.end:
                self._save(wait=True, announced=True)
                job.checkpoints.wait()
                logger.info("told to end; the checkpoint of step %d is saved", state.step)
                raise SystemExit(INTERRUPTED)
            if decision.save and state.step_in_epoch < job.loader.num_steps:
                self._save()

    def _train_step(self, state: TrainingState, step: Step) -> None:
        job = self._job
        self._learning_rate = self._rate.set(state.step)
        self._noted_units = state.loss_units
        job.strategy.seed(self._config.seed, state.step)
        losses = job.strategy.step(step.batches, self._loss, 1 / step.num_samples)
        job.memory.begin()
        taken = TakenStep(
            step,
            number=state.step + 1,
            epoch=state.epoch,
            step_in_epoch=state.step_in_epoch + 1,
            learning_rate=self._learning_rate,
            losses=losses,
            norm=job.strategy.clip(self._config.clip_norm),
            loss_scale=job.strategy.loss_scale,
        )
        job.strategy.update(job.optimizer)
        state.step += 1
        if job.memory.guards:
            # On the host there is nothing to wait for, and nothing is kept that was not looked at.
            self._unseen = taken
            self._look()
            job.memory.end(state.step, state.loss_units)
            return
        # The step before, while the device works on this one.
        self._look()
        self._unseen = taken

    def _look(self, *, together: bool = True) -> None:
        """
        Look at the numbers of the newest step. Nothing is kept of a state, or said of it, before that.

        :param together: called by all ranks
        :raises NonFiniteLossError: where the step was not sound; weights and optimizer are spoilt by then
        """
        taken, self._unseen = self._unseen, None
        if taken is None:
            return
        outcome = taken.outcome()
        if not outcome.is_sound:
            self._fail(taken, outcome, together=together)
        units = sum(round(total * LOSS_UNITS) for total in outcome.totals)
        self._state.trail.add(taken.number, outcome.norm)
        self._state.loss_units += units
        self._window.add(num_samples=taken.step.num_samples, loss_units=units, norm=outcome.norm)

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """``[B]``"""
        losses = self._job.loss(model, batch, self._state.step / self._num_steps)
        if self._job.memory.guards and isinstance(losses, Tensor):
            # Before the backward pass: with this rank's gradient others may complete the step.
            total = float((losses.detach() * batch.weights).sum(dtype=torch.float64))
            if math.isfinite(total):
                self._noted_units += round(total * LOSS_UNITS)
                self._job.memory.note(self._state.step + 1, self._noted_units)
        return losses

    def _end_epoch(self, state: TrainingState) -> None:
        job, ranks = self._job, self._ranks
        self._look()
        metric, further = job.validation.measure(
            job.strategy,
            ranks,
            lambda: job.heartbeat.beat(state.step, VALIDATION),
            seed=(self._config.seed, state.step),
        )
        train_loss = ranks.sum(state.loss_units) / LOSS_UNITS / job.loader.num_samples
        # Clocks differ: the first rank's counts.
        seconds, now = ranks.from_leader((time.monotonic() - self._epoch_started, time.time()))
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
        if self._should_prune is not None:
            # Before the save: an epoch that a killed process had not reported is done again, and reported then.
            state.pruned = ranks.from_leader(ranks.leads and self._should_prune(state))
        best = state.kept is record
        # The best weights and the end must not be lost; any other save gives way to the one under way.
        self._save(wait=best or state.finished(self._config.epochs, self._config.early_stopping))
        if best and job.memory.guards:
            # A state that is kept does not hold the best weights: those must be durable before.
            with suppress(CheckpointError):
                job.checkpoints.wait()
        self._epochs_ended = len(state.history)
        if ranks.leads:
            logger.info(
                "epoch %d/%d done: loss %.4f, validation %s %.4f%s, %.0f samples/s",
                *(record.epoch, self._config.epochs, train_loss, job.validation.metric.name, metric),
                *(" (best)" if best else "", record.samples_per_second),
            )
        if self._curves is not None:
            self._curves.epoch(record)

    def _save(self, *, wait: bool = False, announced: bool = False) -> None:
        job, state = self._job, self._state
        self._look()
        refuse_other_shapes(job.strategy.model, self._shapes)
        # A slow store is no hang.
        job.heartbeat.beat(state.step, REST if wait else "checkpoint")
        within_epoch = state.step_in_epoch > 0
        loss_units = self._ranks.sum(state.loss_units)
        seconds = time.monotonic() - self._epoch_started if within_epoch else 0.0
        best_step = None if state.kept is None else state.kept.step
        document = state.document(loss_units, seconds)
        document["interval"] = self._interval.document(announced=announced)
        document[SPENT], document[NUM_THREADS] = self._spent.seconds, torch.get_num_threads()
        document[FACTS] = dict(job.facts)
        begun = job.checkpoints.save(state.step, self._tensors(), document, best_step=best_step, wait=wait)
        self._interval.saved(time.monotonic(), begun=begun)

    def _tensors(self) -> dict[str, Any]:
        return training_state(self._job.strategy, self._job.optimizer)

    def _snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What :meth:`_save` saves. The sums of losses are noted step by step."""
        document = self._state.document(0, time.monotonic() - self._epoch_started)
        # One that is just being ended is ended again.
        if len(document["history"]) > self._epochs_ended:
            document |= {"history": document["history"][: self._epochs_ended], "pruned": False}
        document["interval"] = self._interval.document(announced=False)
        document[SPENT], document[NUM_THREADS] = self._spent.seconds, torch.get_num_threads()
        return self._tensors(), document

    def _room(self, contents: Contents) -> dict[str, Any]:
        return state_to_fill(self._job.strategy, self._job.optimizer, contents)

    def _resume(self) -> float:
        """:return: seconds that the steps took that are done"""
        job, ranks = self._job, self._ranks
        saved = job.checkpoints.newest()
        kept = job.memory.newest(self._room, after=-1 if saved is None else saved.step)
        if kept is not None:
            tensors, document, whence = kept.tensors, kept.document, "memory"
        elif saved is not None:
            tensors, document, whence = self._room(job.checkpoints.contents(saved)), saved.meta, saved.folder
            job.checkpoints.load(saved, tensors)
        else:
            return 0.0
        keep_num_threads(document[NUM_THREADS], leads=ranks.leads)
        load_training_state(job.strategy, job.optimizer, tensors)
        # Rank 0's, which a checkpoint always has.
        self._interval.resume((document if saved is None else saved.meta)["interval"])
        state = TrainingState.of(document, direction=self._state.direction, leads=ranks.data_rank == 0)
        weights = job.checkpoints.choose_weights([epoch.step for epoch in state.ranking], known=saved)
        if (lost := state.keep_best(weights.step if weights else None)) is not None and ranks.leads:
            logger.warning(
                "the weights of epoch %d, the best with %s %.4f, are lost in both copies: going on with %s as the best",
                *(lost.epoch, self._job.validation.metric.name, lost.validation_metric),
                f"epoch {state.kept.epoch}" if state.kept else "none",
            )
        self._state = state
        if ranks.leads:
            said = f"going on after step {state.step_in_epoch} of epoch {state.epoch}, from {whence}"
            logger.info("%s", said)
            note_resumed(job.checkpoints.store, job.checkpoints.place, said)
        # What it began from is another training's, and so is its time.
        return 0.0 if whence.startswith(f"{start_of(job.checkpoints.place)}/") else float(document[SPENT])

    def _tell(self, told: RankReport) -> None:
        if self._ranks.leads:
            flops = self._flops_per_sample.get(self._job.loss.tokens(self._state.step / self._num_steps))
            step_metrics = StepMetrics.of(
                self._window,
                told,
                self._ranks.copies,
                self._state.step,
                self._learning_rate,
                flops,
                self._spent.seconds,
            )
            self._progress.show(step_metrics, self._state)
            if self._curves is not None:
                self._curves.step_metrics(step_metrics)
        self._window = StepWindow()

    def _timed(self, steps: Iterator[Step], state: TrainingState) -> Iterator[Step]:
        """Count the time for which this rank waits for data."""
        while True:
            self._job.heartbeat.beat(state.step, DATA)
            asked = time.perf_counter()
            step = next(steps, None)
            self._window.waited += time.perf_counter() - asked
            if step is None:
                return
            yield step

    def _fail(self, taken: TakenStep, outcome: StepOutcome, *, together: bool) -> NoReturn:
        """:raises NonFiniteLossError: with the samples whose loss is not finite, on whatever rank they are"""
        wrong = [
            int(sample)
            # Those that only fill up a rank's logical shards have no loss.
            for batch, each in zip(taken.step.batches, taken.losses, strict=False)
            for sample in batch.samples[~torch.isfinite(each).cpu().numpy() & (batch.weights.numpy() > 0)]
        ]
        rank = self._ranks.rank if wrong else None
        if together and not math.isfinite(outcome.norm) and not outcome.may_overflow:
            # Then all ranks are here, and only some of them may know the samples.
            found = self._ranks.from_leader(self._ranks.gather_objects(wrong)) or []
            wrong = sorted({sample for samples in found for sample in samples})
            rank = next((rank for rank, samples in enumerate(found) if samples), None)
        what = "loss" if wrong else "gradient"
        samples = wrong or sorted(int(sample) for batch in taken.step.batches for sample in batch.samples)
        shown = ", ".join(map(str, samples[:8])) + (", ..." if len(samples) > 8 else "")
        saved = self._last_listed()
        raise NonFiniteLossError(
            f"the {what} is not finite in epoch {taken.epoch}, step {taken.step_in_epoch}, on training samples "
            f"{shown}: look for extreme or missing features there, or lower the learning rate, here "
            f"{taken.learning_rate:.4g} (train.learning_rate, or its range in tune.space); "
            + (f"the last good checkpoint is that of step {saved.step}" if saved else "no checkpoint was found"),
            epoch=taken.epoch,
            step=taken.step_in_epoch,
            samples=samples,
            rank=rank,
            checkpoint=None if saved is None else saved.folder,
        )

    def _last_listed(self) -> Saved | None:
        """By this rank alone, as far as the store can be read: what is to be said must not fail with it."""
        checkpoints = self._job.checkpoints
        checkpoints.settle(_LAST_SAVE_SECONDS)
        try:
            complete = read_listing(checkpoints.store, checkpoints.place).complete
        except StoreError as error:
            logger.warning("%s", error)
            return None
        return complete[-1] if complete else None
