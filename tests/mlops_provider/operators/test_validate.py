"""What tasks find out before their steps start: the model in production and its data, from a real MLflow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest
import services
from airflow.sdk import DAG

from mlops.contract.refs import CheckpointRef, DatasetRef, ModelVersionRef, ReportRef, ValidationRef
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepRetryableError
from mlops_provider.operators.evaluate import EvaluateOperator
from mlops_provider.operators.validate import ValidateOperator
from mlops_provider.registry import REF_TAG


@pytest.fixture(scope="module")
def mlflow() -> Iterator[str]:
    with services.mlflow_server() as address:
        yield address


def register(address: str, model: str, report: ReportRef) -> None:
    """As the register step does."""

    def post(path: str, **body: Any) -> None:
        httpx.post(f"{address}/api/2.0/mlflow/{path}", json=body, timeout=10).raise_for_status()

    post("registered-models/create", name=model)
    post(
        "model-versions/create",
        name=model,
        source="s3://models/ranker",
        tags=[{"key": REF_TAG, "value": json.dumps(report.to_wire())}],
    )
    post("registered-models/alias", name=model, alias="champion", version="1")


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
    operator: ValidateOperator, deployment: Any, mlflow: str, version_ref: ModelVersionRef
) -> None:
    assert operator.baselines(deployment(mlflow)) == {}, "nothing is in production yet"
    register(mlflow, "ranker", version_ref.parent)
    assert operator.baselines(deployment(mlflow)) == {"champion": version_ref.ancestor(ValidationRef)}
    operator.registered_model = None
    assert operator.baselines(deployment(mlflow)) == {}, "the task was not told which model"


@pytest.mark.server
def test_the_champion_that_a_candidate_is_held_against(
    deployment: Any, mlflow: str, version_ref: ModelVersionRef
) -> None:
    """Broken: a candidate is waved through because the champion cannot be scored, or is not looked for."""
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)):
        checkpoint = version_ref.ancestor(CheckpointRef).to_wire()
        operator = EvaluateOperator(task_id="e", checkpoint=checkpoint, registered_model="judge", metric="ndcg@10")
    assert operator.baselines(deployment(mlflow)) == {}, "nothing is in production yet"
    register(mlflow, "judge", version_ref.parent)
    found = operator.baselines(deployment(mlflow))["champion"]
    assert (found.name, found.version, found.parent) == ("judge", "1", version_ref.parent)
    tag = {"name": "judge", "version": "1", "key": REF_TAG}
    httpx.request("DELETE", f"{mlflow}/api/2.0/mlflow/model-versions/delete-tag", json=tag).raise_for_status()
    with pytest.raises(StepFailedError, match=r"has no tag mlops.ref: .* mlops models promote judge VERSION --why"):
        operator.baselines(deployment(mlflow))


def test_an_unreachable_registry_is_worth_a_retry(operator: ValidateOperator, deployment: Any) -> None:
    """To go on without the champion would be to skip the check in silence."""
    with pytest.raises(StepRetryableError, match="the model in production cannot be looked up: MLflow at"):
        operator.baselines(deployment("http://127.0.0.1:9"))
