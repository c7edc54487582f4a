"""
What every learner must do.

A test module of a learner makes a subclass of :class:`LearnerConformance` and gives the fixture that it names::

    class TestMyLearner(LearnerConformance):
        @pytest.fixture(params=["binary", "regression"])
        def objective_name(self, request):
            return request.param

        @pytest.fixture
        def name(self):
            return "my_learner"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from mlops.contract.extensions import by_import_path
from mlops.contract.metrics import names_for
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import BadDataError
from mlops.data.shards.feature_table import FeatureTable
from mlops.learners.learner import FittedModel, Learner, Lesson, load_learner
from mlops.metrics.metric import Metric, load_metric
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import LoadedObjective, load_objective
from mlops.testing import no_recipe

EPOCHS: Final = 4


class LearnerConformance:
    """
    Tests of a learner. Fixtures: ``name``; ``objective_name``, each that it learns, and ``objective_settings``, none by
    default; ``settings`` of the learner, none by default; ``epochs``, 1 for a learner that learns all at once.
    """

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {}

    @pytest.fixture
    def epochs(self) -> int:
        return EPOCHS

    @pytest.fixture
    def objective_settings(self) -> Mapping[str, Any]:
        return {}

    @pytest.fixture
    def objective(self, objective_name: str, objective_settings: Mapping[str, Any]) -> LoadedObjective:
        return load_objective(objective_name, objective_settings, no_recipe)

    @pytest.fixture
    def metric(self, objective: LoadedObjective) -> Metric:
        return load_metric(names_for(objective.kind)[0].replace("@K", "@10"), no_recipe)

    @pytest.fixture
    def lesson(self, objective: LoadedObjective, epochs: int) -> Lesson:
        """
        Return 600 rows in groups of five, of which one feature says much, one nothing, and one is a category; and 200
        for the validation, with categories that are not among the former.
        """
        return Lesson(
            train=_table(objective, 600, categories=6),
            validation=_table(objective, 200, categories=9),
            objective=objective,
            feature_names=["much", "nothing", "city_id"],
            categorical=[2],
            seed=1,
            num_threads=1,
            epochs=epochs,
        )

    def _new(self, name: str, settings: Mapping[str, Any]) -> Learner:
        return load_learner(name, settings, no_recipe)

    def _fit(self, learner: Learner, lesson: Lesson, epochs: int | None = None) -> FittedModel:
        model = learner.begin(lesson)
        for epoch in range(1, (epochs or lesson.epochs) + 1):
            model, loss = learner.learn(model, lesson, epoch)
            assert loss is None or np.isfinite(loss)
        return model

    def test_it_learns(self, name: str, settings: Mapping[str, Any], lesson: Lesson, metric: Metric) -> None:
        learner, objective, table = self._new(name, settings), lesson.objective, lesson.train

        def measured(predicted: Floats) -> float:
            assert len(predicted) == table.num_rows
            assert np.isfinite(predicted).all()
            return metric.direction * metric.measure(objective.predictions(table.labels, predicted, table.offsets))

        predicted = self._fit(learner, lesson).predict(table)
        assert measured(predicted) > measured(predicted[::-1].copy()), "better than the predictions of other rows"
        if lesson.epochs > 1:
            once = self._fit(learner, lesson, 1).predict(table)
            assert measured(predicted) > measured(once), "more epochs fit the rows better"

    def test_the_same_lesson_gives_the_same_bytes(self, name: str, settings: Mapping[str, Any], lesson: Lesson) -> None:
        """Broken: a model could not be made again."""
        first, again = (self._fit(self._new(name, settings), lesson).save() for _ in range(2))
        assert first == again

    @pytest.mark.parametrize("killed_after", range(1, EPOCHS))
    def test_it_goes_on_from_what_was_saved(
        self, name: str, settings: Mapping[str, Any], lesson: Lesson, killed_after: int
    ) -> None:
        """Broken: a training that was killed would end with another model."""
        if killed_after >= lesson.epochs:
            pytest.skip("it is done by then")
        whole = self._fit(self._new(name, settings), lesson).save()
        saved = self._fit(self._new(name, settings), lesson, killed_after).save()
        learner = self._new(name, settings)
        model = learner.load(saved, lesson.objective)
        for epoch in range(killed_after + 1, lesson.epochs + 1):
            model, _ = learner.learn(model, lesson, epoch)
        assert model.save() == whole

    def test_a_model_that_is_loaded_predicts_the_same(
        self, name: str, settings: Mapping[str, Any], lesson: Lesson
    ) -> None:
        learner = self._new(name, settings)
        model = self._fit(learner, lesson)
        loaded = self._new(name, settings).load(model.save(), lesson.objective)
        for table in (lesson.train, lesson.validation):
            np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
        assert loaded.save() == model.save()

    def test_rows_are_predicted_one_by_one(self, name: str, settings: Mapping[str, Any], lesson: Lesson) -> None:
        """Broken: a server would answer something else than was measured."""
        model, table = self._fit(self._new(name, settings), lesson), lesson.train
        whole = model.predict(table)
        for sample in (0, 7, table.num_samples - 1):
            first, last = table.offsets[sample], table.offsets[sample + 1]
            np.testing.assert_array_equal(model.predict(table.samples(sample, sample + 1)), whole[first:last])

    def test_another_seed_is_another_chance(self, name: str, settings: Mapping[str, Any], lesson: Lesson) -> None:
        other = self._fit(self._new(name, settings), replace(lesson, seed=2))
        assert np.isfinite(other.predict(lesson.train)).all()

    def test_bytes_that_are_no_model_are_refused(self, name: str, settings: Mapping[str, Any], lesson: Lesson) -> None:
        for data in (b"", b"{}", b"no model"):
            with pytest.raises(BadDataError):
                self._new(name, settings).load(data, lesson.objective)

    def test_importance_is_of_the_features(self, name: str, settings: Mapping[str, Any], lesson: Lesson) -> None:
        found = self._fit(self._new(name, settings), lesson).importance(lesson.validation)
        assert found.keys() <= set(lesson.feature_names)
        if found:
            assert found["much"] > found["nothing"]

    def test_settings_are_checked_when_a_pipeline_is_parsed(
        self, name: str, settings: Mapping[str, Any], objective: LoadedObjective, metric: Metric
    ) -> None:
        """Broken: a typing mistake would be found at night."""
        if by_import_path(name):
            pytest.skip("the scheduler does not import it")
        train = {
            "learner": name,
            "objective": objective.name,
            "objective_settings": objective.settings.model_dump(mode="json"),
            "metric": metric.name,
        }
        config = check_section(Train, {**train, "learner_settings": dict(settings)}, "train")
        assert Train.model_validate(config.model_dump(mode="json")) == config
        with pytest.raises(SpecError, match=r"unknown key 'learner_settings\.no_such_setting'"):
            check_section(Train, {**train, "learner_settings": {**settings, "no_such_setting": 1}}, "train")


def _table(objective: LoadedObjective, num_rows: int, *, categories: int) -> FeatureTable:
    rng = np.random.default_rng(num_rows)
    features = rng.normal(size=(num_rows, 3)).astype(np.float32)
    features[:, 2] = rng.integers(1, categories, num_rows)
    signal = features[:, 0] + (features[:, 2] == 3) + 0.3 * rng.normal(size=num_rows)
    match objective.kind:
        case "logit":
            labels = signal > 0
        case "labels":
            labels = signal[:, None] > np.linspace(-1, 1, objective.functions.num_outputs)
        case _:
            labels = np.clip(np.round(signal + 2), 0, 4)
    return FeatureTable(
        features=features, labels=labels.astype(np.float32), offsets=np.arange(0, num_rows + 1, 5, dtype=np.int64)
    )
