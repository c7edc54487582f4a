"""Gradient-boosted trees by LightGBM (Ke et al. 2017)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import lightgbm
import numpy as np
import numpy.typing as npt
import torch

from mlops.contract.learner_settings import LightGbmSettings
from mlops.contract.objective_settings import RegressionSettings
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.batch import Batch
from mlops.data.shards.feature_table import FeatureTable
from mlops.learners.learner import FittedModel, Lesson
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import LoadedObjective

Array = npt.NDArray[np.float64]
_REGRESSIONS: Final = {
    "mse": "regression",
    "mae": "regression_l1",
    "huber": "huber",
    "poisson": "poisson",
    "quantile": "quantile",
}
"""LightGBM's objective by the loss of ours."""


class Boosted:
    """The trees of one output of one epoch: the text that is stored, read once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._booster = lightgbm.Booster(model_str=text)

    def raw(self, features: npt.NDArray[np.float32]) -> Array:
        """Return ``[N]``, the sums of the trees' values."""
        return np.asarray(self._booster.predict(features, raw_score=True), np.float64)

    def gains(self) -> Array:
        """Return ``[F]``, the gain of all splits by each feature."""
        return np.asarray(self._booster.feature_importance("gain"), np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trees:
    """
    Sums of trees, ``K`` of them where the objective has so many outputs.

    The trees of each epoch are a model of their own, whose raw scores are added to those before: what an epoch adds
    then depends on nothing that is not in here.
    """

    objective: LoadedObjective
    feature_names: tuple[str, ...]
    epochs: tuple[tuple[Boosted, ...], ...] = ()
    """For each epoch the trees of the ``K`` outputs."""
    known: tuple[tuple[npt.NDArray[np.float32], Array], ...] = field(default=(), repr=False)
    """Rows with their sums, for as long as the model grows: an epoch more then costs its own trees only."""

    def grown(self, models: tuple[Boosted, ...], tables: Sequence[FeatureTable]) -> Trees:
        """
        Return the model with one more epoch.

        :param tables: rows whose sums are to be known
        """
        # The same sums, in the same order, as a training that goes on from what was saved would make.
        known = [(each.features, self.raw(each.features) + _raw(models, each.features)) for each in tables]
        return replace(self, epochs=(*self.epochs, models), known=tuple(known))

    def raw(self, features: npt.NDArray[np.float32]) -> Array:
        """Return ``[K, N]``, the sums of the trees' values."""
        for rows, total in self.known:
            if rows is features:
                return total
        total = np.zeros((self.objective.functions.num_outputs, len(features)))
        for models in self.epochs:
            total += _raw(models, features)
        return total

    def predict(self, table: FeatureTable) -> Floats:
        return as_predictions(self.raw(table.features), self.objective)

    def save(self) -> bytes:
        epochs = [[trees.text for trees in models] for models in self.epochs]
        return json.dumps({"feature_names": self.feature_names, "epochs": epochs}).encode()

    def importance(self) -> Mapping[str, float]:
        """Return the gain of all splits by a feature, as a share of that of all features."""
        gains = np.zeros(len(self.feature_names))
        for models in self.epochs:
            for trees in models:
                gains += trees.gains()
        shares = gains / (gains.sum() or 1.0)
        return {self.feature_names[place]: float(shares[place]) for place in np.argsort(-shares, kind="stable")}


class LightGbm:
    """Implements :class:`mlops.Learner`."""

    def __init__(self, settings: LightGbmSettings) -> None:
        self._settings = settings
        self._data: lightgbm.Dataset | None = None

    def begin(self, lesson: Lesson) -> Trees:
        self._objectives(lesson.objective)
        return Trees(objective=lesson.objective, feature_names=tuple(lesson.feature_names))

    def load(self, data: bytes, objective: LoadedObjective) -> Trees:
        try:
            document = json.loads(data)
            epochs = tuple(tuple(Boosted(text) for text in models) for models in document["epochs"])
            return Trees(objective=objective, feature_names=tuple(document["feature_names"]), epochs=epochs)
        except (ValueError, KeyError, TypeError, lightgbm.basic.LightGBMError) as error:
            raise BadDataError(f"this is no model of gradient-boosted trees: {error}") from error

    def learn(self, model: FittedModel, lesson: Lesson, epoch: int) -> tuple[Trees, float]:
        assert isinstance(model, Trees)
        raw = model.raw(lesson.train.features)
        losses, made = [], []
        for number, objective in enumerate(self._objectives(lesson.objective)):
            trees, loss = self._boost(lesson, objective, raw[number] if model.epochs else None, epoch)
            made.append(trees)
            losses.append(loss)
        return model.grown(tuple(made), [lesson.train, lesson.validation]), float(np.mean(losses))

    def _boost(
        self, lesson: Lesson, objective: Mapping[str, Any], before: Array | None, epoch: int
    ) -> tuple[Boosted, float]:
        """
        :param before: raw scores of the trees before, ``[N]``
        :return: the trees, and their loss on the rows
        """
        settings = self._settings
        grouped = objective["objective"] == "lambdarank"
        parameters = {
            **settings.model_dump(exclude={"rounds_per_epoch"}),
            **objective,
            # A seed of the epoch's own, so that nothing depends on draws that came before it; but one for the bins.
            "seed": (lesson.seed * 1_000_003 + epoch) % (1 << 31),
            "data_random_seed": lesson.seed % (1 << 31),
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": lesson.num_threads,
            "verbose": -1,
            "bagging_freq": 1 if settings.bagging_fraction < 1 else 0,
            "bagging_by_query": grouped,
            "boost_from_average": before is None,
        }
        data = self._dataset(lesson, parameters, grouped=grouped)
        data.set_init_score(before)
        booster = lightgbm.Booster(parameters, data)
        for _ in range(settings.rounds_per_epoch):
            if booster.update():
                break  # no split is worth its price
        # Threads change no tree, but the text, which names their number, and the last bits of the loss, a sum.
        booster.reset_parameter({"num_threads": 1})
        _, _, found, higher_is_better = booster.eval_train()[0][:4]
        # LambdaRank's gradients are those of no loss that has a value: what NDCG lacks of its best stands for it.
        return Boosted(booster.model_to_string(num_iteration=-1)), float(1 - found if higher_is_better else found)

    def _dataset(self, lesson: Lesson, parameters: Mapping[str, Any], *, grouped: bool) -> lightgbm.Dataset:
        """Return the rows in LightGBM's bins, made once."""
        if self._data is None:
            table = lesson.train
            self._data = lightgbm.Dataset(
                table.features,
                table.labels,
                group=np.diff(table.offsets) if grouped else None,
                categorical_feature=list(lesson.categorical),
                params=dict(parameters),
                free_raw_data=False,
            ).construct()
        return self._data

    def _objectives(self, objective: LoadedObjective) -> Sequence[Mapping[str, Any]]:
        """
        Return LightGBM's parameters for each output of an objective.

        :raises BadConfigError: where LightGBM has no such objective
        """
        match objective.name, objective.settings:
            case "binary", _:
                return [{"objective": "binary", "metric": "binary_logloss"}]
            case "ranking", _:
                return [{"objective": "lambdarank", "metric": "ndcg", "eval_at": 10, "label_gain": _gains()}]
            case "regression", RegressionSettings() as settings:
                name = _REGRESSIONS[settings.loss]
                levels = settings.quantiles or [settings.delta]
                return [{"objective": name, "metric": name, "alpha": level} for level in levels]
        raise BadConfigError(
            f"learner 'lightgbm' learns the objectives binary, ranking and regression, not {objective.name!r}; take "
            "learner: torch for it"
        )


def as_predictions(raw: Array, objective: LoadedObjective) -> Floats:
    """
    Return what an objective makes of raw scores, which are the outputs of a model.

    :param raw: ``[K, N]``
    :return: ``[N]`` or ``[N, K]``
    """
    outputs = torch.from_numpy(np.ascontiguousarray(raw.T if len(raw) > 1 else raw[0], np.float32))
    rows = Batch(
        features=torch.empty(raw.shape[1], 0),
        labels=torch.zeros(raw.shape[1]),
        mask=None,
        weights=torch.ones(raw.shape[1]),
        samples=np.arange(raw.shape[1]),
    )
    return objective.functions.predict(outputs, rows)


def _raw(models: Sequence[Boosted], features: npt.NDArray[np.float32]) -> Array:
    """Return ``[K, N]``, the raw scores of an epoch's trees."""
    return np.stack([trees.raw(features) for trees in models])


def _gains() -> list[int]:
    """Return the gain of each grade of relevance, ``2^grade - 1``."""
    return [2**grade - 1 for grade in range(25)]
