"""Estimators of scikit-learn, by the suite that all learners pass, and what is theirs alone."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from measured import objective_of

from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.feature_table import FeatureTable
from mlops.learners.learner import Lesson, load_learner
from mlops.learners.scikit_learn import Fitted
from mlops.testing import no_recipe
from mlops.testing.learners import EPOCHS, LearnerConformance

NETWORK = {"hidden_layer_sizes": [8], "batch_size": 20, "learning_rate_init": 0.01}
FOREST = {"n_estimators": 20, "max_depth": 4}
CASES: dict[str, tuple[str, Mapping[str, Any], str, Mapping[str, Any], int]] = {
    "forest, binary": ("sklearn.ensemble:RandomForestClassifier", FOREST, "binary", {}, 1),
    "forest, classes": ("sklearn.ensemble:RandomForestClassifier", FOREST, "multiclass", {"classes": 5}, 1),
    "forest, number": ("sklearn.ensemble:RandomForestRegressor", FOREST, "regression", {}, 1),
    "logistic": ("sklearn.linear_model:LogisticRegression", {"max_iter": 500}, "multiclass", {"classes": 5}, 1),
    "margins": ("sklearn.svm:LinearSVC", {}, "binary", {}, 1),
    "margins, classes": ("sklearn.svm:LinearSVC", {}, "multiclass", {"classes": 5}, 1),
    "boosting": ("sklearn.ensemble:HistGradientBoostingRegressor", {"max_iter": 10}, "regression", {"loss": "mae"}, 1),
    "counts": ("sklearn.linear_model:PoissonRegressor", {}, "regression", {"loss": "poisson"}, 1),
    "descent": (
        "sklearn.linear_model:SGDClassifier", {"loss": "log_loss", "eta0": 0.001, "learning_rate": "constant"},
        "multiclass", {"classes": 5}, EPOCHS,
    ),
    "network": ("sklearn.neural_network:MLPRegressor", NETWORK, "regression", {}, EPOCHS),
}  # fmt: skip


class TestScikitLearn(LearnerConformance):
    @pytest.fixture(params=CASES)
    def case(self, request: pytest.FixtureRequest) -> tuple[str, Mapping[str, Any], str, Mapping[str, Any], int]:
        return CASES[request.param]

    @pytest.fixture
    def name(self) -> str:
        return "sklearn"

    @pytest.fixture
    def settings(self, case: tuple[Any, ...]) -> Mapping[str, Any]:
        return {"estimator": case[0], "parameters": dict(case[1])}

    @pytest.fixture
    def objective_name(self, case: tuple[Any, ...]) -> str:
        return str(case[2])

    @pytest.fixture
    def objective_settings(self, case: tuple[Any, ...]) -> Mapping[str, Any]:
        return dict(case[3])

    @pytest.fixture
    def epochs(self, case: tuple[Any, ...]) -> int:
        return int(case[4])


def lesson(objective: str, *, labels: Any = None, epochs: int = 1, **settings: Any) -> Lesson:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60) if labels is None else np.asarray(labels)
    table = FeatureTable(
        features=(rng.normal(size=(len(labels), 2)) + labels[:, None]).astype(np.float32),
        labels=labels.astype(np.float32),
        offsets=np.arange(len(labels) + 1),
    )
    return Lesson(
        train=table, validation=table, objective=objective_of(objective, **settings), feature_names=["a", "b"],
        categorical=[], seed=1, num_threads=1, epochs=epochs,
    )  # fmt: skip


def of(estimator: str, **parameters: Any) -> Any:
    return load_learner("sklearn", {"estimator": estimator, "parameters": parameters}, no_recipe)


def test_probabilities_are_those_of_the_estimator() -> None:
    """Broken: what is served as a probability would be something else."""
    given, learner = lesson("binary"), of("sklearn.linear_model:LogisticRegression")
    model, _ = learner.learn(learner.begin(given), given, 1)
    served = given.objective.functions.answer(
        given.objective.predictions(given.train.labels, model.predict(given.train), given.train.offsets)
    )
    np.testing.assert_allclose(
        served["probability"], model.estimator.predict_proba(given.train.features)[:, 1], rtol=1e-5
    )


def test_a_class_without_rows_is_improbable_and_not_missing() -> None:
    given = lesson("multiclass", labels=[0, 3] * 30, classes=5)
    learner = of("sklearn.ensemble:RandomForestClassifier", n_estimators=5)
    model, loss = learner.learn(learner.begin(given), given, 1)
    predicted = model.predict(given.train)
    assert predicted.shape == (60, 5)
    assert set(predicted.argmax(axis=1).tolist()) == {0, 3}
    assert np.isfinite(loss)


@pytest.mark.parametrize(
    ("estimator", "parameters", "objective", "epochs", "message"),
    [
        ("sklearn.ensemble:RandomForestClassifier", {}, "binary", 3, "all rows at once; set train.epochs to 1, got 3"),
        ("sklearn.ensemble:RandomForestRegressor", {}, "binary", 1, "needs a classifier, and .*Regressor makes Random"),
        ("sklearn.ensemble:RandomForestClassifier", {}, "regression", 1, "needs a regressor"),
        ("sklearn.ensemble:RandomForestClassifier", {"trees": 3}, "binary", 1, "parameters do not fit .*'trees'"),
        ("sklearn.ensemble:RandomForrest", {}, "binary", 1, "RandomForrest"),
        ("sklaern.ensemble:RandomForestClassifier", {}, "binary", 1, "cannot import 'sklaern.ensemble'"),
        ("sklearn.linear_model:RidgeClassifier", {"alpha": -1.0}, "binary", 1, "cannot learn from these rows.*alpha"),
    ],
)
def test_what_does_not_fit_is_named(
    estimator: str, parameters: dict[str, Any], objective: str, epochs: int, message: str
) -> None:
    given, learner = lesson(objective, epochs=epochs), of(estimator, **parameters)
    with pytest.raises(BadConfigError, match=message):
        learner.learn(learner.begin(given), given, 1)


def test_a_model_of_another_release_is_refused() -> None:
    """Broken: it would be read by guess."""
    given, learner = lesson("binary"), of("sklearn.linear_model:LogisticRegression")
    model, _ = learner.learn(learner.begin(given), given, 1)
    assert isinstance(model, Fitted)
    estimator, names = pickle.loads(model.save())
    state = {**estimator.__getstate__(), "_sklearn_version": "0.1"}

    class Old(type(estimator)):  # type: ignore[misc]
        def __reduce__(self) -> Any:
            return type(estimator), (), state

    with pytest.raises(BadDataError, match="saved by another release of scikit-learn"):
        learner.load(pickle.dumps((Old(), names)), given.objective)
