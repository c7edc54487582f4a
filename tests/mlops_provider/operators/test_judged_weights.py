"""Weights that were trained elsewhere, as a run's tasks take them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import obstore
import pytest
import services
from airflow.sdk import DAG, Context
from obstore.store import from_url
from project import REPOSITORY

from mlops.contract.refs import FeaturesRef, ModelVersionRef
from mlops.contract.section import SpecError
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.factory import build_dag
from mlops_provider.operators import judged_weights
from mlops_provider.operators.adopted import WEIGHTS, handed_on, weights_to_judge
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.runs import Asked
from mlops_provider.spec_file import load_pipeline

RANKING = REPOSITORY / "dags/flight_ranking.pipeline.yaml"
DATA = b"weights"


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_SOURCES", f"{tmp_path}/elsewhere s3://models/")
    path = tmp_path / "elsewhere/weights.pt"
    path.parent.mkdir()
    path.write_bytes(DATA)
    return path


class State(dict[str, Any]):
    """Of a task, over its tries."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


END = datetime(2013, 2, 9, 5, tzinfo=UTC)


def of_run(given: dict[str, Any]) -> Asked:
    return Asked(upstream=None, interval=(END - timedelta(days=1), END), run_id="r", weights=given)


def context(dag: DAG, given: Any, **params: Any) -> Context:
    return cast(Context, {"dag": dag, "params": {WEIGHTS: given, **params}})


def step(dag: DAG, task_id: str) -> StepOperator:
    found = dag.get_task(task_id)
    assert isinstance(found, StepOperator)
    return found


def test_the_training_takes_them_as_they_are_and_nothing_is_searched(
    weights: Path, version_ref: ModelVersionRef
) -> None:
    """Broken: hours of a search, and then a training from the weights, in the place of the model that was brought."""
    dag = build_dag(load_pipeline(RANKING))
    given = {"path": str(weights), "claimed": {"auc": 0.97}}
    told = context(dag, given)
    assert weights_to_judge(told) == given
    train = step(dag, "train")
    asked = replace(of_run(given), state=cast(Any, State()))
    found = train.asked_settings(dict(train.settings), asked, Deployment.load())
    start = found["initialise"]
    assert (found["epochs"], start["path"], start["claimed"]) == (0, str(weights), {"auc": 0.97})
    assert start["sha256"] == hashlib.sha256(DATA).hexdigest()
    weights.write_bytes(b"others by now")
    again = train.asked_settings(dict(train.settings), asked, Deployment.load())
    assert again == found, "a retry takes what the first try has found, or fails"
    assert train.gang(found) == {}, "one process measures them"
    assert handed_on(train, told, Deployment.load()) is None
    features = version_ref.ancestor(FeaturesRef).to_wire()
    tune = step(dag, "tune")
    tune.upstream = features
    hand_on = handed_on(tune, told, Deployment.load())
    assert hand_on is not None
    assert hand_on() == features, "which the training takes"
    assert handed_on(step(dag, "ingest"), told, Deployment.load()) is None


def test_where_silence_is_a_yes_none_are_taken() -> None:
    dag = build_dag(load_pipeline(RANKING, {("promote", "approval", "on_timeout"): "approve"}))
    assert WEIGHTS not in dag.params
    assert weights_to_judge(context(dag, {"path": "s3://models/w.pt"})) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "/etc/passwd"}, "judged_weights.path /etc/passwd: experiments may read what lies below "),
        ({"path": "s3://models/../w.pt"}, "judged_weights.path s3://models/../w.pt: experiments may read"),
        ({"uri": "s3://models/w.pt"}, "unknown key 'uri'"),
        ({"path": "s3://models/w.pt", "sha256": "0"}, "sha256 must be a SHA-256"),
        (
            {"path": "s3://models/"},
            "judged_weights.path s3://models/: name one file, as s3://bucket/key or by its path",
        ),
        ({"path": "s3://models"}, "name one file"),
        ({"path": "s3://models/a*.pt"}, "name one file"),
        ({"path": "s3://models/w.pt", "claimed": {"f1(macro)": 1}}, "must be a name such as auc or ndcg@10"),
        ({"path": "s3://models/w.pt", "claimed": {"a/": 1}}, "must be a name such as auc or ndcg@10"),
        ({"path": "s3://models/w.pt", "claimed": {"auc": float("inf")}}, "claimed.auc must be"),
        (
            {"path": "s3://models/w.pt", "claimed": {"ndcg_at_10": 0.8, "ndcg@10": 0.9}},
            "claimed must be of different names: MLflow calls ndcg_at_10 and ndcg@10 alike",
        ),
        ({"path": "s3://models/w.pt", "known_as": "a\nb"}, "known_as must be a line of at most 100 printable"),
        (
            {"path": "s3://models/w.pt", "as_of": "2013-02-10T05:00:00+00:00"},
            r"judged_weights.as_of 2013-02-10.*: the data of this run end at 2013-02-09T05:00:00\+00:00",
        ),
    ],
)
@pytest.mark.usefixtures("weights")
def test_what_must_not_be_read_is_named(given: dict[str, Any], message: str) -> None:
    """Broken: who may trigger a run reads files with the rights of the deployment."""
    with pytest.raises(SpecError, match=message):
        judged_weights.settings(of_run(given), Deployment.load())


@pytest.mark.parametrize("path", ["weights.pt.other", "", "weights.pt/x"], ids=["none", "a folder", "below a file"])
def test_a_file_that_is_not_there_is_named(weights: Path, path: str) -> None:
    """Broken: Airflow tries again what never will be."""
    given = {"path": str(weights.parent / path)}
    with pytest.raises(StepFailedError, match="there is no such file"):
        judged_weights.settings(of_run(given), Deployment.load())


def test_where_nothing_is_open_it_says_who_opens_it(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__MLOPS__EXPERIMENT_SOURCES")
    with pytest.raises(SpecError, match="no files beside those of the pipeline; whoever runs the deployment says what"):
        judged_weights.settings(of_run({"path": str(weights)}), Deployment.load())


@pytest.mark.server
def test_a_file_of_a_bucket_is_pinned_by_what_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an S3 server, by more than one part."""
    data = bytes(range(256)) * 20_000
    with services.s3_server() as environment:
        for name, value in {**environment, "AIRFLOW__MLOPS__EXPERIMENT_SOURCES": "s3://bucket/models"}.items():
            monkeypatch.setenv(name, value)
        obstore.put(from_url("s3://bucket/models"), "weights.pt", data)
        found = judged_weights.settings(of_run({"path": "s3://bucket/models/weights.pt"}), Deployment.load())
        assert found["initialise"]["sha256"] == hashlib.sha256(data).hexdigest()
        with pytest.raises(StepFailedError, match="judged_weights.path s3://bucket/models/other.pt: there is no such"):
            judged_weights.settings(of_run({"path": "s3://bucket/models/other.pt"}), Deployment.load())


def test_a_run_judges_one_model(weights: Path) -> None:
    """Broken: one of two is judged, and who asked for the other takes the verdict for its own."""
    dag = build_dag(load_pipeline(RANKING))
    both = context(dag, {"path": str(weights)}, judged_experiment="experiments/ana/flight_ranking/train/k")
    for task_id in ("ingest", "train"):
        with pytest.raises(StepFailedError, match="judged_experiment and judged_weights: leave one of them out"):
            handed_on(step(dag, task_id), both, Deployment.load())


def test_a_path_is_the_one_that_the_step_reads(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: another file of that name is pinned, below wherever Airflow was started."""
    monkeypatch.setenv("AIRFLOW__MLOPS__HOME", str(weights.parent.parent))
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_SOURCES", "elsewhere")
    found = judged_weights.settings(of_run({"path": "elsewhere/weights.pt"}), Deployment.load())
    assert found["initialise"]["sha256"] == hashlib.sha256(DATA).hexdigest()
