"""Our own learners of rows, by the suite that others run on theirs, and what is theirs alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
import pytest
from measured import objective_of

from mlops.data.shards.feature_table import FeatureTable
from mlops.learners.learner import Lesson
from mlops.learners.light_gbm import Trees
from mlops.testing.learners import LearnerConformance

SMALL = {"rounds_per_epoch": 3, "num_leaves": 7}


class TestLightGbm(LearnerConformance):
    @pytest.fixture
    def name(self) -> str:
        return "lightgbm"

    @pytest.fixture(params=[{}, {"bagging_fraction": 0.7, "feature_fraction": 0.7}], ids=["all", "parts"])
    def settings(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        return {**SMALL, **request.param}

    @pytest.fixture(
        params=[
            ("binary", {}),
            ("multiclass", {"classes": 5}),
            ("multilabel", {"labels": ["low", "middle", "high"]}),
            ("ranking", {}),
            ("regression", {}),
            ("regression", {"loss": "mae"}),
            ("regression", {"loss": "huber"}),
            ("regression", {"loss": "poisson"}),
            ("regression", {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]}),
        ],
        ids=["binary", "classes", "labels", "ranking", "mse", "mae", "huber", "poisson", "quantiles"],
    )
    def asked(self, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
        found: tuple[str, dict[str, Any]] = request.param
        return found

    @pytest.fixture
    def objective_name(self, asked: tuple[str, dict[str, Any]]) -> str:
        return asked[0]

    @pytest.fixture
    def objective_settings(self, asked: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        return asked[1]

    def test_missing_values_are_measured_as_they_are_served(
        self, name: str, settings: dict[str, Any], lesson: Lesson
    ) -> None:
        """Broken: the epoch that is best would be chosen by what the model never says."""
        features = lesson.validation.features.copy()
        features[::3, 0], features[::4, 2] = np.nan, np.nan
        rows = FeatureTable(features=features, labels=lesson.validation.labels, offsets=lesson.validation.offsets)
        model = self._fit(self._new(name, settings), replace(lesson, validation=rows))
        loaded = self._new(name, settings).load(model.save(), lesson.objective)
        np.testing.assert_array_equal(loaded.predict(rows), model.predict(rows))

    def test_a_label_that_no_row_has_is_learnt_as_such(self, name: str, settings: dict[str, Any]) -> None:
        """As on the first days of a new label."""
        objective = objective_of("multilabel", labels=["old", "new"])
        features = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
        labels = np.stack([features[:, 0] > 0, np.zeros(300)], axis=1).astype(np.float32)
        table = FeatureTable(features=features, labels=labels, offsets=np.arange(301))
        lesson = Lesson(
            train=table, validation=table, objective=objective, feature_names=["a", "b", "c"], categorical=[], seed=1,
            num_threads=1, epochs=2,
        )  # fmt: skip
        predicted = self._fit(self._new(name, settings), lesson).predict(table)
        assert np.isfinite(predicted).all()
        assert (predicted[:, 1] < -5).all()
        assert ((predicted[:, 0] > 0) == (labels[:, 0] > 0)).mean() > 0.9

    def test_lightgbm_itself_reads_the_trees(self, name: str, settings: dict[str, Any], lesson: Lesson) -> None:
        model = self._fit(self._new(name, settings), lesson)
        assert isinstance(model, Trees)
        expected = model.raw(lesson.train.features)
        for output, text in enumerate(model.texts):
            booster = lightgbm.Booster(model_str=text)
            numbers = [tree["tree_index"] for tree in booster.dump_model()["tree_info"]]
            assert numbers == list(range(text.count("Tree=")))
            sums = booster.predict(lesson.train.features, raw_score=True)
            np.testing.assert_array_equal(sums, expected.T if sums.ndim == 2 else expected[output])
