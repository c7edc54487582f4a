"""A pipeline whose learner is not torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from other_packages import REPOSITORY

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops_provider.factory import build_dag
from mlops_provider.operators.train import TrainOperator, training_gang
from mlops_provider.spec_file import load_pipeline

TRAIN = """
train:
  learner: lightgbm
  learner_settings: {num_leaves: 15}
  objective: ranking
  metric: ndcg@10
  epochs: 4
"""
SKLEARN = """
train:
  learner: sklearn
  learner_settings:
    estimator: sklearn.ensemble:RandomForestClassifier
    parameters: {PARAMETERS}
  objective: binary
  metric: auc
  epochs: 1
"""
TORCH = """
train:
  model: include.flights.model:build_model
  model_args: ARGS
  objective: ranking
  metric: ndcg@10
"""


def pipeline_file(folder: Path, train: str = TRAIN, tune: str = "") -> Path:
    text = (REPOSITORY / "dags/flight_ranking.pipeline.yaml").read_text()
    start = min(text.index("\ntrain:"), text.index("\ntune:"))
    end = text.index("\nevaluate:")
    file = folder / "flight_ranking.pipeline.yaml"
    file.write_text(text[:start] + train + tune + text[end:])
    return file


def test_its_training_is_a_plain_process_with_the_settings_that_it_has(tmp_path: Path) -> None:
    pipeline = load_pipeline(pipeline_file(tmp_path))
    dag = build_dag(pipeline)
    train = dag.get_task("train")
    assert isinstance(train, TrainOperator)
    assert training_gang(train.settings) == {}
    assert train.settings["learner_settings"]["num_leaves"] == 15
    assert train.settings["learner_settings"]["rounds_per_epoch"] == 50
    assert set(dag.params) == {"window", "epochs", "seed", "judged_experiment", "judged_weights"}, (
        "a rate of torch's is not asked for"
    )


def test_its_own_settings_are_searched(tmp_path: Path) -> None:
    tune = "tune:\n  space:\n    learner_settings.num_leaves: {choices: [7, 15, 31]}\n"
    dag = build_dag(load_pipeline(pipeline_file(tmp_path, tune=tune)))
    assert "tune_trial" in dag.task_ids
    with pytest.raises(SpecError, match=r"learner_settings\.num_leaves must be of values that train takes"):
        load_pipeline(pipeline_file(tmp_path, tune=tune.replace("[7", "[1")))


def test_what_is_torch_s_is_refused_at_its_place(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nodes is of learner: torch; remove it"):
        load_pipeline(pipeline_file(tmp_path, TRAIN + '  nodes: "1:2"\n'))


@pytest.mark.parametrize(
    "parameters",
    ["class_weight: {0: 1, 1: 5}", "class_weight: [{0: 1, 1: 5}]", "forest__class_weight: {0: 1, 1: 5}"],
    ids=["of an estimator", "of each label", "of a step"],
)
def test_weights_of_classes_are_taken_by_number(parameters: str) -> None:
    """Broken: no estimator could be given weights, as scikit-learn's own pages write them."""
    settings = yaml.safe_load(SKLEARN.replace("PARAMETERS", parameters))["train"]
    found = check_section(Train, settings, "train").learner_settings["parameters"]
    assert found == yaml.safe_load(parameters.replace("0:", '"0":').replace("1:", '"1":')), "as JSON holds them"


@pytest.mark.parametrize(
    ("train", "place", "message"),
    [
        (
            SKLEARN.replace("PARAMETERS", "max_features: {0: a}"), "learner_settings.parameters.max_features",
            "must be a mapping by text, which JSON would make of the key 0: put it in quotes, or give a list",
        ),
        (
            SKLEARN.replace("PARAMETERS", "class_weight: {true: 1, false: 5}"),
            "learner_settings.parameters.class_weight", "JSON would make of the key True",
        ),
        (
            TORCH.replace("ARGS", "{widths: {deep: [{0.5: 8}]}}"), "model_args.widths",
            "the key 0.5 in deep.0: put it in quotes",
        ),
        (TORCH.replace("ARGS", "{widths: {0: 8}}"), "model_args.widths", "JSON would make of the key 0:"),
    ],
    ids=["parameter", "truths", "deep", "argument of a model"],
)  # fmt: skip
def test_a_key_that_json_would_change_is_refused_where_it_stands(
    tmp_path: Path, train: str, place: str, message: str
) -> None:
    """Broken: the model would get "0" where the file has 0, and nobody would be told."""
    with pytest.raises(SpecError) as caught:
        load_pipeline(pipeline_file(tmp_path, train))
    assert re.match(r"flight_ranking\.pipeline\.yaml:\d+:\d+: ", str(caught.value))
    assert f"train.{place} " in str(caught.value)
    assert message in str(caught.value)
