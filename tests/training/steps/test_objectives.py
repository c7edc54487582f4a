"""Objectives beside ranking and binary, from the training to the served answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import toy_model
import yaml
from other_packages import REPOSITORY, installed

from mlops.contract.refs import CheckpointRef, FeaturesRef, ModelVersionRef, ReportRef
from mlops.contract.step import Failure
from mlops.features.fitted import held_out
from mlops.predictor.packing import open_checkpoint
from mlops.serving.model import ServedModel
from mlops.serving.package import package, served_example

MODEL = """
from torch import nn


class Squeeze(nn.Module):
    def forward(self, outputs):
        return outputs.squeeze(-1)


def build_model(config):
    outputs = getattr(config, "num_outputs", 1)
    return nn.Sequential(nn.Linear(config.num_features, outputs), Squeeze() if outputs == 1 else nn.Identity())
"""
DEEP = """
from torch import nn


def build_model(config):
    first, last = nn.Linear(config.num_features, 8), nn.Linear(8, config.num_outputs)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 8), last)
"""
QUANTILES = {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]}
OWN = """
import numpy as np
from pydantic import Field

from mlops import MetricSpec, ObjectiveSpec, Section, check_outputs, mean_of_rows, ratio_of_sums, without_padding


class Settings(Section):
    scale: float = Field(default=2.0, gt=0)


class LogCosh:
    num_outputs = 1
    columns = {"estimate": "double"}

    def __init__(self, settings):
        self.scale = settings.scale

    def loss(self, model, batch):
        errors = (check_outputs(model(batch.features), batch) - batch.labels) / self.scale
        return mean_of_rows(errors.cosh().log(), batch)

    def predict(self, outputs, batch):
        return without_padding(check_outputs(outputs, batch), batch)

    def check_labels(self, labels):
        pass

    def answer(self, predictions):
        return {"estimate": predictions.predicted.astype(np.float64)}


def far(predictions, parameter):
    errors = np.abs(predictions.predicted - predictions.labels)
    return ratio_of_sums(errors > parameter, np.ones(len(errors)), predictions.offsets)


LOG_COSH = ObjectiveSpec(predicts="value", section=Settings, implementation=LogCosh)
"""


@pytest.fixture
def evaluated(project: Any, run_step: Any) -> Any:
    def evaluate(checkpoint: Any, key: str, **changes: Any) -> Any:
        section = {
            "registered_model": project.pipeline,
            "metric": "mae",
            "metrics": [],
            "rules": [{"improvement": 0.0, "min_samples": 30}],
            "slices": [],
            "fairness": [],
            "price_per_gpu_hour": None,
            **changes,
        }
        return run_step(project, project.step_input("evaluate", section, checkpoint, key))

    return evaluate


@pytest.fixture
def promoted(project: Any, run_step: Any) -> Any:
    """Puts the model of a report into production."""

    def promote(report: Any) -> None:
        section = {"registered_model": project.pipeline}
        version = run_step(project, project.step_input("register", section, report, "first"))
        move = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
        assert isinstance(run_step(project, project.step_input("promote", move, version, "first")), ModelVersionRef)

    return promote


@pytest.fixture
def learnt(project: Any, toy_checkpoint: Any) -> Any:
    """Trains the toy recipe for ten epochs, by a linear model."""
    (project.home / "include/toy/model.py").write_text(MODEL)

    def train(key: str, **changes: Any) -> Any:
        settings = {"objective": "regression", "metric": "mae", "learning_rate": 0.05, "epochs": 10, **changes}
        return toy_checkpoint(key=key, **settings)

    return train


def served(project: Any, checkpoint: Any, scratch: Path) -> tuple[Any, Path]:
    """The answer of the model's package for its own example, and the package's folder."""
    scratch.mkdir()
    example = served_example(project.store, checkpoint, scratch)
    folder = package(project.store, checkpoint, example, scratch)
    [data] = folder.rglob("serving.json")
    model = ServedModel(data.parent)
    rows = model.predictor.example(held_out(project.store, checkpoint.ancestor(FeaturesRef)))
    return model.predict(rows.to_pandas()), folder


def test_the_metric_that_the_page_shows_is_measured(project: Any, learnt: Any, evaluated: Any) -> None:
    """Broken: whoever copies the example would begin with an error."""
    page = (REPOSITORY / "docs/write-your-own/metric.md").read_text().replace("taxi", "toy")
    code, settings = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("python", "yaml"))
    (project.home / "include/toy/metrics.py").write_text(code)
    report = evaluated(learnt("page"), "page", **yaml.safe_load(settings)["evaluate"])
    assert isinstance(report, ReportRef), report
    assert report.metrics["candidate.within"] == 1.0
    assert report.passed


def test_a_regression_goes_all_the_way(
    project: Any, learnt: Any, evaluated: Any, run_step: Any, tmp_path: Path
) -> None:
    """Quantiles are judged against a mean in production, by what both have."""
    first = evaluated(learnt("first", epochs=1, learning_rate=0.001), "first", metrics=["rmse", "r2"])
    assert isinstance(first, ReportRef), first
    assert first.passed
    version = run_step(project, project.step_input("register", {"registered_model": project.pipeline}, first, "first"))
    assert isinstance(version, ModelVersionRef), version
    move = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
    assert isinstance(run_step(project, project.step_input("promote", move, version, "first")), ModelVersionRef)

    checkpoint = learnt("second", objective_settings=QUANTILES, metric="pinball", metrics=["quantile_error"])
    history = json.loads(project.store.read(checkpoint.artifacts["history"]))
    assert history[-1]["further_metrics"].keys() == {"quantile_error"}
    second = evaluated(checkpoint, "second", metrics=["r2"], slices=["city"])
    assert isinstance(second, ReportRef), second
    assert second.passed, second.reason
    assert second.metrics["candidate.mae"] < second.metrics["champion.mae"]
    html = project.store.read(second.artifacts["report"]).decode()
    for title in ("Predicted and actual", "Residuals", "Calibration of the quantiles", "mean absolute error, lower is"):
        assert title in html

    failure = evaluated(checkpoint, "third", metric="pinball")
    assert isinstance(failure, Failure)
    assert "pinball is not defined for what it predicts" in failure.message

    answer, _ = served(project, checkpoint, tmp_path / "served")
    assert list(answer) == ["prediction", "quantile_0.1", "quantile_0.5", "quantile_0.9"]
    known = answer.dropna().astype(float)
    assert len(known)
    assert (known["quantile_0.1"] <= known["prediction"]).all()
    assert (known["prediction"] == known["quantile_0.5"]).all()


def test_quantiles_are_not_compared_with_others_by_what_averages_over_them(
    project: Any, learnt: Any, evaluated: Any, promoted: Any
) -> None:
    """Broken: a candidate of easier quantiles would beat the champion, however little it knows."""
    settings = {"metric": "pinball", "epochs": 1}
    promoted(evaluated(learnt("first", objective_settings=QUANTILES, **settings), "first", metric="pinball"))
    checkpoint = learnt("other", objective_settings={**QUANTILES, "quantiles": [0.4, 0.5]}, **settings)
    for key, measured in {"pinball": {"metric": "pinball"}, "quantile_error": {"metrics": ["quantile_error"]}}.items():
        failure = evaluated(checkpoint, key, **measured)
        assert isinstance(failure, Failure), failure
        levels = f"quantiles are [0.1, 0.5, 0.9], and the candidate's [0.4, 0.5]: {key} is an average over each"
        assert levels in failure.message
    assert isinstance(evaluated(checkpoint, "by the median", metrics=["rmse"]), ReportRef)


def test_a_label_of_another_column_is_not_the_same_label(
    project: Any, learnt: Any, evaluated: Any, promoted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a champion that predicts minutes would be measured by hours, and always lose."""
    promoted(evaluated(learnt("minutes", epochs=1), "minutes"))
    hours = toy_model.FEATURES.replace('label="label"', 'label="hours", outcomes=["label"]')
    monkeypatch.setattr(toy_model, "FEATURES", hours)
    failure = evaluated(learnt("hours", epochs=1, columns=[(pl.col("label") / 60).alias("hours")]), "hours")
    assert isinstance(failure, Failure), failure
    told = (
        "its labels mean something else: the columns of FeatureSet.label are ['label'], and the candidate's ['hours']"
    )
    assert told in failure.message


def test_classes_go_all_the_way(project: Any, learnt: Any, evaluated: Any, run_step: Any, tmp_path: Path) -> None:
    """Text in, the name of a class out; and a model of other classes is not compared with it."""
    names = ["useless", "poor", "fair", "good", "great"]
    settings = {"objective": "multiclass", "metric": "accuracy", "objective_settings": {"classes": names}}
    checkpoint = learnt("classes", **settings, metrics=["macro_f1", "log_loss"])
    measured = ["balanced_accuracy", "macro_f1", "log_loss", "top_k_accuracy@2", "calibration_error"]
    report = evaluated(checkpoint, "classes", metric="accuracy", metrics=measured, slices=["city"])
    assert isinstance(report, ReportRef), report
    assert report.metrics["candidate.top_k_accuracy@2"] > report.metrics["candidate.accuracy"] > 0.4
    html = project.store.read(report.artifacts["report"]).decode()
    assert "Confusion" in html
    assert "useless" in html
    answer, folder = served(project, checkpoint, tmp_path / "served")
    assert list(answer) == ["class", "probability", *(f"probability_{name}" for name in names)]
    known = answer.dropna()
    assert len(known)
    shares = known[[f"probability_{name}" for name in names]].astype(float).to_numpy()
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    assert known["class"].tolist() == [names[place] for place in shares.argmax(axis=1)]
    np.testing.assert_array_equal(known["probability"].astype(float), shares.max(axis=1))
    assert "string" in (folder / "MLmodel").read_text()

    version = run_step(
        project, project.step_input("register", {"registered_model": project.pipeline}, report, "classes")
    )
    move = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
    assert isinstance(run_step(project, project.step_input("promote", move, version, "classes")), ModelVersionRef)
    renamed = learnt("renamed", **{**settings, "objective_settings": {"classes": names[::-1]}})
    failure = evaluated(renamed, "renamed", metric="accuracy")
    assert isinstance(failure, Failure)
    assert "its labels mean something else: its objective_settings.classes is" in failure.message


LABELS = ["good_one", "bad_one", "big_one"]
OF_LABELS = [
    (pl.col("good").fill_null(0) > 0.5).alias("good_one"),
    (pl.col("good").fill_null(0) < -0.5).cast(pl.Int8).alias("bad_one"),
    (pl.col("seats").fill_null(0) > 5).cast(pl.Float64).alias("big_one"),
]
MULTILABEL = {"objective": "multilabel", "metric": "macro_auc", "objective_settings": {"labels": LABELS}}


@pytest.fixture
def labelled(learnt: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Trains the toy recipe, whose rows have three labels."""
    plain = toy_model.FEATURES

    def train(key: str, *, names: list[str] = LABELS, columns: list[pl.Expr] = OF_LABELS, **changes: Any) -> Any:
        text = plain.replace('label="label"', f"label={names}, outcomes=['label']")
        monkeypatch.setattr(toy_model, "FEATURES", text)
        return learnt(key, columns=columns, **{**MULTILABEL, **changes})

    return train


@pytest.mark.parametrize("learner", ["torch", "lightgbm", "sklearn"])
def test_several_labels_of_a_row_go_all_the_way(
    project: Any,
    labelled: Any,
    learnt: Any,
    evaluated: Any,
    run_step: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    learner: str,
) -> None:
    plain = toy_model.FEATURES
    changes: dict[str, Any] = {"metrics": ["micro_f1", "log_loss"]}
    if learner != "torch":
        forest = {"estimator": "sklearn.ensemble:RandomForestClassifier", "parameters": {"max_depth": 6}}
        settings = {"rounds_per_epoch": 5} if learner == "lightgbm" else forest
        given = {"learner_settings": settings, "epochs": 1, **MULTILABEL, **changes}
        changes = toy_model.train_by(learner, given)
    checkpoint = labelled("first", **changes)
    measured = ["accuracy", "hamming_loss", "macro_f1", "calibration_error"]
    report = evaluated(checkpoint, "first", metric="macro_auc", metrics=measured, slices=["city"])
    assert isinstance(report, ReportRef), report
    assert report.metrics["candidate.macro_auc"] > 0.8
    assert report.metrics["candidate.hamming_loss"] < 0.25
    html = project.store.read(report.artifacts["report"]).decode()
    for words in ("F1 of each label", "Area under the ROC curve of each label", "big_one"):
        assert words in html
    answer, _ = served(project, checkpoint, tmp_path / "served")
    assert list(answer) == [f"probability_{name}" for name in LABELS]
    scored = open_checkpoint(project.store, checkpoint, tmp_path).score(
        held_out(project.store, checkpoint.ancestor(FeaturesRef))
    )
    assert scored.predictions.labels.shape == scored.predictions.predicted.shape
    actual, predicted = scored.predictions.labels > 0, scored.predictions.predicted > 0
    assert report.metrics["candidate.accuracy"] == pytest.approx((actual == predicted).all(axis=1).mean())

    move = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
    section = {"registered_model": project.pipeline}
    version = run_step(project, project.step_input("register", section, report, "first"))
    assert isinstance(run_step(project, project.step_input("promote", move, version, "first")), ModelVersionRef)
    better = evaluated(labelled("second", epochs=20), "second", metric="macro_auc")
    assert isinstance(better, ReportRef), better
    assert better.metrics["champion.macro_auc"] == report.metrics["candidate.macro_auc"]
    others = {"names": LABELS[::-1], "objective_settings": {"labels": LABELS[::-1]}}
    failure = evaluated(labelled("other", **others), "other", metric="macro_auc")
    assert isinstance(failure, Failure), failure
    told = "its labels mean something else: the columns of FeatureSet.label are ['good_one', 'bad_one', 'big_one']"
    assert told in failure.message
    # Both have log loss, and logits of three labels are no logits of one.
    monkeypatch.setattr(toy_model, "FEATURES", plain)
    single = {"columns": OF_LABELS, "objective": "binary", "metric": "log_loss", "objective_settings": {}}
    failure = evaluated(learnt("single", binary=True, **single), "single", metric="log_loss")
    assert isinstance(failure, Failure), failure
    assert told + ", and the candidate's ['label']" in failure.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "binary", "metric": "auc", "objective_settings": {}}, "FeatureSet.label names 3 columns; name"),
        (
            {"objective_settings": {"labels": ["good_one", "bad_one"]}},
            r"must be the columns of FeatureSet.label, \[good",
        ),
        ({"objective_settings": {"labels": LABELS[::-1]}}, "must be the columns of FeatureSet.label"),
        (
            {"columns": [*OF_LABELS[:2], pl.lit(2).alias("big_one")]},
            "label 'big_one': objective 'multilabel' needs labels 0 and 1, found 2",
        ),
    ],
)
def test_labels_that_do_not_fit_are_named(labelled: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        labelled("wrong", **changes)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (OF_LABELS[:2], "FeatureSet.label: there is no column 'big_one'"),
        (
            [*OF_LABELS[:2], pl.when(pl.col("item") > 0).then(1).alias("big_one")],
            "label 'big_one' is missing in [0-9]+ rows",
        ),
        ([*OF_LABELS[:2], pl.lit("yes").alias("big_one")], "label 'big_one' is String, not a number; make one of it"),
    ],
)
def test_a_column_that_is_no_label_is_named(labelled: Any, columns: list[pl.Expr], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        labelled("wrong", columns=columns)


def test_one_label_is_not_several(project: Any, learnt: Any) -> None:
    with pytest.raises(AssertionError, match="learns several labels of a row, and FeatureSet.label is one column"):
        learnt("wrong", **MULTILABEL)


def test_several_labels_are_learnt_to_the_same_bits_by_two_processes(project: Any, labelled: Any, config: Any) -> None:
    settings = {"epochs": 2, "learning_rate": 0.05, "elastic": "exact", "logical_shards": 2, "global_batch": 64}
    whole = labelled("whole", binary=True, **settings)
    section = config(**MULTILABEL, **settings, processes=2)
    document = project.step_input("train", section, whole.ancestor(FeaturesRef), "halves")
    halves = project.start(document, processes=2).result()
    assert isinstance(halves, CheckpointRef), halves
    assert halves.artifacts["weights"].sha256 == whole.artifacts["weights"].sha256


def test_several_labels_of_groups_are_learnt_by_the_stages_of_a_pipeline(
    project: Any, labelled: Any, config: Any
) -> None:
    """Whose micro batches are padded to one shape."""
    (project.home / "include/toy/deep.py").write_text(DEEP)
    settings = {"epochs": 2, "learning_rate": 0.05, "micro_batch": 8, "global_batch": 64}
    settings["model"] = "include.toy.deep:build_model"
    whole = labelled("whole", **settings)
    section = config(**MULTILABEL, **settings, processes=2, parallel={"pp": 2})
    document = project.step_input("train", section, whole.ancestor(FeaturesRef), "stages")
    stages = project.start(document, processes=2).result()
    assert isinstance(stages, CheckpointRef), stages
    assert stages.metrics["macro_auc"] == pytest.approx(whole.metrics["macro_auc"], rel=1e-3)


def test_a_label_of_text_is_no_group_of_rows_and_means_the_same_in_both_models(
    project: Any, toy_checkpoint: Any, evaluated: Any, run_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a report would say how good a model is where the answer is yes; and yes of one would be no of another."""
    text = pl.col("label").replace_strict({0: "no", 1: "yes"}, return_dtype=pl.String).alias("label")
    plain = toy_model.FEATURES

    def judged(key: str, classes: str) -> Any:
        monkeypatch.setattr(toy_model, "FEATURES", plain.replace('label="label"', f'label="label", classes={classes}'))
        return evaluated(toy_checkpoint(binary=True, columns=[text], key=key), key, metric="auc")

    report = judged("first", '("no", "yes")')
    assert isinstance(report, ReportRef), report
    found = json.loads(project.store.read(report.artifacts["metrics"]))["slices"]
    assert {each["column"] for each in found} == {"city"}
    move = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
    section = {"registered_model": project.pipeline}
    version = run_step(project, project.step_input("register", section, report, "first"))
    assert isinstance(run_step(project, project.step_input("promote", move, version, "first")), ModelVersionRef)
    failure = judged("second", '("yes", "no")')
    assert isinstance(failure, Failure), failure
    assert "its labels mean something else: the classes of its feature set are ['no', 'yes']" in failure.message


def test_a_label_of_a_single_day_that_the_objective_does_not_know_is_found_before_training(
    project: Any, learnt: Any
) -> None:
    """Broken: such a training would fail in the middle, where the batch with that row comes."""
    seven = pl.when(pl.col("day") == toy_model.START.date()).then(7).otherwise("label").alias("label")
    settings = {"objective": "multiclass", "metric": "accuracy", "objective_settings": {"classes": 5}}
    with pytest.raises(AssertionError, match=r"needs the number of a class as label, .*, found 7"):
        learnt("seven", columns=[seven], **settings)
    assert not list(Path(project.store.uri.removeprefix("file://")).rglob("step-*")), "nothing was trained"


def test_an_objective_of_the_recipe_is_stored_with_the_model(
    project: Any, learnt: Any, evaluated: Any, tmp_path: Path
) -> None:
    """Broken: a model could not be scored once its recipe has gone on."""
    recipe = project.home / "include/toy"
    (recipe / "objective.py").write_text(OWN)
    (recipe / "measures.py").write_text(
        "from mlops import MetricSpec, Parameter\nfrom .objective import far\n"
        "FAR = MetricSpec(measures=['value'], higher_is_better=False, title='far', parameter=Parameter(name='D',"
        " whole=False), weighted=far)\n"
    )
    own = {"objective": "include.toy.objective:LOG_COSH", "metric": "include.toy.measures:FAR@0.5", "metrics": ["mae"]}
    checkpoint = learnt("own", objective_settings={"scale": 1.0}, **own)
    assert 0 <= checkpoint.metrics["far@0.5"] < 1
    described = json.loads(project.store.read(checkpoint.artifacts["model"]))
    assert described["objective_settings"] == {"scale": 1.0}
    assert described["columns"] == {"estimate": "double"}
    (recipe / "objective.py").unlink()
    report = evaluated(checkpoint, "own")
    assert isinstance(report, ReportRef), report
    answer, folder = served(project, checkpoint, tmp_path / "served")
    assert list(answer) == ["estimate"]
    assert "estimate" in (folder / "MLmodel").read_text()


def test_a_wrong_setting_of_a_recipe_s_objective_ends_the_step_at_once(project: Any, learnt: Any) -> None:
    (project.home / "include/toy/objective.py").write_text(OWN)
    with pytest.raises(AssertionError, match="unknown key 'scal'; did you mean 'scale'"):
        learnt("wrong", objective="include.toy.objective:LOG_COSH", objective_settings={"scal": 1.0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "binary", "metric": "auc"}, "objective 'binary' needs labels 0 and 1, found"),
        (
            {"objective": "multiclass", "metric": "accuracy", "objective_settings": {"classes": 3}},
            r"objective 'multiclass' needs the number of a class as label, 0 to 2 \(0 to 2\), found [34]",
        ),
        ({"objective_settings": QUANTILES, "model": "include.toy.narrow:build_model"}, "3 numbers per row are needed"),
    ],
)
def test_what_does_not_fit_is_named(project: Any, learnt: Any, changes: dict[str, Any], message: str) -> None:
    """Broken: two would be taken for one, or quantiles be learnt by broadcasting."""
    (project.home / "include/toy/narrow.py").write_text(MODEL.replace('getattr(config, "num_outputs", 1)', "1"))
    with pytest.raises(AssertionError, match=message):
        learnt("wrong", **changes)


@pytest.fixture
def _tweedie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    with installed("mlops-tweedie", tmp_path / "site"):
        yield


@pytest.mark.usefixtures("_tweedie")
def test_an_objective_of_another_package_goes_all_the_way(
    project: Any, learnt: Any, evaluated: Any, tmp_path: Path
) -> None:
    checkpoint = learnt("tweedie", objective="tweedie", metric="tweedie_deviance@1.5", learning_rate=0.01)
    report = evaluated(checkpoint, "tweedie", metric="tweedie_deviance@1.5", metrics=["mae"])
    assert isinstance(report, ReportRef), report
    answer, folder = served(project, checkpoint, tmp_path / "served")
    assert list(answer) == ["prediction"]
    assert (answer["prediction"].dropna() > 0).all()
    assert "mlops-tweedie==1.0" in (folder / "requirements.txt").read_text().split()
    rows = held_out(project.store, checkpoint.ancestor(FeaturesRef))
    scored = open_checkpoint(project.store, checkpoint, tmp_path).score(rows)
    assert np.isfinite(scored.predictions.predicted).all()
