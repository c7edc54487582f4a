"""What tasks find out before their steps start: the model in production and its data, from a real MLflow."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx
import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator

from mlops.contract.refs import (
    Artifact,
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    ReportRef,
    ValidationRef,
)
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepRetryableError
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.evaluate import EvaluateOperator
from mlops_provider.operators.predict import PredictOperator
from mlops_provider.operators.train import TrainOperator
from mlops_provider.operators.tune import TuneOperator
from mlops_provider.operators.validate import ValidateOperator
from mlops_provider.registry import REF_TAG


def register(address: str, model: str, report: ReportRef, number: int = 1) -> None:
    """As the register and the promote step do, a version after the other."""

    def post(path: str, **body: Any) -> None:
        httpx.post(f"{address}/api/2.0/mlflow/{path}", json=body, timeout=10).raise_for_status()

    if number == 1:
        post("registered-models/create", name=model)
    post(
        "model-versions/create",
        name=model,
        source="s3://models/ranker",
        tags=[{"key": REF_TAG, "value": json.dumps(report.to_wire())}],
    )
    post("registered-models/alias", name=model, alias="champion", version=str(number))


@pytest.fixture
def operator(version_ref: ModelVersionRef) -> ValidateOperator:
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)):
        return ValidateOperator(
            task_id="validate",
            dataset=version_ref.ancestor(DatasetRef).to_wire(),
            schema_path="s.pbtxt",
            registered_model="ranker",
        )


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Any:
    def at(address: str) -> Deployment:
        monkeypatch.setenv("AIRFLOW__MLOPS__TRACKING_URI", address)
        return Deployment.load()

    return at


@pytest.mark.server
def test_the_champions_data_is_the_reference(
    operator: ValidateOperator, deployment: Any, tracking: str, version_ref: ModelVersionRef
) -> None:
    assert operator.baselines(deployment(tracking)) == {}, "nothing is in production yet"
    register(tracking, "ranker", version_ref.parent)
    assert operator.baselines(deployment(tracking)) == {"champion": version_ref.ancestor(ValidationRef)}
    operator.registered_model = None
    assert operator.baselines(deployment(tracking)) == {}, "the task was not told which model"


@pytest.mark.server
def test_the_champion_that_a_candidate_is_held_against(
    deployment: Any, tracking: str, version_ref: ModelVersionRef
) -> None:
    """Broken: a candidate is waved through because the champion cannot be scored, or is not looked for."""
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)):
        checkpoint = version_ref.ancestor(CheckpointRef).to_wire()
        operator = EvaluateOperator(task_id="e", checkpoint=checkpoint, registered_model="judge", metric="ndcg@10")
    assert operator.baselines(deployment(tracking)) == {}, "nothing is in production yet"
    register(tracking, "judge", version_ref.parent)
    found = operator.baselines(deployment(tracking))["champion"]
    assert (found.name, found.version, found.parent) == ("judge", "1", version_ref.parent)
    tag = {"name": "judge", "version": "1", "key": REF_TAG}
    httpx.request("DELETE", f"{tracking}/api/2.0/mlflow/model-versions/delete-tag", json=tag).raise_for_status()
    with pytest.raises(StepFailedError, match=r"has no tag mlops.ref: .* mlops models promote judge VERSION --why"):
        operator.baselines(deployment(tracking))


@pytest.mark.server
def test_the_version_that_is_asked_for_predictions(
    deployment: Any, tracking: str, version_ref: ModelVersionRef
) -> None:
    dataset = version_ref.ancestor(DatasetRef).to_wire()
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)):
        champion, numbered, none = (
            PredictOperator(task_id=f"t{number}", dataset=dataset, registered_model="asked", version=version)
            for number, version in enumerate(["champion", "1", "2"])
        )
    there = deployment(tracking)
    for operator in (champion, numbered, none):
        assert operator.config(operator.settings) == operator.settings
        assert operator.baselines(there) == {}, "the step says so, unless the interval is predicted already"
    register(tracking, "asked", version_ref.parent)
    for operator in (champion, numbered):
        operator.config(operator.settings)
        found = operator.baselines(there)["model"]
        assert (found.name, found.version, found.parent) == ("asked", "1", version_ref.parent)
    none.config(none.settings)
    assert none.baselines(there) == {}
    champion.config({**champion.settings, "version": "2"})
    assert champion.baselines(there) == {}, "what a run asks for counts, not what the DAG says"


@pytest.mark.server
def test_the_weights_that_a_training_starts_from(deployment: Any, tracking: str, version_ref: ModelVersionRef) -> None:
    """They are settings by then, hence part of the run key: another champion is other work."""
    deployment(tracking)
    features = version_ref.ancestor(FeaturesRef).to_wire()
    given = {"model": "include.p.model:build", "objective": "ranking", "metric": "ndcg@10"}
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)):
        operator = TrainOperator(
            task_id="train", features=features, initialise={"model": "started@champion"}, **given
        )  # fmt: skip
        alone = TrainOperator(task_id="alone", features=features, **given)
    assert alone.config(alone.settings) == alone.settings
    with pytest.raises(StepFailedError, match="there is no started@champion, which train.initialise names"):
        operator.config(operator.settings)
    weights = Artifact(key="pipelines/p/train/k4/weights.pt", sha256="7" * 64, num_bytes=9)
    checkpoint = replace(version_ref.ancestor(CheckpointRef), artifacts={"weights": weights})
    report = replace(version_ref.parent, parent=checkpoint)
    register(tracking, "started", report)
    stored = operator.config(operator.settings)["initialise"]["found"]
    assert stored == {"key": weights.key, "sha256": weights.sha256, "num_bytes": weights.num_bytes, "version": "1"}
    assert operator.baselines(Deployment.load())["initialise"].parent == report, "to be verified by the step"


@pytest.mark.server
def test_the_version_that_trials_start_from_is_told_to_them(
    deployment: Any, tracking: str, version_ref: ModelVersionRef
) -> None:
    """Broken: whatever MLflow's tag says the weights of a version are would be taken, and no trial would check it."""
    deployment(tracking)
    train = {
        "model": "include.p.model:build", "objective": "ranking", "metric": "ndcg@10",
        "initialise": {"model": "searched/1"},
    }  # fmt: skip
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)) as dag:
        features = version_ref.ancestor(FeaturesRef).to_wire()
        space = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
        conclusion = TuneOperator(task_id="tune", features=features, train=train, space=space, trials=2)
    trials = dag.get_task("tune_trial")
    assert isinstance(trials, MappedOperator)
    weights = Artifact(key="pipelines/p/train/k4/weights.pt", sha256="7" * 64, num_bytes=9)
    checkpoint = replace(version_ref.ancestor(CheckpointRef), artifacts={"weights": weights})
    report = replace(version_ref.parent, parent=checkpoint)
    register(tracking, "searched", report)
    for operator in (conclusion, trials.unmap({"number": 1})):
        assert isinstance(operator, StepOperator)
        found = operator.config(operator.settings)["train"]["initialise"]["found"]
        assert found == {"key": weights.key, "sha256": weights.sha256, "num_bytes": weights.num_bytes, "version": "1"}
        assert operator.baselines(Deployment.load())["initialise"].parent == report, "to be verified by the step"


class TaskState(dict[str, Any]):
    def set(self, key: str, value: Any) -> None:
        self[key] = value


@pytest.mark.server
def test_a_later_try_starts_from_the_weights_of_the_first(
    deployment: Any, tracking: str, version_ref: ModelVersionRef
) -> None:
    """Broken: a promotion between two tries would make other work of the second, which begins at step 0."""
    deployment(tracking)
    given = {"model": "include.p.model:build", "objective": "ranking", "metric": "ndcg@10"}
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)):
        first, second, other = (
            TrainOperator(
                task_id=name, features=version_ref.ancestor(FeaturesRef).to_wire(),
                initialise={"model": "kept@champion"}, **given,
            )
            for name in ("first", "second", "other")
        )  # fmt: skip
    state = TaskState()
    weights = Artifact(key="pipelines/p/train/k4/weights.pt", sha256="7" * 64, num_bytes=9)
    checkpoint = replace(version_ref.ancestor(CheckpointRef), artifacts={"weights": weights})
    found = {}
    for number, operator in enumerate((first, second, other), 1):
        register(tracking, "kept", replace(version_ref.parent, parent=checkpoint), number)
        operator._state = TaskState() if operator is other else state
        found[operator.task_id] = operator.config(operator.settings)["initialise"]["found"]["version"]
    assert found == {"first": "1", "second": "1", "other": "3"}


def test_an_unreachable_registry_is_worth_a_retry(operator: ValidateOperator, deployment: Any) -> None:
    """To go on without the champion would be to skip the check in silence."""
    with pytest.raises(StepRetryableError, match="the model in production cannot be looked up: MLflow at"):
        operator.baselines(deployment("http://127.0.0.1:9"))
