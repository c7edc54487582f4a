"""Gradient-boosted trees by XGBoost (Chen & Guestrin 2016), which go on from a booster to the same bits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xgboost
from mlops_xgboost import XGBoost

from mlops import BadConfigError, BadDataError, FeatureTable, FittedModel, Lesson, LoadedObjective

OBJECTIVES = {"binary": ("binary:logistic", "logloss"), "regression": ("reg:squarederror", "rmse")}


@dataclass(frozen=True)
class Trees:
    booster: xgboost.Booster | None
    names: Sequence[str]

    def predict(self, table: FeatureTable) -> npt.NDArray[np.float32]:
        if self.booster is None:
            return np.zeros(table.num_rows, np.float32)
        found: npt.NDArray[np.float32] = self.booster.inplace_predict(table.features, predict_type="margin")
        return found

    def save(self) -> bytes:
        booster = None if self.booster is None else json.loads(bytes(self.booster.save_raw("json")))
        return json.dumps({"names": list(self.names), "booster": booster}).encode()

    def importance(self, table: FeatureTable) -> Mapping[str, float]:
        if self.booster is None:
            return {}
        found = self.booster.predict(xgboost.DMatrix(table.features), pred_contribs=True)
        return dict(zip(self.names, np.abs(found[:, :-1]).mean(axis=0).tolist(), strict=True))


class XGBoostLearner:
    def __init__(self, settings: XGBoost) -> None:
        self._settings = settings
        self._rows: xgboost.DMatrix | None = None

    def begin(self, lesson: Lesson) -> Trees:
        self._parameters(lesson)
        return Trees(None, tuple(lesson.feature_names))

    def load(self, data: bytes, objective: LoadedObjective) -> Trees:
        try:
            document = json.loads(data)
            booster = xgboost.Booster()
            booster.load_model(bytearray(json.dumps(document["booster"]).encode()))
            return Trees(booster, tuple(document["names"]))
        except (ValueError, KeyError, TypeError, xgboost.core.XGBoostError) as error:
            raise BadDataError(f"this is no model of XGBoost: {error}") from error

    def learn(self, model: FittedModel, lesson: Lesson, epoch: int) -> tuple[Trees, float]:
        assert isinstance(model, Trees)
        if self._rows is None:
            self._rows = xgboost.DMatrix(lesson.train.features, lesson.train.labels, nthread=lesson.num_threads)
        parameters, rounds = self._parameters(lesson), self._settings.rounds_per_epoch
        found: dict[str, dict[str, list[float]]] = {}
        booster = xgboost.train(
            parameters,
            self._rows,
            rounds,
            xgb_model=model.booster,
            evals=[(self._rows, "train")],
            evals_result=found,
            verbose_eval=False,
        )
        return Trees(booster, model.names), found["train"][parameters["eval_metric"]][-1]

    def _parameters(self, lesson: Lesson) -> dict[str, object]:
        name, settings = lesson.objective.name, lesson.objective.settings
        if name not in OBJECTIVES or getattr(settings, "loss", "mse") != "mse":
            raise BadConfigError(f"learner 'xgboost' learns binary and regression by mse, not {name} with {settings!r}")
        objective, metric = OBJECTIVES[name]
        return {
            **self._settings.model_dump(exclude={"rounds_per_epoch"}),
            "objective": objective,
            "eval_metric": metric,
            "seed": lesson.seed,
            "nthread": lesson.num_threads,
        }
