"""What the words of other platforms mean for a pipeline."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from project import REPOSITORY

from mlops.contract.section import SpecError
from mlops_provider.api.other_words import (
    dimension_of,
    keys_of,
    metric_of,
    named,
    resource_settings,
    source_settings,
    training_settings,
)
from mlops_provider.deployment import Deployment
from mlops_provider.experiments.asked import Experiment
from mlops_provider.experiments.request import Request
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import load_pipeline

FOREST = "include.flight_arrival.model:forest"
"""A function of a recipe; whether there is one is seen when it is called."""


def pipeline(name: str, **changes: str) -> Pipeline:
    path = REPOSITORY / f"dags/{name}.pipeline.yaml"
    return load_pipeline(path, {tuple(key.split("__")): value for key, value in changes.items()})


def trained(name: str, learner: str | None, **hyperparameters: Any) -> dict[str, Any]:
    return training_settings(pipeline(name), learner, hyperparameters, "hyperparams")


def taken(name: str, settings: dict[str, Any]) -> Pipeline:
    """The pipeline that Airflow would try out."""
    params = {"settings": settings, "until": "evaluate", "seeds": 1}
    params |= dict.fromkeys(("sample", "as_of", "dataset", "name"))
    now = datetime(2026, 11, 26, tzinfo=UTC)
    return Experiment.of(REPOSITORY / f"dags/{name}.pipeline.yaml", Request.of_params(params), "ana", now).pipeline


def test_hyperparameters_go_by_the_learners_names_and_by_short_ones() -> None:
    assert trained("digits", None, lr=0.1, batch_size=8) == {"train.learning_rate": 0.1, "train.global_batch": 8}
    assert trained("flight_arrival", "lightgbm", lr=0.1, depth=8, epochs=2) == {
        "train.learner_settings.learning_rate": 0.1,
        "train.learner_settings.max_depth": 8,
        "train.epochs": 2,
    }
    # What is given counts, and not what a search would find in its place.
    assert trained("flight_ranking", None, hidden=16) == {"train.model_args.hidden": 16, "tune": None}
    assert trained("flight_ranking", None) == {}
    dotted = trained("flight_ranking", None, **{"schedule.warmup_steps": 10})
    assert taken("flight_ranking", dotted).train.schedule.warmup_steps == 10


def test_another_learner_leaves_what_is_torchs_behind() -> None:
    settings = trained("flight_ranking", "lightgbm", lr=0.05, num_leaves=15)
    assert settings["train.learner_settings"] == {"learning_rate": 0.05, "num_leaves": 15}
    train = taken("flight_ranking", settings).train
    assert (train.learner, train.model, train.processes) == ("lightgbm", None, 1)
    forest = trained("flight_arrival", "sklearn", estimator=FOREST, max_depth=4)
    assert forest["train.learner_settings"] == {"estimator": FOREST, "parameters": {"max_depth": 4}}
    settings = trained("digits", "sklearn", estimator="sklearn.ensemble:RandomForestClassifier")
    with pytest.raises(SpecError, match="runs code of recipes only"):
        taken("digits", settings)


def test_what_a_pipeline_reads_for_its_search_or_its_start_may_be_left_out() -> None:
    """Broken: a pipeline whose studies lie in PostgreSQL would take no hyperparameters at all."""
    path = REPOSITORY / "dags/flight_ranking.pipeline.yaml"
    before = {
        ("tune", "connection"): "studies",
        ("train", "initialise"): f"{{path: s3://weights/w.pt, sha256: '{'0' * 64}'}}",
    }
    settings = training_settings(load_pipeline(path, before), "lightgbm", {"lr": 0.05}, "hyperparams")
    request = Request(changes={tuple(key.split(".")): _yaml(value) for key, value in settings.items()}, is_remote=True)
    found = request.checked(lambda changes: load_pipeline(path, {**before, **changes}))
    assert (found.tune, found.train.initialise) == (None, None)


def _yaml(value: Any) -> str:
    return "null" if value is None else str(value)


@pytest.mark.parametrize(
    ("learner", "hyperparameters", "message"),
    [
        (None, {"depth": 8}, "hyperparams.depth: learner torch of digits has no such setting; it has "),
        (None, {"epoch": 8}, "hyperparams.epoch: learner torch of digits has no such setting; did you mean epochs"),
        (None, {"lr": 0.1, "eta": 0.3}, "lr and eta are both train.learning_rate: keep one of the two"),
        ("lightgbm", {"leaves": 8}, "learner lightgbm of digits has no such setting; did you mean num_leaves"),
        ("lightgbmm", {"lr": 8}, "lightgbmm"),
        ("include.digits.model:LEARNER", {"lr": 8}, "name a learner that is installed; one of a recipe by POST /runs"),
    ],
)
def test_what_cannot_be_is_named_with_what_there_is(
    learner: str | None, hyperparameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        trained("digits", learner, **hyperparameters)


def test_arguments_of_a_model_are_torchs() -> None:
    ranking = pipeline("flight_ranking")
    assert training_settings(ranking, None, {}, "hyperparameters", {"hidden": 16})["train.model_args.hidden"] == 16
    with pytest.raises(SpecError, match="model.args: they are of build_model, by which torch trains, and not lightgbm"):
        training_settings(ranking, "lightgbm", {}, "hyperparameters", {"hidden": 16})
    with pytest.raises(SpecError, match=r"train.model_args.hidden is given twice, also by model.args"):
        training_settings(ranking, None, {"hidden": 32}, "hyperparameters", {"hidden": 16})


@pytest.mark.parametrize(
    ("asked", "dimension"),
    [
        ([32, 64], {"choices": [32, 64]}),
        ({"type": "categorical", "values": ["a"]}, {"choices": ["a"]}),
        ({"type": "loguniform", "min": 1e-4, "max": 1e-2}, {"low": 1e-4, "high": 1e-2, "log": True}),
        ({"type": "int", "low": 1, "high": 8, "step": 1}, {"low": 1, "high": 8, "step": 1}),
        ({"low": 1, "high": 8, "log": False}, {"low": 1, "high": 8, "log": False}),
        ({"type": "normal", "low": 1}, {"type": "normal", "low": 1}),  # which the check of tune.space names
        ({"type": ["float"], "low": 1}, {"type": ["float"], "low": 1}),
    ],
)
def test_dimensions_are_worded_in_many_ways(asked: Any, dimension: dict[str, Any]) -> None:
    assert dimension_of(asked) == dimension


def test_a_dimension_and_a_setting_are_said_once() -> None:
    ranking = pipeline("flight_ranking")

    def place_of(name: str) -> Any:
        return keys_of(ranking, "torch", name, "search_space")

    assert named({"lr": [1], "model_args.hidden": [2]}, place_of, dimension_of) == {
        "learning_rate": {"choices": [1]}, "model_args.hidden": {"choices": [2]}
    }  # fmt: skip
    with pytest.raises(SpecError, match="low is given twice, also as min"):
        dimension_of({"low": 1, "min": 2})
    with pytest.raises(SpecError, match="lr and learning_rate are both train.learning_rate"):
        named({"lr": [1], "learning_rate": [2]}, place_of)
    assert metric_of("ndcg@10", "maximize") == "ndcg@10"
    with pytest.raises(SpecError, match="objective.direction maximize: of log_loss it is minimize"):
        metric_of("log_loss", "maximize")


def test_a_folder_has_files_named_as_the_pipelines() -> None:
    open_to = replace(Deployment.load(), experiment_sources=["s3://data/"])
    digits = pipeline("digits")
    assert source_settings(digits, "s3://data/2024/", open_to) == {
        "ingest.sources.images.path": "s3://data/2024/digits.parquet"
    }
    assert source_settings(digits, "s3://data/x.parquet", open_to) == {
        "ingest.sources.images.path": "s3://data/x.parquet"
    }
    deep = pipeline("digits", ingest__sources__images__path="raw/*/day=*/*.parquet")
    assert source_settings(deep, "s3://data/2024/", open_to) == {
        "ingest.sources.images.path": "s3://data/2024/*/day=*/*.parquet"
    }
    with pytest.raises(SpecError, match=r"flight_ranking has 3 sources of files \(flights, weather, planes\)"):
        source_settings(pipeline("flight_ranking"), "s3://data/2024/", open_to)
    with pytest.raises(SpecError, match=r"ingest.sources.\w+.sha256 of stdlib_lm names what is read"):
        source_settings(pipeline("stdlib_lm"), "s3://data/2024/", open_to)
    with pytest.raises(SpecError, match=r"data_source: experiments may read no other files here; .*experiment_sources"):
        source_settings(digits, "s3://data/2024/", Deployment.load())


@pytest.mark.parametrize(
    ("learner", "launcher", "processes"), [(None, "pod", 4), (None, "process", None), ("lightgbm", "pod", None)]
)
def test_each_gpu_of_a_pod_has_a_process_of_torch(learner: str | None, launcher: str, processes: int | None) -> None:
    """Broken: three of four GPUs would be asked for, paid for and idle."""
    deployment = replace(Deployment.load(), launcher=launcher)
    settings = resource_settings(pipeline("digits"), {"gpus": 4, "memory": "64Gi"}, learner, deployment)
    assert (settings["pods.train.gpus"], settings["pods.train.memory"]) == (4, "64Gi")
    assert settings.get("train.processes") == processes
