"""The protocol of a learner, and of the model that it has fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlops.code import load_extension, resolved
from mlops.contract.learners import LEARNERS, LearnerSpec
from mlops.contract.section import check_section
from mlops.data.shards.feature_table import FeatureTable
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import LoadedObjective


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What a learner is given to learn from."""

    train: FeatureTable
    validation: FeatureTable
    """What the model is measured on after each epoch, of which a learner may keep scores; nothing is learnt from it."""
    objective: LoadedObjective
    feature_names: Sequence[str]
    """``[F]``"""
    categorical: Sequence[int]
    """Positions of those features that are ids of categories, whose order says nothing."""
    seed: int
    num_threads: int
    epochs: int
    """How many epochs there will be, at most."""


class FittedModel(Protocol):
    """
    A model that was fitted, or is being fitted. One that knows the names of its columns has them, in their order, as
    ``feature_names``: they are held against the features' where it was fitted elsewhere.
    """

    def predict(self, table: FeatureTable) -> Floats:
        """Return predictions for every row, ``[N]`` or ``[N, K]``, as :meth:`mlops.Objective.predict` does."""

    def save(self) -> bytes:
        """Return all of the model: equal models give equal bytes."""

    def importance(self, table: FeatureTable) -> Mapping[str, float]:
        """
        Return how much each feature contributes to the predictions of these rows, by its name, at least 0 and in any
        unit; empty where the learner does not say.
        """


class Learner(Protocol):
    """
    A learner of rows in a plain process. A class that implements it is made of the learner's settings, an instance of
    :attr:`LearnerSpec.section`.

    A training is cut into epochs. What an epoch adds is a function of the lesson, the model so far and the epoch's
    number alone, so that a training that was killed, and goes on from the last model that was saved, ends in the same
    bits.
    """

    def begin(self, lesson: Lesson) -> FittedModel:
        """Return a model that has learnt nothing yet."""

    def load(self, data: bytes, objective: LoadedObjective) -> FittedModel:
        """
        Return the model that :meth:`FittedModel.save` returned the bytes of.

        :raises BadDataError: where they are not those of a model
        """

    def learn(self, model: FittedModel, lesson: Lesson, epoch: int) -> tuple[FittedModel, float | None]:
        """
        Learn for one more epoch.

        :param epoch: from 1
        :return: the model, and its mean loss on the rows that it learns from, a finite number; None: it cannot tell
        :raises BadConfigError: where it cannot learn the objective
        """


def load_learner(name: str, settings: Mapping[str, Any], own: Callable[[str], object]) -> Learner:
    """
    Load a learner.

    :param name: as a pipeline names it: ``lightgbm``, ``package.module:NAME``
    :param settings: ``train.learner_settings``
    :param own: loads code of a recipe by its import path
    :raises BadConfigError: where there is none of that name, it is something else, or its settings are wrong
    """
    spec = load_extension(LEARNERS, name, LearnerSpec, own)
    section = check_section(spec.section, settings, "train.learner_settings")
    learner: Learner = resolved(spec.implementation, own)(section)
    return learner
