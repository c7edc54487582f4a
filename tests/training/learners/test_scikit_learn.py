"""Estimators of scikit-learn, by the suite that all learners pass, and what is theirs alone."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.ensemble
import sklearn.linear_model
import sklearn.model_selection
from measured import objective_of
from other_packages import installed

from mlops.contract.section import check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.feature_table import FeatureTable
from mlops.learners.learner import Lesson, load_learner
from mlops.learners.scikit_learn import Fitted
from mlops.testing import no_recipe
from mlops.testing.learners import EPOCHS, LearnerConformance

NETWORK = {"hidden_layer_sizes": [8], "batch_size": 20, "learning_rate_init": 0.01}
LABELS = {"labels": ["low", "middle", "high"]}
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
    "forest, labels": ("sklearn.ensemble:RandomForestClassifier", FOREST, "multilabel", LABELS, 1),
    "network, labels": ("sklearn.neural_network:MLPClassifier", NETWORK, "multilabel", LABELS, EPOCHS),
    "each label": ("learners_of_labels:each_label", {}, "multilabel", LABELS, EPOCHS),
    "chain of labels": ("learners_of_labels:chain", {}, "multilabel", LABELS, 1),
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
        features=(rng.normal(size=(len(labels), 2)) + labels.reshape(len(labels), -1)[:, :1]).astype(np.float32),
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


def of_two_labels() -> Lesson:
    """60 rows, of which none has the second label."""
    labels = np.random.default_rng(0).integers(0, 2, (60, 2)) * [1, 0]
    return replace(lesson("binary", labels=labels), objective=objective_of("multilabel", labels=["old", "new"]))


def test_a_label_that_no_row_has_is_improbable() -> None:
    """As on the first days of a new label: a forest then knows one class of it."""
    given = of_two_labels()
    learner = of("sklearn.ensemble:RandomForestClassifier", n_estimators=5)
    model, loss = learner.learn(learner.begin(given), given, 1)
    predicted = model.predict(given.train)
    assert predicted.shape == (60, 2)
    assert (predicted[:, 1] < -10).all()
    assert ((predicted[:, 0] > 0) == (given.train.labels[:, 0] > 0)).mean() > 0.9
    assert np.isfinite(loss)


def test_an_estimator_of_one_label_says_so() -> None:
    given, learner = of_two_labels(), of("sklearn.linear_model:LogisticRegression")
    with pytest.raises(BadConfigError, match="cannot learn from these rows"):
        learner.learn(learner.begin(given), given, 1)


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


def test_a_search_within_is_equal_bytes_each_time() -> None:
    """Broken: how long each fit took stands in the model, and folds were drawn from a generator that nobody seeds."""
    parameters = {
        "estimator": sklearn.linear_model.LogisticRegression(),
        "param_grid": {"C": [0.1, 1.0]},
        "cv": sklearn.model_selection.StratifiedKFold(3, shuffle=True),
    }
    given, found = lesson("binary"), set()
    for _ in range(3):
        settings = {"estimator": "sklearn.model_selection:GridSearchCV", "parameters": parameters}
        learner = load_learner("sklearn", settings, no_recipe)
        model, _ = learner.learn(learner.begin(given), given, 1)
        found.add(model.save())
    assert len(found) == 1


def test_what_says_only_after_learning_that_it_has_probabilities_learns() -> None:
    parts = [("trees", sklearn.ensemble.RandomForestClassifier(n_estimators=3, random_state=0))]
    given, learner = lesson("binary"), of("sklearn.ensemble:StackingClassifier", estimators=parts)
    model, loss = learner.learn(learner.begin(given), given, 1)
    assert np.isfinite(loss)
    assert np.isfinite(model.predict(given.train)).all()


def test_a_row_alone_has_the_margins_that_it_has_among_others() -> None:
    """Broken: a class without rows got its logit from the least of the request."""
    given = lesson("multiclass", labels=[0, 1, 3] * 20, classes=5)
    learner = of("sklearn.svm:LinearSVC")
    model, _ = learner.learn(learner.begin(given), given, 1)
    whole = model.predict(given.train)
    alone = np.concatenate([model.predict(given.train.take(np.array([row]))) for row in range(60)])
    np.testing.assert_array_equal(alone, whole)


def test_counts_that_are_all_0_in_a_leaf_have_a_loss() -> None:
    given = lesson("regression", labels=[0] * 40 + [5] * 20, loss="poisson")
    learner = of("sklearn.ensemble:RandomForestRegressor", n_estimators=3)
    _, loss = learner.learn(learner.begin(given), given, 1)
    assert np.isfinite(loss)


def test_margins_of_pairs_of_classes_are_refused() -> None:
    given = lesson("multiclass", labels=[0, 1, 2, 3] * 15, classes=4)
    learner = of("sklearn.svm:SVC", decision_function_shape="ovo")
    with pytest.raises(BadConfigError, match=r"SVC gives 6 numbers for 4 classes.*decision_function_shape to ovr"):
        learner.learn(learner.begin(given), given, 1)


def test_what_is_no_estimator_is_named() -> None:
    given, learner = lesson("binary"), of("collections:Counter")
    with pytest.raises(BadConfigError, match=r"collections:Counter makes Counter, which is no estimator"):
        learner.begin(given)


def test_a_loss_is_that_of_the_objective_s_own_link(tmp_path: Path) -> None:
    """Broken: a mean in the label's unit would be read as its logarithm, and the loss of claims of hundreds is inf."""
    rng = np.random.default_rng(0)
    claims = np.where(rng.random(200) < 0.5, 0, rng.gamma(2, 300, 200))
    with installed("mlops-tweedie", tmp_path / "site"):
        given = lesson("tweedie", labels=claims)
        learner = of("sklearn.linear_model:TweedieRegressor", power=1.5, link="log")
        model, loss = learner.learn(learner.begin(given), given, 1)
    means, labels = model.predict(given.train).astype(np.float64), given.train.labels.astype(np.float64)
    assert loss == pytest.approx(float((means**0.5 / 0.5 - labels * means**-0.5 / -0.5).mean()), rel=1e-4)


def test_a_loss_of_a_link_that_nobody_knows_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a number would be shown as the loss that is none."""
    given, learner = lesson("regression"), of("sklearn.linear_model:LinearRegression")
    monkeypatch.setattr(type(given.objective.functions), "predict", lambda self, outputs, batch: outputs.numpy() ** 3)
    _, loss = learner.learn(learner.begin(given), given, 1)
    assert loss is None


def as_a_step_gets_it(parameters: dict[str, Any]) -> Any:
    """Return the settings of the learner as they are once a pipeline's file has become JSON."""
    settings = {"estimator": "sklearn.linear_model:LogisticRegression", "parameters": parameters}
    train = {"learner": "sklearn", "learner_settings": settings, "objective": "binary", "metric": "auc", "epochs": 1}
    document = json.loads(json.dumps(check_section(Train, train, "train").model_dump(mode="json")))
    return check_section(Train, document, "train").learner_settings


def test_weights_of_classes_reach_the_estimator() -> None:
    """Broken: JSON has no numbers as keys, and scikit-learn would not find class 1 in the weights of class "1"."""
    given = lesson("binary")
    learner = load_learner("sklearn", as_a_step_gets_it({"class_weight": {0: 1, 1: 5}}), no_recipe)
    model, _ = learner.learn(learner.begin(given), given, 1)
    assert model.estimator.get_params()["class_weight"] == {0: 1, 1: 5}
    plain = of("sklearn.linear_model:LogisticRegression")
    unweighted, _ = plain.learn(plain.begin(given), given, 1)
    assert model.predict(given.train).mean() > unweighted.predict(given.train).mean()


def in_a_pipeline(**parameters: Any) -> Any:
    steps = [("step", sklearn.ensemble.RandomForestClassifier(n_estimators=3))]
    return sklearn.pipeline.Pipeline(steps).set_params(**parameters)


def test_weights_of_classes_reach_a_step_of_a_pipeline_and_each_label(monkeypatch: pytest.MonkeyPatch) -> None:
    given = of_two_labels()
    weights = [{0: 1, 1: 5}, {0: 1, 1: 2}]
    settings = {"estimator": "include.toy.own:in_a_pipeline", "parameters": {"step__class_weight": weights}}
    learner = load_learner("sklearn", json.loads(json.dumps(settings)), no_recipe)
    own = replace(given, objective=replace(given.objective, own=lambda path: in_a_pipeline))
    model = learner.begin(own)
    assert model.estimator.get_params()["step__class_weight"] == weights
