"""A pipeline whose learner is not torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from other_packages import REPOSITORY

from mlops.contract.section import SpecError
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
