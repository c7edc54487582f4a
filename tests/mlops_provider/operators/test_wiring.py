"""Operators as they are written in a DAG file: settings, wiring, retries."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from airflow.sdk import DAG, task

from mlops.contract.refs import Artifact, CheckpointRef, DatasetRef, ModelVersionRef
from mlops.contract.section import SpecError
from mlops.contract.sections.release import Approval
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, WiringError
from mlops_provider.operators.approve import ApproveOperator
from mlops_provider.operators.callbacks import count_failed, count_tried_again, say_why
from mlops_provider.operators.features import FeaturesOperator
from mlops_provider.operators.ingest import IngestOperator
from mlops_provider.operators.promote import PromoteOperator
from mlops_provider.operators.question import summary
from mlops_provider.operators.register import RegisterOperator
from mlops_provider.operators.runs import Asked, recipe_folder
from mlops_provider.operators.train import TrainOperator
from mlops_provider.operators.validate import ValidateOperator
from mlops_provider.sensors.dataset import DatasetSensor
from mlops_provider.sensors.model import ModelVersionSensor

SOURCES = {"events": {"path": "data/events.csv"}}
NIGHT = datetime(2024, 1, 8, tzinfo=UTC)


@pytest.fixture
def dag():
    with DAG(dag_id="wired", schedule=None, start_date=datetime(2024, 1, 1)) as dag:
        yield dag


def test_output_of_the_wrong_step_fails_at_parse_time(dag: DAG) -> None:
    """Found at parse time it costs a second; found at run time it costs a night."""
    ingest = IngestOperator(task_id="ingest", sources=SOURCES, event_time="at")
    with pytest.raises(WiringError) as caught:
        FeaturesOperator(task_id="features", validation=ingest.output, feature_set="a.b:C")
    assert str(caught.value) == (
        "task 'features': features takes a ValidationRef, the output of validate, "
        "but got the DatasetRef of task 'ingest'"
    )


def test_skipping_validation_is_impossible(dag: DAG) -> None:
    ingest = IngestOperator(task_id="ingest", sources=SOURCES, event_time="at")
    with pytest.raises(WiringError, match="takes a FeaturesRef"):
        TrainOperator(task_id="train", features=ingest.output, model="a.b:c", objective="binary", metric="auc")


def test_sensor_output_is_typed_too(dag: DAG) -> None:
    ValidateOperator(task_id="v", dataset=DatasetSensor(task_id="s", dataset="x").output, schema_path="s.pbtxt")
    with pytest.raises(WiringError, match="takes a DatasetRef.*got the ModelVersionRef of task 'm'"):
        ValidateOperator(
            task_id="w",
            dataset=ModelVersionSensor(task_id="m", model="x", alias="champion").output,
            schema_path="s.pbtxt",
        )


def test_ref_document_is_checked(dag: DAG, version_ref: ModelVersionRef) -> None:
    ValidateOperator(task_id="ok", dataset=version_ref.ancestor(DatasetRef).to_wire(), schema_path="s.pbtxt")
    with pytest.raises(WiringError, match="expected a DatasetRef, got a ref of kind 'model_version'"):
        ValidateOperator(task_id="bad", dataset=version_ref.to_wire(), schema_path="s.pbtxt")
    with pytest.raises(WiringError, match="but got 3"):
        ValidateOperator(task_id="worse", dataset=3, schema_path="s.pbtxt")  # type: ignore[arg-type]


def test_output_of_a_plain_task_is_left_to_run_time(dag: DAG) -> None:
    """Users may make refs themselves."""

    @task
    def mine() -> dict:
        return {}

    assert ValidateOperator(task_id="v", dataset=mine(), schema_path="s.pbtxt").upstream_task_ids == {"mine"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"sources": {}, "event_time": "at"}, "sources must have at least 1 item, has 0", id="no source"),
        pytest.param({"sources": SOURCES}, "the key 'event_time' is missing", id="missing"),
        pytest.param({"sources": SOURCES, "event_time": "at", "window": 0}, "window must be >= 1, got 0",
                     id="range"),
    ],
)  # fmt: skip
def test_wrong_setting_names_task_value_and_fix(dag: DAG, settings: dict, message: str) -> None:
    with pytest.raises(SpecError, match="task 'ingest': ") as caught:
        IngestOperator(task_id="ingest", **settings)
    assert message in str(caught.value)


def test_unknown_argument_is_an_error(dag: DAG) -> None:
    with pytest.raises(TypeError, match="window_day"):
        IngestOperator(task_id="ingest", sources=SOURCES, event_time="at", window_day=3)


def test_failures_that_may_pass_are_retried_with_growing_delays(dag: DAG) -> None:
    step = IngestOperator(task_id="ingest", sources=SOURCES, event_time="at")
    assert (step.retries, step.retry_delay, step.retry_exponential_backoff) == (2, timedelta(seconds=10), 2.0)
    assert IngestOperator(task_id="other", sources=SOURCES, event_time="at", retries=7).retries == 7


def test_default_args_of_the_dag_go_before_ours() -> None:
    with DAG(dag_id="defaults", schedule=None, default_args={"retries": 5, "retry_delay": timedelta(seconds=1)}):
        step = IngestOperator(task_id="ingest", sources=SOURCES, event_time="at")
    assert (step.retries, step.retry_delay) == (5, timedelta(seconds=1))


@pytest.mark.parametrize(
    ("event", "counts"), [("on_failure_callback", count_failed), ("on_retry_callback", count_tried_again)]
)
def test_callbacks_of_the_dag_are_called_beside_ours(event: str, counts: Any) -> None:
    """A platform that has itself told of each failure by default_args must be told of these."""

    def theirs(context: Mapping[str, Any]) -> None: ...

    with DAG(dag_id="defaults", schedule=None, default_args={event: theirs}):
        step = IngestOperator(task_id="ingest", sources=SOURCES, event_time="at")
        own = IngestOperator(task_id="own", sources=SOURCES, event_time="at", **{event: [print]})
    assert list(getattr(step, event)) == [theirs, say_why, counts]
    assert list(getattr(own, event)) == [print, say_why, counts]


@pytest.mark.parametrize("sensor", [DatasetSensor, ModelVersionSensor])
def test_sensors_survive_the_deferral_race(dag: DAG, sensor: type) -> None:
    """A trigger that fires at once can fail its task in Airflow; only a retry makes that harmless."""
    arguments = {"dataset": "x"} if sensor is DatasetSensor else {"model": "x", "alias": "champion"}
    assert sensor(task_id="s", **arguments).retries >= 1
    with pytest.raises(ValueError, match="retries >= 1"):
        sensor(task_id="t", retries=0, **arguments)


def test_an_approval_needs_retries_and_a_version(dag: DAG, version_ref: ModelVersionRef) -> None:
    """An answer that comes before Airflow has noticed the wait fails the try: without another it would be lost."""
    version, approvers = version_ref.to_wire(), ["vera"]
    with pytest.raises(ValueError, match="an approval needs retries >= 1, got 0"):
        ApproveOperator(task_id="a", version=version, approvers=approvers, retries=0)
    with pytest.raises(SpecError, match=r"approvers must have at least 1 item, has 0, got \[\]"):
        ApproveOperator(task_id="b", version=version, approvers=[])
    with pytest.raises(WiringError, match="takes a ModelVersionRef"):
        ApproveOperator(task_id="c", version=version_ref.parent.to_wire(), approvers=approvers)


def test_the_form_says_what_one_decides_on(version_ref: ModelVersionRef) -> None:
    values = {"": 0.5, ".low": 0.45, ".high": 0.55}
    metrics = {f"{model}.ndcg@10{end}": value for model in ("candidate", "champion") for end, value in values.items()}
    report = dataclasses.replace(version_ref.parent, metrics={"ndcg@10": 0.5, **metrics}, champion="6")
    approval = Approval(approvers=["vera"])
    text = summary(dataclasses.replace(version_ref, parent=report), approval)
    assert text.splitlines()[0] == report.reason
    assert f"| on held-out data | version {version_ref.version} | version 6 in production |" in text
    assert "| ndcg@10 | 0.5000 (0.4500 to 0.5500) | 0.5000 (0.4500 to 0.5500) |" in text
    assert "no model was in production" in summary(version_ref, approval)
    assert "It was not trained here" not in text
    checkpoint = version_ref.ancestor(CheckpointRef)
    brought = {"initial_weights": Artifact(key="train/k/initial_weights.pt", sha256="0" * 64, num_bytes=1)}
    taken = dataclasses.replace(report, parent=dataclasses.replace(checkpoint, epoch=0, artifacts=brought))
    text = summary(dataclasses.replace(version_ref, parent=taken), approval)
    assert "**It was not trained here**: which rows its weights have seen is not known." in text


def test_assets_are_named_after_dataset_and_model(dag: DAG, version_ref: ModelVersionRef) -> None:
    ingest = IngestOperator(task_id="ingest", sources=SOURCES, event_time="at")
    register = RegisterOperator(task_id="register", report=version_ref.parent.to_wire(), registered_model="ranker")
    promote = PromoteOperator(task_id="promote", version=register.output, registered_model="ranker")
    assert [asset.name for asset in ingest.outlets] == ["dataset://wired"]
    assert register.outlets == [], "what is registered is not in production yet"
    assert [asset.name for asset in promote.outlets] == ["model://ranker"]


def test_override_of_an_unknown_setting_is_an_error(dag: DAG) -> None:
    with pytest.raises(ValueError, match="has no setting 'epochs' to override"):
        IngestOperator(task_id="ingest", sources=SOURCES, event_time="at", parameters=["epochs"])


def test_pipeline_name_is_checked(dag: DAG) -> None:
    """It becomes a folder of the store and an address: another name's reports could not be opened."""
    with pytest.raises(ValueError, match="lower-case letters, digits and underscores"):
        IngestOperator(task_id="ingest", sources=SOURCES, event_time="at", pipeline="../Other")


@pytest.mark.parametrize(
    "import_path",
    ["include.x.model:build", "include.x.models.net:build", "include.x.models.deep.net:build"],
)
def test_the_whole_recipe_counts_as_the_code_of_a_step(import_path: str) -> None:
    """A change in a module that the named one imports would otherwise be answered with the old result."""
    assert recipe_folder(import_path) == "include/x"


def context(conf: Mapping[str, Any] | None) -> Any:
    """What Airflow gives a task, of a run that was triggered with this."""
    run = SimpleNamespace(conf=conf, data_interval_start=NIGHT, data_interval_end=NIGHT, triggering_user_name=None)
    given = {"params": dict(conf or {}), "dag_run": run, "run_id": "r"}
    return given | {"ti": SimpleNamespace(try_number=1), "task_state_store": {}, "dag": DAG(dag_id="of_a_run")}


def test_a_mistyped_parameter_is_refused() -> None:
    """Broken: who triggers with `epoch: 30` gets a model of 3 epochs, and may never know."""
    with DAG(dag_id="typed", schedule=None, params={"epochs": 3}):
        step = IngestOperator(task_id="i", sources=SOURCES, event_time="at", only_parameters=True)
        lenient = IngestOperator(task_id="j", sources=SOURCES, event_time="at")
    with pytest.raises(StepFailedError, match="triggered with 'epoch', which is no parameter .* mean 'epochs'"):
        step.execute(context({"epoch": 30}))
    with pytest.raises(StepFailedError, match="'colour', which is no parameter of this pipeline: it has epochs"):
        step.execute(context({"colour": 1}))
    for step_of_a_run, conf in ((lenient, {"colour": 1}), (step, {"epochs": 5}), (step, None)):
        launch = step_of_a_run.launch(Asked.of(context(conf), None), Deployment.load())
        assert launch.input.step == "ingest"


@pytest.mark.parametrize(
    ("grain", "zone", "expected"),
    [
        ("day", "America/New_York", ("2024-03-09T05:00:00+00:00", "2024-03-10T05:00:00+00:00")),
        ("month", "America/New_York", ("2024-03-09T05:00:00+00:00", "2024-03-10T05:00:00+00:00")),
        ("hour", "America/New_York", ("2024-03-10T15:00:00+00:00", "2024-03-10T16:00:00+00:00")),
        ("hour", "Asia/Kolkata", ("2024-03-10T15:30:00+00:00", "2024-03-10T16:30:00+00:00")),
    ],
)
def test_a_run_without_a_data_interval_works_as_of_the_last_whole_day_or_hour(
    grain: str, zone: str, expected: tuple[str, str]
) -> None:
    """Broken: an hourly pipeline that is triggered at noon would see nothing of the morning."""
    with DAG(dag_id="by_hand", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=ZoneInfo(zone))) as dag:
        ingest = IngestOperator(task_id="i", sources=SOURCES, event_time="at", grain=grain)
        validate = ValidateOperator(task_id="v", dataset=ingest.output, schema_path="s.pbtxt")
    run = SimpleNamespace(
        conf=None, data_interval_start=None, data_interval_end=None, triggering_user_name=None,
        run_after=datetime(2024, 3, 10, 16, 45, tzinfo=UTC),
    )  # fmt: skip
    for task_of_a_run in (ingest, validate):
        asked = Asked.of({**context(None), "dag_run": run, "dag": dag}, task_of_a_run.upstream)
        assert tuple(instant.isoformat() for instant in asked.interval) == expected


def test_wrong_input_at_run_time_is_not_retried(dag: DAG, version_ref: ModelVersionRef) -> None:
    """Trying again with the same ref or param would only hold up the message."""
    step = ValidateOperator(task_id="v", dataset="{{ ref }}", schema_path="s.pbtxt")
    step.upstream = version_ref.to_wire()
    with pytest.raises(StepFailedError, match="expected a DatasetRef"):
        step.execute(context(None))
