"""A search as tasks: one for each trial, and one that concludes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.serialization.serialized_objects import DagSerialization

from mlops.contract.refs import ModelVersionRef
from mlops.contract.section import SpecError
from mlops_provider.exceptions import WiringError
from mlops_provider.operators.ingest import IngestOperator
from mlops_provider.operators.train import TrainOperator
from mlops_provider.operators.tune import RETRY_OPTIONS, TrialOperator, TuneOperator

TRAIN = {
    "model": "include.toy.model:build_model",
    "objective": "binary",
    "metric": "auc",
    "processes": 2,
    "nodes": "1:2",
}
SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


def search(**changes: Any) -> tuple[DAG, TuneOperator, MappedOperator]:
    with DAG(dag_id="searched", schedule=None, start_date=datetime(2024, 1, 1), params={"epochs": 3}) as dag:
        settings = {"features": "{{ ref }}", "train": TRAIN, "space": SPACE, "trials": 4, **changes}
        tune = TuneOperator(task_id="tune", **settings)
    trials = dag.get_task("tune_trial")
    assert isinstance(trials, MappedOperator)
    return dag, tune, trials


def test_one_task_for_each_trial_and_one_that_concludes() -> None:
    """Broken: nobody would see in Airflow how the search goes, or a failed trial would fail the pipeline."""
    dag, tune, trials = search(parallel=2, retries=5, trial_pods={"gpus": 1}, pods={"cpu": "2"})
    assert tune.upstream_task_ids == {"tune_trial"}
    assert tune.trigger_rule == "all_done_min_one_success", "some trials fail; without features there is none"
    assert trials.max_active_tis_per_dagrun == 2
    assert trials.retries == 5
    assert trials.expand_input.value == {"number": [0, 1, 2, 3]}
    assert tune.pods == {"cpu": "2"}
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(read.task_dict) == {"tune", "tune_trial"}


def test_a_trial_is_retried_as_its_search_is() -> None:
    """Broken: where a DAG says nothing of it, a killed trial is lost, though every other step is tried again."""
    for given in ({}, {"retries": 1, "retry_delay": timedelta(seconds=3), "retry_exponential_backoff": 0}):
        _, tune, trials = search(**given)
        trial = trials.unmap({"number": 0})
        for option in RETRY_OPTIONS:
            assert getattr(trial, option) == getattr(tune, option), option
        assert trials.retries == tune.retries == given.get("retries", 2)


def test_a_trial_gets_the_trainings_gang_pods_and_code() -> None:
    """Broken: trials would run otherwise than the training whose settings they are to find."""
    *_, trials = search(trial_pods={"gpus": 1}, connection="studies", parameters=("train.epochs",))
    trial = trials.unmap({"number": 2})
    assert isinstance(trial, TrialOperator)
    assert (trial.settings["number"], trial.settings["trials"]) == (2, 4)
    assert trial.pods == {"gpus": 1}
    assert trial.parameters == ("train.epochs",)
    assert (trial.gang(trial.settings)["nodes"], trial.gang(trial.settings)["processes"]) == ("1:2", 2)
    assert trial.code_paths(trial.settings) == ["include/toy"]
    assert trial.connections(trial.settings) == {"tune.connection": "studies"}
    assert trial.pipeline == "searched"


def test_code_that_only_the_search_names_counts() -> None:
    """Broken: where it is changed, the trials of the old code would be returned for it."""
    train = {**TRAIN, "model_args": {"block": "include.toy.blocks:plain", "mode": "include"}}
    choices = ["include.toy.blocks:plain", "include.blocks.gated:build"]
    _, tune, _ = search(train=train, space={"model_args.block": {"choices": choices}}, trials=2)
    assert tune.code_paths(tune.settings) == ["include/blocks", "include/toy"]


def test_train_takes_features_or_a_study(version_ref: ModelVersionRef) -> None:
    dag, tune, _ = search()
    with dag:
        TrainOperator(task_id="train", features=tune.output, **TRAIN)
        with pytest.raises(WiringError, match="train takes a FeaturesRef or StudyRef, the output of features or tune"):
            TrainOperator(task_id="wrong", features=version_ref.to_wire(), **TRAIN)
        with pytest.raises(WiringError, match="tune takes a FeaturesRef, the output of features, but got the StudyRef"):
            TuneOperator(task_id="again", features=tune.output, train=TRAIN, space=SPACE)


def test_a_wrong_space_fails_when_the_dag_is_parsed() -> None:
    with pytest.raises(SpecError, match=r"task 'tune': space.learning_rate must be of values that train takes: > 0"):
        search(space={"learning_rate": {"low": -1, "high": 1}})


def test_any_step_can_be_mapped_over_its_settings() -> None:
    """Broken: Airflow would know none of a step's settings, for they are not in its signature."""
    sources = {"events": {"path": "x.csv", "event_time": "at"}}
    with DAG(dag_id="mapped", schedule=None, start_date=datetime(2024, 1, 1)):
        mapped = IngestOperator.partial(task_id="ingest", sources=sources, event_time="at").expand(window=[8, 9])
        with pytest.raises(TypeError, match="unexpected keyword argument 'window_day'"):
            IngestOperator.partial(task_id="wrong", sources=sources, window_day=3)
    assert mapped.unmap({"window": 9}).settings["window"] == 9  # type: ignore[union-attr]
