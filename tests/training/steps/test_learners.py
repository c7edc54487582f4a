"""Learners beside torch, from the training to the served answer."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import toy_model

from mlops.contract.refs import CheckpointRef, FeaturesRef, ModelVersionRef, ReportRef
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError, Failure
from mlops.features.fitted import held_out
from mlops.predictor.packing import open_checkpoint
from mlops.serving.model import ServedModel
from mlops.serving.package import package, served_example
from mlops.steps import train_learner
from mlops.store import Store
from mlops.store_errors import StoreError

QUANTILES = {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]}
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
SMALL = {"rounds_per_epoch": 5, "num_leaves": 7}
CASES: dict[str, dict[str, Any]] = {
    "binary": {"objective": "binary", "metric": "auc"},
    "classes": {"objective": "multiclass", "metric": "macro_f1", "objective_settings": {"classes": 5}},
    "ranking": {"objective": "ranking", "metric": "ndcg@10"},
    "mse": {"objective": "regression", "metric": "rmse"},
    "poisson": {"objective": "regression", "metric": "poisson_deviance", "objective_settings": {"loss": "poisson"}},
    "quantiles": {"objective": "regression", "metric": "pinball", "objective_settings": QUANTILES},
}


def section(case: str = "mse", **changes: Any) -> dict[str, Any]:
    return toy_model.train_by("lightgbm", {"learner_settings": SMALL, "epochs": 4, **CASES[case], **changes})


OWN = """
import json

import numpy as np
from mlops import LearnerSpec, Section


class Settings(Section):
    share: float = 0.5


class Constant:
    def __init__(self, value):
        self.value = value

    def predict(self, table):
        return np.full(table.num_rows, self.value, np.float32)

    def save(self):
        return json.dumps(self.value).encode()

    def importance(self, table):
        return {}


class Towards:
    def __init__(self, settings):
        self.share = settings.share

    def begin(self, lesson):
        return Constant(0.0)

    def load(self, data, objective):
        return Constant(json.loads(data))

    def learn(self, model, lesson, epoch):
        mean = float(lesson.train.labels.mean())
        return Constant(model.value + self.share * (mean - model.value)), abs(mean - model.value)


TOWARDS_THE_MEAN = LearnerSpec(implementation=Towards, kinds=["value"], section=Settings)
"""


@pytest.fixture
def boosted(project: Any, toy_checkpoint: Any) -> Any:
    """Trains the toy recipe by gradient-boosted trees."""

    def train(key: str = "train", case: str = "mse", columns: Sequence[pl.Expr] = (), **changes: Any) -> CheckpointRef:
        found = toy_checkpoint(binary=case == "binary", columns=columns, key=key, **section(case, **changes))
        assert isinstance(found, CheckpointRef)
        return found

    return train


@pytest.fixture
def judged(project: Any, run_step: Any) -> Any:
    """Judges a checkpoint against the champion, and makes it the next one."""

    def judge(checkpoint: CheckpointRef, key: str, metric: str) -> ReportRef:
        evaluate = {
            "registered_model": project.pipeline, "metric": metric, "metrics": [],
            "rules": [{"metric": metric, "at_least": 0.1}], "slices": [], "fairness": [], "price_per_gpu_hour": None,
        }  # fmt: skip
        report = run_step(project, project.step_input("evaluate", evaluate, checkpoint, key))
        assert isinstance(report, ReportRef), report
        register = {"registered_model": project.pipeline}
        version = run_step(project, project.step_input("register", register, report, key))
        move = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
        assert isinstance(run_step(project, project.step_input("promote", move, version, key)), ModelVersionRef)
        return report

    return judge


def scored(project: Any, checkpoint: CheckpointRef, scratch: Path) -> Any:
    rows = held_out(project.store, checkpoint.ancestor(FeaturesRef))
    return open_checkpoint(project.store, checkpoint, scratch).score(rows).predictions


@pytest.mark.parametrize("case", CASES)
def test_trees_learn_every_objective_for_rows(project: Any, boosted: Any, tmp_path: Path, case: str) -> None:
    checkpoint = boosted(case=case)
    history = json.loads(project.store.read(checkpoint.artifacts["history"]))
    assert len(history) == 4
    name = CASES[case]["metric"]
    better = max if name in ("auc", "ndcg@10", "macro_f1") else min
    assert checkpoint.metrics[name] == better(epoch["validation_metric"] for epoch in history)
    predictions = scored(project, checkpoint, tmp_path)
    assert np.isfinite(predictions.predicted).all()
    assert predictions.predicted.ndim == (2 if case in ("quantiles", "classes") else 1)


def test_it_is_judged_registered_and_served(project: Any, boosted: Any, run_step: Any, tmp_path: Path) -> None:
    checkpoint = boosted()
    section = {
        "registered_model": project.pipeline, "metric": "rmse", "metrics": ["r2"],
        "rules": [{"metric": "r2", "at_least": 0.2}], "slices": [], "fairness": [], "price_per_gpu_hour": None,
    }  # fmt: skip
    report = run_step(project, project.step_input("evaluate", section, checkpoint))
    assert isinstance(report, ReportRef), report
    assert report.passed, report.reason
    page = project.store.read(report.artifacts["report"]).decode()
    assert "What predictions rest on" in page
    assert ">good<" in page, "the feature that says most is named in the figure"
    assert "What is lost where a column is shuffled" in page
    lost = json.loads(project.store.read(report.artifacts["metrics"]))["column_importance"]["candidate"]
    assert max(lost, key=lambda column: lost[column]) == "good"
    assert lost.keys() == {"day", "city", "seats", "weekend", "good"}, "not what only groups and orders the rows"
    scratch = tmp_path / "served"
    scratch.mkdir()
    folder = package(project.store, checkpoint, served_example(project.store, checkpoint, scratch), scratch)
    [data] = folder.rglob("serving.json")
    model = ServedModel(data.parent)
    rows = model.predictor.example(held_out(project.store, checkpoint.ancestor(FeaturesRef)))
    assert list(model.predict(rows.to_pandas())) == ["prediction"]
    required = {line.partition("==")[0] for line in (folder / "requirements.txt").read_text().split()}
    assert {"lightgbm", "polars", "mlflow"} <= required


def test_a_recipe_brings_its_own(project: Any, toy_checkpoint: Any, judged: Any, tmp_path: Path) -> None:
    """And it is scored and served by the code that is stored, whatever the recipe holds by then."""
    recipe = project.home / "include/toy"
    (recipe / "learner.py").write_text(OWN)
    own = {"learner_settings": {"share": 0.25}, "epochs": 3, **CASES["mse"]}
    checkpoint = toy_checkpoint(**toy_model.train_by("include.toy.learner:TOWARDS_THE_MEAN", own))
    losses = [epoch["train_loss"] for epoch in json.loads(project.store.read(checkpoint.artifacts["history"]))]
    assert losses[2] == pytest.approx(0.75**2 * losses[0], rel=1e-3)
    (recipe / "learner.py").write_text("raise RuntimeError")
    assert np.ptp(scored(project, checkpoint, tmp_path).predicted) == 0
    assert judged(checkpoint, "first", "rmse").metrics["rmse"] > 0


def failed(project: Any, features: FeaturesRef, run_step: Any, before: str, after: str) -> Failure:
    """The failure of a training by somebody's own learner, with another text in place of one in its code."""
    own = OWN.replace(before, after)
    assert own != OWN
    (project.home / "include/toy/learner.py").write_text(own)
    train = toy_model.train_by("include.toy.learner:TOWARDS_THE_MEAN", CASES["mse"])
    failure = run_step(project, project.step_input("train", train, features))
    assert isinstance(failure, Failure), failure
    return failure


@pytest.mark.parametrize(
    ("loss", "shown"), [("float('nan')", "nan"), ("float('inf')", "inf")], ids=["not a number", "infinite"]
)
def test_a_loss_that_is_not_finite_names_learner_and_objective(
    project: Any, toy_features: FeaturesRef, run_step: Any, loss: str, shown: str
) -> None:
    """Broken: the training died as it was saved, of a message about JSON, and each retry learnt it all again."""
    failure = failed(project, toy_features, run_step, "abs(mean - model.value)", loss)
    assert f"learner 'include.toy.learner:TOWARDS_THE_MEAN' returned the loss {shown} in epoch 1" in failure.message
    assert "objective 'regression'" in failure.message
    assert not failure.retryable


def test_a_loss_that_nobody_knows_is_left_out(project: Any, toy_checkpoint: Any, judged: Any) -> None:
    """Broken: a learner that cannot tell its loss had to make up a number, which the curves showed as one."""
    own = OWN.replace("abs(mean - model.value)", "None")
    (project.home / "include/toy/learner.py").write_text(own)
    train = toy_model.train_by("include.toy.learner:TOWARDS_THE_MEAN", {**CASES["mse"], "epochs": 2})
    checkpoint = toy_checkpoint(**train)
    assert checkpoint.metrics.keys() == {"rmse"}
    history = json.loads(project.store.read(checkpoint.artifacts["history"]))
    assert [epoch["train_loss"] for epoch in history] == [None, None]
    assert judged(checkpoint, "first", "rmse").metrics["rmse"] > 0


@pytest.mark.parametrize(
    ("predicted", "shape"),
    [("np.full((table.num_rows, 1), self.value, np.float32)", "[200, 1]"), ("np.zeros(3, np.float32)", "[3]")],
    ids=["a column", "too few"],
)
def test_predictions_of_another_shape_name_the_learner(
    project: Any, toy_features: FeaturesRef, run_step: Any, predicted: str, shape: str
) -> None:
    """Broken: the largest of one column is always the first, and accuracy would measure a model that says class 0."""
    failure = failed(project, toy_features, run_step, "np.full(table.num_rows, self.value, np.float32)", predicted)
    told = "learner 'include.toy.learner:TOWARDS_THE_MEAN' predicted an array of shape"
    assert told in failure.message
    assert "one number per row is needed" in failure.message
    assert not failure.retryable


@pytest.mark.parametrize("objective", ["multiclass", "regression"])
def test_no_rows_are_answered_by_none(project: Any, toy_checkpoint: Any, tmp_path: Path, objective: str) -> None:
    """Broken: a server would answer with an error of scikit-learn where all groups of a request are too small."""
    estimator, settings, metric = {
        "multiclass": ("sklearn.ensemble:RandomForestClassifier", {"classes": 5}, "accuracy"),
        "regression": ("sklearn.ensemble:RandomForestRegressor", {}, "rmse"),
    }[objective]
    given = {"estimator": estimator, "parameters": {"n_estimators": 3}}
    train = {"learner_settings": given, "objective": objective, "objective_settings": settings, "metric": metric}
    checkpoint = toy_checkpoint(**toy_model.train_by("sklearn", {**train, "epochs": 1}))
    predictor = open_checkpoint(project.store, checkpoint, tmp_path)
    rows = held_out(project.store, checkpoint.ancestor(FeaturesRef))
    alone = rows.filter(pl.col("query") == rows["query"][0]).head(1)
    for few in (alone, rows.clear()):
        for name, values in predictor.answer(few).items():
            assert len(values) == len(few), name
            assert pl.Series(values).is_null().all() or np.isnan(values.astype(float)).all(), name
        assert len(predictor.score(few).predictions.predicted) == 0


def test_a_model_that_answers_in_another_shape_is_refused(
    project: Any, toy_checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: as its package changes, a model would be measured and served as something else."""
    given = {"estimator": "sklearn.ensemble:RandomForestRegressor", "parameters": {"n_estimators": 3}}
    checkpoint = toy_checkpoint(
        **toy_model.train_by("sklearn", {"learner_settings": given, "epochs": 1, **CASES["mse"]})
    )
    predictor = open_checkpoint(project.store, checkpoint, tmp_path)
    rows = held_out(project.store, checkpoint.ancestor(FeaturesRef))
    monkeypatch.setattr(predictor, "_scores", lambda table: np.zeros((table.num_rows, 1)))
    with pytest.raises(BadConfigError, match=r"the model of learner 'sklearn' predicted an array of shape \[\d+, 1\]"):
        predictor.score(rows)


PIPELINE = """
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline


class Clipped(TransformerMixin, BaseEstimator):
    def __init__(self, most):
        self.most = most

    def fit(self, features, labels=None):
        return self

    def transform(self, features):
        return np.clip(features, -self.most, self.most)


def build_estimator(most):
    return make_pipeline(Clipped(most), LogisticRegression(max_iter=500))
"""


def test_a_pipeline_of_scikit_learn_is_judged_and_served(
    project: Any, toy_checkpoint: Any, judged: Any, tmp_path: Path
) -> None:
    """Of classes that the recipe defines: they are stored with the model, and the checkout is needed no more."""
    (project.home / "include/toy/estimators.py").write_text(PIPELINE)
    settings = {
        "learner_settings": {"estimator": "include.toy.estimators:build_estimator", "parameters": {"most": 1.5}},
        "objective": "multiclass", "objective_settings": {"classes": 5}, "metric": "accuracy", "epochs": 1,
    }  # fmt: skip
    checkpoint = toy_checkpoint(**toy_model.train_by("sklearn", settings))
    again = toy_checkpoint(key="again", **toy_model.train_by("sklearn", settings))
    assert again.artifacts["weights"].sha256 == checkpoint.artifacts["weights"].sha256
    (project.home / "include/toy/estimators.py").write_text("raise RuntimeError")
    report = judged(checkpoint, "first", "accuracy")
    assert report.metrics["accuracy"] > 0.3
    scratch = tmp_path / "served"
    scratch.mkdir()
    folder = package(project.store, checkpoint, served_example(project.store, checkpoint, scratch), scratch)
    required = {line.partition("==")[0] for line in (folder / "requirements.txt").read_text().split()}
    assert {"scikit-learn", "polars", "mlflow"} <= required
    [data] = folder.rglob("serving.json")
    model = ServedModel(data.parent)
    rows = model.predictor.example(held_out(project.store, checkpoint.ancestor(FeaturesRef)))
    assert set(model.predict(rows.to_pandas())["class"].dropna()) <= set("01234")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner": "include.other.learner:TOWARDS_THE_MEAN"}, "train.learner must be in include.toy, as the feature"),
        ({"learner_settings": {"shar": 0.25}}, "train.learner_settings: unknown key 'shar'; did you mean 'share'?"),
        ({"objective": "ranking", "metric": "mrr"}, "learns value, and the objective ranking predicts relevance"),
    ],
)
def test_a_mistake_about_an_own_learner_is_said_when_the_step_begins(
    project: Any, toy_checkpoint: Any, changes: dict[str, Any], message: str
) -> None:
    (project.home / "include/toy/learner.py").write_text(OWN)
    (project.home / "include/other").mkdir()
    (project.home / "include/other/learner.py").write_text(OWN)
    settings = {"learner": "include.toy.learner:TOWARDS_THE_MEAN", **CASES["mse"], **changes}
    with pytest.raises(AssertionError, match=re.escape(message)):
        toy_checkpoint(**toy_model.train_by(settings["learner"], settings))


@pytest.mark.parametrize("champion", ["torch", "lightgbm"])
def test_it_is_judged_against_a_champion_of_another_learner(
    project: Any, boosted: Any, toy_checkpoint: Any, judged: Any, champion: str
) -> None:
    """Broken: whoever has a model in production could never try another kind of model against it."""
    learners = {"torch": lambda key: toy_checkpoint(key=key), "lightgbm": lambda key: boosted(key, "ranking")}
    [candidate] = learners.keys() - {champion}
    first = judged(learners[champion]("first"), "first", "ndcg@10")
    second = judged(learners[candidate]("second"), "second", "ndcg@10")
    assert second.champion == "1"
    assert second.metrics["champion.ndcg@10"] == pytest.approx(first.metrics["ndcg@10"], abs=1e-12)
    assert second.metrics["ndcg@10"] != first.metrics["ndcg@10"]
    lost = json.loads(project.store.read(second.artifacts["metrics"]))["column_importance"]
    assert max(lost["champion"], key=lambda column: lost["champion"][column]) == "good", "beside the candidate's"
    rests = json.loads(project.store.read(second.artifacts["metrics"]))["feature_importance"]
    trees = "champion" if champion == "lightgbm" else "candidate"
    assert max(rests[trees], key=lambda name: rests[trees][name]) == "good"
    assert sum(rests[trees].values()) == pytest.approx(1)
    assert rests["candidate" if trees == "champion" else "champion"] == {}, "a network does not say"


def test_ids_of_a_vocabulary_are_categories_for_it(project: Any, boosted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: trees would cut ids as if 3 lay between 2 and 4, and need many cuts for what one says."""
    ids = toy_model.FEATURES.replace('Vocabulary("city", ', 'Vocabulary("city", encoding="id", ')
    assert ids != toy_model.FEATURES
    monkeypatch.setattr(toy_model, "FEATURES", ids)
    by_city = pl.col("city").replace_strict({"A": 3, "B": 0, "Zürich": 3}, default=0, return_dtype=pl.Int64)
    checkpoint = boosted(columns=[by_city.alias("label")], epochs=20, learner_settings={**SMALL, "num_leaves": 2})
    manifest = json.loads(project.store.read(checkpoint.ancestor(FeaturesRef).artifacts["manifest"]))
    assert [manifest["feature_names"][place] for place in manifest["categorical"]] == ["city_id"]
    assert b"num_cat=1" in project.store.read(checkpoint.artifacts["weights"])
    assert checkpoint.metrics["rmse"] < 0.1, "one cut tells A and Zürich from B and a missing one"


def test_a_training_that_was_killed_ends_in_the_same_bits(
    project: Any, boosted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each epoch, before and after the save; with bagging, whose draws would tell."""
    settings = {"learner_settings": {**SMALL, "bagging_fraction": 0.6, "feature_fraction": 0.6}}
    whole = boosted("whole", **settings)
    save = train_learner.Saves.save

    for number, after in [(1, False), (2, True), (3, False), (4, True)]:

        def killed(
            self: Any, model: bytes, state: Any, spent: float, number: int = number, after: bool = after
        ) -> None:
            if len(state.history) == number and not after:
                raise KeyboardInterrupt
            save(self, model, state, spent)
            if len(state.history) == number:
                raise KeyboardInterrupt

        key = f"killed{number}"
        with monkeypatch.context() as patch:
            patch.setattr(train_learner.Saves, "save", killed)
            with pytest.raises(KeyboardInterrupt):
                boosted(key, **settings)
        again = boosted(key, **settings)
        assert again.artifacts["weights"].sha256 == whole.artifacts["weights"].sha256
        assert again.metrics == whole.metrics


@pytest.fixture
def slow(project: Any, boosted: Any, config: Any) -> tuple[CheckpointRef, Any]:
    """A training of some seconds that nothing disturbed, and what starts it in a process of its own, by its key."""
    settings = section(epochs=40, learner_settings={"rounds_per_epoch": 10, "num_leaves": 15, "bagging_fraction": 0.6})
    whole = boosted("whole", epochs=40, learner_settings=settings["learner_settings"])
    features = whole.ancestor(FeaturesRef)

    def start(key: str, name: str) -> Any:
        return project.start(project.step_input("train", config(**settings), features, key), name=name)

    return whole, start


def newest_saved(project: Any, key: str) -> int:
    keys = project.store.list(f"pipelines/{project.pipeline}/train/{key}/checkpoints/epochs")
    return max((int(Path(saved).stem) for saved in keys if saved.endswith(".json")), default=0)


def test_killed_at_any_moment_it_ends_in_the_same_bits(project: Any, slow: Any) -> None:
    """Broken: a preemption would change the model."""
    whole, start = slow
    moment = np.random.default_rng(ROUNDS)
    for kill in range(3 * ROUNDS):
        struck = start("killed", f"kill{kill}")
        least = newest_saved(project, "killed") + 1
        struck.wait_until(lambda: newest_saved(project, "killed") >= least)  # noqa: B023
        time.sleep(moment.uniform(0, 0.1))
        struck.kill()
        assert newest_saved(project, "killed") < 40, "killed too late to prove anything"
        if least > 30:
            break
    last = start("killed", "last")
    again = last.result()
    assert isinstance(again, CheckpointRef), last.log
    assert "going on after epoch" in last.log
    assert again.artifacts["weights"].sha256 == whole.artifacts["weights"].sha256
    assert again.metrics == whole.metrics


def test_two_processes_that_meet_end_in_the_same_bits(project: Any, slow: Any) -> None:
    """Broken: a step that is started again while its lost process still runs would spoil the training of both."""
    whole, start = slow
    both = [start("met", name) for name in ("lost", "new")]
    results = [process.result() for process in both]
    for process, found in zip(both, results, strict=True):
        assert isinstance(found, CheckpointRef), process.log
        assert found.artifacts["weights"].sha256 == whole.artifacts["weights"].sha256


def test_an_epoch_that_another_process_removes_meanwhile_costs_nothing(
    project: Any, boosted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a busy machine: one process removes epoch 2, for it is at 6, while the other writes it."""
    whole = boosted("whole")
    place = f"pipelines/{project.pipeline}/train/met/checkpoints/epochs"
    put = Store.put_artifact

    def removed(self: Any, folder: str, name: str, data: bytes) -> Any:
        if folder == place and name == "000002.model":
            self.put(f"{place}/000006.json", b"{}")
            raise StoreError(f"cannot write {place}/{name}: No such file or directory")
        return put(self, folder, name, data)

    monkeypatch.setattr(Store, "put_artifact", removed)
    assert boosted("met").artifacts["weights"].sha256 == whole.artifacts["weights"].sha256


def test_a_store_that_cannot_be_written_ends_the_training(
    project: Any, boosted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Any, folder: str, name: str, data: bytes) -> Any:
        raise StoreError(f"cannot write {folder}/{name}: No space left on device")

    monkeypatch.setattr(Store, "put_artifact", refused)
    with pytest.raises(StoreError, match="No space left"):
        boosted("full")


@pytest.mark.parametrize("damage", ["model", "model gone", "document", "document of nothing"])
def test_a_damaged_save_is_passed_over(
    project: Any, boosted: Any, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Broken: a training would end, or go on from a model that was never learnt."""
    whole = boosted("whole")
    save = train_learner.Saves.save

    def damaged(self: Any, model: bytes, state: Any, spent: float) -> None:
        save(self, model, state, spent)
        if len(state.history) == 3:
            break_save(project.store, self.place, 3, damage)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_learner.Saves, "save", damaged)
        with pytest.raises(KeyboardInterrupt):
            boosted("again")
    assert boosted("again").artifacts["weights"].sha256 == whole.artifacts["weights"].sha256


def break_save(store: Any, place: str, epoch: int, damage: str) -> None:
    keys = [key for key in store.list(f"{place}/checkpoints/epochs") if f"/{epoch:06d}." in key]
    [model], [document] = (
        [key for key in keys if key.endswith(".model")],
        [key for key in keys if key.endswith(".json")],
    )
    if damage == "model":
        store.put(model, store.get(model)[:-1] + b"?")
    elif damage == "model gone":
        store.delete([model])
    else:
        store.put(document, b"{" if damage == "document" else b"{}")


def test_the_best_of_what_is_whole_is_published(project: Any, boosted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a rotten file would be registered as the best model."""
    whole = boosted("whole")
    save = train_learner.Saves.save

    def rotting(self: Any, model: bytes, state: Any, spent: float) -> None:
        save(self, model, state, spent)
        if len(state.history) == 4:
            break_save(project.store, self.place, whole.epoch, "model")

    monkeypatch.setattr(train_learner.Saves, "save", rotting)
    second = boosted("rotten")
    history = json.loads(project.store.read(second.artifacts["history"]))
    ranking = sorted(history, key=lambda epoch: epoch["validation_metric"])
    assert [whole.epoch, second.epoch] == [epoch["epoch"] for epoch in ranking[:2]]
    assert json.loads(project.store.read(second.artifacts["lost_best"]))["epoch"] == whole.epoch
    assert second.artifacts["weights"].sha256 != whole.artifacts["weights"].sha256


def test_the_newest_and_the_best_are_kept(project: Any, boosted: Any) -> None:
    """Broken: a long training would fill the store, each epoch with all trees before it."""
    checkpoint = boosted(epochs=12, learner_settings={**SMALL, "learning_rate": 0.9})
    keys = list(project.store.list(f"{checkpoint.place}/checkpoints/epochs"))
    history = json.loads(project.store.read(checkpoint.artifacts["history"]))
    best = sorted(history, key=lambda epoch: (epoch["validation_metric"], epoch["epoch"]))[:2]
    for kind in (".json", ".model"):
        saved = {int(Path(key).name.partition(".")[0]) for key in keys if key.endswith(kind)}
        assert saved == {10, 11, 12, *(epoch["epoch"] for epoch in best)}


def test_it_stops_where_it_no_longer_gets_better(project: Any, boosted: Any) -> None:
    checkpoint = boosted(epochs=200, learner_settings={**SMALL, "learning_rate": 0.9}, early_stopping={"patience": 2})
    assert len(json.loads(project.store.read(checkpoint.artifacts["history"]))) < 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner": "lightgb"}, "learner must be one of torch, lightgbm, sklearn (did you mean 'lightgbm'?)"),
        (
            {"learner_settings": {"num_leafs": 3}},
            "unknown key 'learner_settings.num_leafs'; did you mean 'num_leaves'?",
        ),
        ({"learner_settings": {"num_leaves": 1}}, "learner_settings.num_leaves must be >= 2, got 1"),
        ({"processes": 2}, "processes is of learner: torch; remove it, or see learner_settings of lightgbm"),
        ({"model": "include.a.model:build"}, "model is of learner: torch"),
        ({"learner": "torch", "learner_settings": {}}, "learner: torch needs model"),
        ({"objective": "language_model", "metric": "perplexity"}, "the objective language_model predicts token_loss"),
    ],
)
def test_a_mistake_is_said_where_it_stands(changes: dict[str, Any], message: str) -> None:
    section = {"learner": "lightgbm", "objective": "regression", "metric": "mae", "learner_settings": SMALL, **changes}
    with pytest.raises(SpecError) as raised:
        check_section(Train, section, "train")
    assert message in str(raised.value)
