"""Train by a learner of rows, epoch by epoch, in a plain process."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from mlops.contract.metrics import short_name
from mlops.contract.progress import TRAINING_SECONDS
from mlops.contract.refs import Artifact, CheckpointRef, canonical_json
from mlops.contract.sections.train import Train
from mlops.contract.step import BadDataError
from mlops.learners.learner import FittedModel, Learner, Lesson, load_learner
from mlops.learners.lesson import open_lesson
from mlops.metrics.metric import Metric, load_metric
from mlops.objectives.objective import LoadedObjective, load_objective
from mlops.steps import StepContext
from mlops.steps.publish import TRACKING_SECONDS, Origin, publish, tracked_run
from mlops.store import Store
from mlops.store_errors import DamagedObjectError, StoreError
from mlops.tracking.run import Point, TrackedRun
from mlops.trainer.checkpoint.planning import CheckpointError
from mlops.trainer.environment import NUM_THREADS, keep_num_threads
from mlops.trainer.parallel import Ranks
from mlops.trainer.progress import Spent
from mlops.trainer.run_logging import epoch_point
from mlops.trainer.state import SPENT, Epoch, TrainingState
from mlops.trainer.trained import Trained

KEPT_NEWEST: Final = 3
"""Epochs whose models are kept, to go on from."""
KEPT_BEST: Final = 2
"""Epochs whose models are kept, to be published: the second best where the best is damaged."""

logger = logging.getLogger(__name__)


def run_learner(context: StepContext, config: Train, manifest: Mapping[str, Any]) -> CheckpointRef:
    """:return: the checkpoint of the best epoch"""
    ranks = Ranks()
    origin = Origin.of(context, manifest["feature_set"], ranks)
    with learn(context, config, manifest, tags=origin.tags()) as (saves, state, tracked):
        best, weights = saves.best(state)
        trained = Trained(
            weights=weights,
            history=[asdict(epoch) for epoch in state.history],
            epoch=best.epoch,
            metrics={short_name(config.metric): best.validation_metric, **best.losses},
            world_size=1,
            lost_best=None if best is state.best else asdict(state.ranking[0]),
        )
        return publish(context, config, trained, origin, tracked, manifest)


@contextmanager
def learn(
    context: StepContext,
    config: Train,
    manifest: Mapping[str, Any],
    *,
    should_prune: Callable[[TrainingState], bool] | None = None,
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Saves, TrainingState, TrackedRun]]:
    """
    Train to the end, from the last epoch that was saved; the run in MLflow ends with the context.

    :param manifest: of the features
    :param should_prune: called after each epoch, True prunes the training
    :param tags: tags of the run
    """
    training = _Training.of(context, config, manifest)
    with tracked_run(context, config, Ranks(), 0, tags, config.epochs) as tracked:
        assert tracked is not None, "one process alone"
        for epoch in training.state.history:
            # A killed process may have taken some with it; those that MLflow has are not sent again.
            tracked.log(epoch_point(config, epoch))
        while not training.state.finished(config.epochs, config.early_stopping):
            epoch = training.step()
            # Before the save: an epoch that a killed process had not reported is done again, and reported then.
            if should_prune is not None and should_prune(training.state):
                training.state.pruned = True
            training.save()
            tracked.log(training.told(config, epoch))
        yield training.saves, training.state, tracked
    ended = {"mlops.pruned": "True"} if training.state.pruned else {}
    tracked.finish(TRACKING_SECONDS, "KILLED" if training.state.pruned else "FINISHED", ended)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saves:
    """
    The epochs of a training in the store: an artifact with the model, and then a document that names it.

    What an epoch's model is follows from the training alone: two processes that meet on one training write the same.
    """

    store: Store
    place: str

    def newest(self) -> tuple[bytes, Mapping[str, Any]] | None:
        """Return model and document of the newest epoch that is whole; None: there is none."""
        epochs = sorted(
            (_epoch_of(key) for key in self.store.list(self._folder) if key.endswith(".json")), reverse=True
        )
        return next((found for epoch in epochs if (found := self.whole(epoch)) is not None), None)

    def best(self, state: TrainingState) -> tuple[Epoch, bytes]:
        """
        Return the best epoch whose model is whole, and its model.

        :raises CheckpointError: where none is
        """
        for epoch in state.ranking:
            if (found := self.whole(epoch.epoch)) is not None:
                return epoch, found[0]
        raise CheckpointError(
            f"no model of the {len(state.history)} epochs is whole in {self._folder}; a retry trains anew"
        )

    def whole(self, epoch: int) -> tuple[bytes, Mapping[str, Any]] | None:
        """Return model and document of an epoch; None where one of them is damaged or missing."""
        try:
            document = json.loads(self.store.get(self._key(epoch)))
            return self.store.read(Artifact(**document["model"])), document
        except (DamagedObjectError, FileNotFoundError, ValueError, KeyError, TypeError) as error:
            logger.warning("epoch %d is passed over: %s", epoch, error)
            return None

    def save(self, model: bytes, state: TrainingState, spent: float) -> None:
        """
        Save the newest epoch, and remove those before it that are neither among the newest nor among the best.

        :param spent: seconds that the training took so far
        """
        number = len(state.history)
        try:
            artifact = self.store.put_artifact(self._folder, f"{number:06d}.model", model)
            document = {
                "model": asdict(artifact),
                "history": [asdict(epoch) for epoch in state.history],
                "pruned": state.pruned,
                SPENT: spent,
                NUM_THREADS: torch.get_num_threads(),
            }
            self.store.put(self._key(number), canonical_json(document))
        except StoreError:
            # Another process that is further removes this epoch while it is written, and has saved what comes after.
            if not any(_epoch_of(key) > number for key in self.store.list(self._folder) if key.endswith(".json")):
                raise
            logger.info("epoch %d is not saved: another process of this training is further", number)
            return
        kept = {*range(number - KEPT_NEWEST + 1, number + 1), *(each.epoch for each in state.ranking[:KEPT_BEST])}
        # Of none that comes later: another process may be further. What is best of more epochs is so of these, too.
        old = [key for key in self.store.list(self._folder) if (of := _epoch_of(key)) < number and of not in kept]
        # Documents first: none must name a model that is gone.
        self.store.delete([key for key in old if key.endswith(".json")])
        self.store.delete([key for key in old if not key.endswith(".json")])

    @property
    def _folder(self) -> str:
        return f"{self.place}/checkpoints/epochs"

    def _key(self, epoch: int) -> str:
        return f"{self._folder}/{epoch:06d}.json"


def _epoch_of(key: str) -> int:
    return int(key.rpartition("/")[2].partition(".")[0])


@dataclass(kw_only=True, slots=True)
class _Training:
    name: str
    """Of the learner, as the pipeline names it."""
    learner: Learner
    lesson: Lesson
    objective: LoadedObjective
    metric: Metric
    further: list[Metric]
    saves: Saves
    state: TrainingState
    model: FittedModel
    spent: Spent

    @classmethod
    def of(cls, context: StepContext, config: Train, manifest: Mapping[str, Any]) -> _Training:
        store, features = context.store, context.features
        objective = load_objective(config.objective, config.objective_settings, context.own)
        learner = load_learner(config.learner, config.learner_settings, context.own)
        saves = Saves(store=store, place=context.place)
        if (found := saves.newest()) is not None:
            keep_num_threads(found[1][NUM_THREADS])
        lesson = open_lesson(
            store,
            features,
            manifest,
            objective,
            seed=config.seed,
            num_threads=torch.get_num_threads(),
            epochs=config.epochs,
            scratch=context.scratch,
        )
        metric = load_metric(config.metric, context.own)
        state, model = TrainingState(steps_per_epoch=1, direction=metric.direction), learner.begin(lesson)
        spent = Spent()
        if found is not None:
            data, document = found
            model, state.pruned = learner.load(data, objective), document["pruned"]
            spent = Spent(document[SPENT])
            state.history = [Epoch(**epoch) for epoch in document["history"]]
            logger.info("going on after epoch %d of %d", len(state.history), config.epochs)
        return cls(
            name=config.learner,
            learner=learner,
            lesson=lesson,
            objective=objective,
            metric=metric,
            further=[load_metric(name, context.own) for name in config.metrics],
            saves=saves,
            state=state,
            model=model,
            spent=spent,
        )

    def step(self) -> Epoch:
        """
        Learn for one more epoch, and measure it.

        :raises BadDataError: where the loss is not finite
        :raises BadConfigError: where the predictions have another shape
        """
        started, number = time.monotonic(), len(self.state.history) + 1
        self.model, loss = self.learner.learn(self.model, self.lesson, number)
        by = f"learner {self.name!r}"
        # Before the save, which refuses it as no JSON.
        if loss is not None and not math.isfinite(loss):
            raise BadDataError(
                f"{by} returned the loss {loss} in epoch {number} of objective {self.objective.name!r}: look for "
                "extreme labels or features in the training split, or lower its learning rate; a learner that does "
                "not know its loss returns None"
            )
        table = self.lesson.validation
        predictions = self.objective.predictions(table.labels, self.model.predict(table), table.offsets, by=by)
        seconds = time.monotonic() - started
        value, further = self.metric.measure_with(self.further, predictions)
        epoch = Epoch(
            epoch=number,
            step=number,
            train_loss=loss,
            validation_metric=value,
            further_metrics=further,
            seconds=seconds,
            samples_per_second=self.lesson.train.num_samples / seconds,
            finished_at=time.time(),
        )
        self.state.history.append(epoch)
        shown = "not known" if loss is None else f"{loss:.4f}"
        logger.info("epoch %d: loss %s, %s %.4f", number, shown, self.metric.name, epoch.validation_metric)
        return epoch

    def told(self, config: Train, epoch: Epoch) -> Point:
        """Return the values of an epoch as MLflow takes them."""
        point = epoch_point(config, epoch)
        return point._replace(metrics={**point.metrics, TRAINING_SECONDS: self.spent.seconds})

    def save(self) -> None:
        self.saves.save(self.model.save(), self.state, self.spent.seconds)
