"""Our own learners of rows, by the suite that others run on theirs, and what is theirs alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
import pytest
from measured import objective_of

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import BadDataError
from mlops.data.shards.feature_table import FeatureTable
from mlops.learners.learner import Lesson, load_learner
from mlops.learners.light_gbm import Trees
from mlops.testing import no_recipe
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


def lesson_of(labels: Any, sizes: Any, objective: str, **settings: Any) -> Lesson:
    """
    Return a lesson whose validation has whole grades.

    :param sizes: rows of each group
    """
    labels = np.asarray(labels, np.float32)
    features = np.random.default_rng(0).normal(size=(len(labels), 2)).astype(np.float32)
    table = FeatureTable(features=features, labels=labels, offsets=np.array([0, *np.cumsum(sizes)]))
    return Lesson(
        train=table, validation=replace(table, labels=np.floor(labels)), objective=objective_of(objective, **settings),
        feature_names=["a", "b"], categorical=[], seed=1, num_threads=1, epochs=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lesson", "message"),
    [
        (lesson_of([0, 1.5] * 50, [10] * 10, "ranking"), "ranks by whole grades, and the training split has the label"),
        (
            lesson_of([0, 1] * 5001, [10_002], "ranking"),
            "groups of at most 10,000 rows, and one of the training split has 10,002; name further columns in",
        ),
        (lesson_of([0] * 100, [1] * 100, "regression", loss="poisson"), "all labels of the training split are 0"),
    ],
    ids=["grades", "group", "counts"],
)
def test_rows_that_lightgbm_refuses_are_named(lesson: Lesson, message: str) -> None:
    """Broken: the user would read LightGBM's words, of a step that tries it again and again."""
    with pytest.raises(BadDataError, match=message):
        load_learner("lightgbm", SMALL, no_recipe).begin(lesson)
    swapped = replace(lesson, train=lesson.validation, validation=lesson.train)
    if message.startswith("ranks"):
        with pytest.raises(BadDataError, match="the validation split has the label 1.5"):
            load_learner("lightgbm", SMALL, no_recipe).begin(swapped)


def test_what_lightgbm_refuses_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the step would fail as if by chance, and a retry learn it all again."""
    lesson, learner = lesson_of([0, 1] * 50, [1] * 100, "binary"), load_learner("lightgbm", SMALL, no_recipe)
    model = learner.begin(lesson)
    for words, expected in (("too odd", BadDataError), ("std::bad_alloc", lightgbm.basic.LightGBMError)):

        def update(booster: Any, words: str = words) -> bool:
            raise lightgbm.basic.LightGBMError(words)

        monkeypatch.setattr(lightgbm.Booster, "update", update)
        with pytest.raises(expected, match=words):
            learner.learn(model, lesson, 1)


def test_more_leaves_than_lightgbm_has_are_refused_where_they_stand() -> None:
    settings = {"learner": "lightgbm", "objective": "binary", "metric": "auc"}
    with pytest.raises(SpecError, match="learner_settings.num_leaves must be <= 131072, got 131073"):
        check_section(Train, {**settings, "learner_settings": {"num_leaves": 131_073}}, "train")
