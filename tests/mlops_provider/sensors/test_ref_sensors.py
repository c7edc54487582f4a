"""Sensors and triggers against a real store folder; the registry and a real triggerer are in end_to_end."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.bases.operator import TriggerFailureReason
from airflow.sdk.exceptions import AirflowFailException, TaskDeferralError, TaskDeferred
from served_metrics import Served

from mlops.contract.refs import DatasetRef, ModelVersionRef
from mlops_provider.exceptions import StepFailedError, StepRetryableError
from mlops_provider.mlflow_rest import MlflowError
from mlops_provider.operators.champion import champion_of
from mlops_provider.registry import champion_version, find_model_version
from mlops_provider.sensors.dataset import DatasetSensor
from mlops_provider.sensors.model import ModelVersionSensor
from mlops_provider.triggers.model import ModelVersionTrigger
from mlops_provider.triggers.snapshot import SnapshotTrigger


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__MLOPS__STORE", f"file://{tmp_path}/store")
    return tmp_path / "store"


@pytest.fixture
def dataset(version_ref: ModelVersionRef) -> DatasetRef:
    return version_ref.ancestor(DatasetRef)


def commit(store: Path, ref: DatasetRef, run_key: str) -> None:
    place = store / "pipelines/p/ingest" / run_key
    place.mkdir(parents=True)
    (place / "ref.json").write_text(json.dumps(ref.to_wire()))


def test_snapshot_that_is_there_is_returned_without_deferring(store: Path, dataset: DatasetRef) -> None:
    """A trigger that fires at once may overtake its own deferral: best not to defer at all."""
    commit(store, dataset, "20130131T000000Z-aaa")
    assert DatasetSensor(task_id="s", dataset="p").execute({}) == dataset.to_wire()


def test_snapshot_that_is_not_there_is_waited_for(store: Path, dataset: DatasetRef) -> None:
    (store / "pipelines/p/ingest/20130131T000000Z-aaa").mkdir(parents=True)
    (store / "pipelines/p/ingest/20130131T000000Z-aaa/manifest.json").write_text("{}")
    with pytest.raises(TaskDeferred) as deferred:
        DatasetSensor(task_id="s", dataset="p").execute({})
    trigger = deferred.value.trigger
    assert isinstance(trigger, SnapshotTrigger)

    async def fire() -> dict[str, Any]:
        trigger.poll_seconds = 0.02
        events = trigger.run()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        assert not waiting.done(), "data without ref.json is not committed"
        commit(store, dataset, "20130131T000000Z-bbb")
        return dict((await asyncio.wait_for(waiting, 5)).payload)

    assert asyncio.run(fire()) == {"ref": dataset.to_wire()}


def test_only_the_interval_that_was_asked_for(store: Path, dataset: DatasetRef) -> None:
    commit(store, dataset, "20130131T000000Z-aaa")
    assert DatasetSensor(task_id="a", dataset="p", interval_end="2013-01-31T00:00:00+00:00").execute({})
    with pytest.raises(TaskDeferred):
        DatasetSensor(task_id="b", dataset="p", interval_end="2013-02-01T00:00:00+00:00").execute({})


@pytest.mark.parametrize("event", [None, {}, {"ref": {"kind": "report"}}, {"error": "x"}],
                         ids=["none", "empty", "other kind", "error"])  # fmt: skip
def test_malformed_event_fails_the_task(event: Any) -> None:
    """An event without a ref must not let the pipeline go on without one."""
    with pytest.raises((StepRetryableError, ValueError), match="sent no ref|expected a DatasetRef"):
        DatasetSensor(task_id="s", dataset="p").resume({}, event)


@pytest.mark.parametrize(
    "trigger",
    [
        SnapshotTrigger(None, "p", None, 5.0),
        SnapshotTrigger("ads", "p", "2013-01-31T00:00:00+00:00", 5.0),
        ModelVersionTrigger(None, "m", None, "champion", 1.0),
    ],
    ids=["any snapshot", "one snapshot", "model"],
)
def test_trigger_survives_its_way_through_the_database(trigger: Any) -> None:
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    copy = getattr(__import__(module, fromlist=[name]), name)(**json.loads(json.dumps(arguments)))
    assert copy.serialize() == trigger.serialize()


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        pytest.param(400, "<html>bad gateway", id="page of an error"),
        pytest.param(400, [], id="list of an error"),
        pytest.param(200, "<html>please log in", id="page"),
        pytest.param(200, {}, id="without a version"),
        pytest.param(502, "", id="nothing"),
    ],
)
def test_what_is_not_the_registry_is_waited_for_and_named(
    status: int, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: one page of a proxy would end a trigger that waits for days."""
    served = Served()
    served.status, served.answer = status, answer
    try:
        for find in (find_model_version(served.url, "m", alias="champion"), champion_version(served.url, "m")):
            with pytest.raises(MlflowError, match=served.url):
                asyncio.run(find)
        monkeypatch.setenv("AIRFLOW__MLOPS__TRACKING_URI", served.url)
        assert asyncio.run(ModelVersionTrigger(None, "m", None, "champion", 1.0).look()) is None
    finally:
        served.close()


@pytest.mark.parametrize("code", ["INVALID_PARAMETER_VALUE", "PERMISSION_DENIED"])
def test_what_the_registry_refuses_is_not_asked_again(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a rollback of a model with a malformed name is tried for minutes while a bad one is in production."""
    served = Served()
    served.status, served.answer = 400, {"error_code": code, "message": "Invalid value 'a/b' for 'name'"}
    deployment = SimpleNamespace(tracking_uri=served.url, logins={})
    try:
        with pytest.raises(StepFailedError, match="Invalid value 'a/b'"):
            champion_of("a/b", deployment)  # type: ignore[arg-type]
        served.status, served.answer = 500, {"error_code": "INTERNAL_ERROR"}
        with pytest.raises(StepRetryableError):
            champion_of("a/b", deployment)  # type: ignore[arg-type]
    finally:
        served.close()


@pytest.mark.parametrize("status", [401, 403])
def test_a_login_that_is_refused_ends_the_wait_and_names_the_setting(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a sensor waits for days for a model that it may not see."""
    served = Served()
    served.status, served.answer = status, "Permission denied"
    deployment = SimpleNamespace(tracking_uri=served.url, logins={})
    sensor = ModelVersionSensor(task_id="s", model="m", alias="champion")
    try:
        with pytest.raises(StepFailedError, match=rf"answered {status}: .*; set \[mlops\] reader_login"):
            champion_of("m", deployment)  # type: ignore[arg-type]
        monkeypatch.setenv("AIRFLOW__MLOPS__TRACKING_URI", served.url)
        event = asyncio.run(anext(ModelVersionTrigger(None, "m", None, "champion", 1.0).run())).payload
        with pytest.raises(StepFailedError, match="reader_login"):
            sensor.resume({}, event)
    finally:
        served.close()


def test_unreachable_registry_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MlflowError, match="http://127.0.0.1:9 cannot be reached"):
        asyncio.run(find_model_version("http://127.0.0.1:9", "m", alias="champion"))
    monkeypatch.setenv("AIRFLOW__MLOPS__TRACKING_URI", "http://127.0.0.1:9")
    assert asyncio.run(ModelVersionTrigger(None, "m", None, "champion", 1.0).look()) is None


@pytest.mark.parametrize("end", ["2013-02-09", "{{ ds }}", "2013-02-09T05:00:00", "", "yesterday"])
def test_an_end_that_is_no_instant_is_not_waited_for(store: Path, end: str) -> None:
    """Broken: the sensor waits for ever for a snapshot that lies there, and nothing says why."""
    with pytest.raises(StepFailedError) as caught:
        DatasetSensor(task_id="s", dataset="p", interval_end=end).execute({})
    assert str(caught.value) == (
        "task 's': interval_end must be an instant in ISO 8601 with an offset, such as 2013-02-09T05:00:00+00:00, got "
        f"{end!r}: write {{{{ data_interval_end.isoformat() }}}}"
    )


def test_a_wait_that_took_too_long_is_not_begun_again() -> None:
    """Broken: with its three retries the task fails after four times its wait_timeout."""
    sensor = DatasetSensor(task_id="s", dataset="p", wait_timeout=timedelta(hours=2))
    with pytest.raises(AirflowFailException, match="task 's': .* did not come within its wait_timeout of 2:00:00"):
        sensor.resume_execution("__fail__", {"error": TriggerFailureReason.TRIGGER_TIMEOUT}, {})
    with pytest.raises(TaskDeferralError):
        sensor.resume_execution("__fail__", {"error": TriggerFailureReason.TRIGGER_FAILURE}, {})
