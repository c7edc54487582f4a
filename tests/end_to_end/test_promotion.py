"""From a registered version to production and back, with a real Airflow: the form, its users, the rollback DAG."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from live_airflow import LiveAirflow
from project import REPOSITORY
from served_metrics import Served

from mlops_provider.local.client import AirflowClient
from mlops_provider.refs import (
    Artifact,
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    ReportRef,
    ValidationRef,
)

RUN_SECONDS = 180
READING_SECONDS = 3
"""That a person takes to answer. One who is quicker than Airflow's executor is asked again, by the next try."""
WATCHED = timedelta(minutes=0.5)
"""That a canary of ``releasing_watched`` takes."""
STAGE = """
import sys
from mlops_provider.refs import ReportRef
from training.registry.promotion import Promotion
from training.registry.semantic_version import VERSION_TAG
from training.registry.transitions import Author
from training.store import Store
from training.tracking.connection import connect
from training.tracking.model_registry import REF_TAG, ModelRegistry
from training.tracking.stored_model import StoredModel

store, tracking_uri, report = sys.argv[1:]
registry = ModelRegistry(client=connect(tracking_uri), name="events")
run = registry.client.create_run("0").info
found = registry.client.create_logged_model("0", name="events", source_run_id=run.run_id)
model = StoredModel(model_id=found.model_id, uri=found.artifact_location)  # nothing is there, and nothing needs it
tags = {REF_TAG: report, VERSION_TAG: "1.0.0"}
version = registry.create(model=model, run_id=run.run_id, tags=tags, description="Good.")
Promotion.of(registry, Store(store)).stage(version, Author(who="a night", why="Good."), report="reports/1.html")
print(version)
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Live metrics of the canaries, for the deployment to find by its environment."""
    served = Served()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIVE_METRICS", served.url)
        yield served
    served.close()


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow], served: Served) -> LiveAirflow:
    dags = [REPOSITORY / "tests/fixtures/dags/releasing.py", REPOSITORY / "dags/rollback.py"]
    # A triggerer that is lost is noticed within seconds.
    settings = {
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
    }
    airflow = new_airflow(with_login=True, users=["vera", "otto"], dags=dags, settings=settings)
    for dag_id in ("releasing", "releasing_late", "releasing_canary", "releasing_watched", "rollback", "serving"):
        airflow.client.wait_for_dag(dag_id, timeout_seconds=120)
        airflow.client.unpause(dag_id)
    return airflow


def training(airflow: LiveAirflow, *arguments: str) -> str:
    """Run the training runtime's Python as `mlops` does; what it printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'plugins'}",
        "MLOPS_HOME": str(airflow.home),
        "MLOPS_STORE": f"file://{airflow.stack.store}",
        "MLFLOW_TRACKING_URI": airflow.stack.mlflow_url,
    }
    command = [str(REPOSITORY / ".venv/training/bin/python"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""


def history(airflow: LiveAirflow) -> list[dict[str, Any]]:
    """The audit trail, oldest first."""
    folder = airflow.stack.store / "models/events/audit"
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def register(airflow: LiveAirflow) -> ModelVersionRef:
    """A version in staging, judged against what is in production now; without the minutes of training it."""
    champion = airflow.aliases().get("champion") if history(airflow) else None
    dataset = DatasetRef(
        place="x", name="events", version="1" * 64, schema_hash="2" * 64, num_rows=1, num_bytes=1,
        interval_start="2024-01-01T00:00:00+00:00", interval_end="2024-01-02T00:00:00+00:00",
    )  # fmt: skip
    features = FeaturesRef(
        place="x", version="4" * 64, num_features=1, num_samples={},
        parent=ValidationRef(place="x", schema_sha256="3" * 64, num_checks=1, parent=dataset),
    )  # fmt: skip
    checkpoint = CheckpointRef(place="x", epoch=1, metrics={}, seed=1, world_size=1, tracking_run="r", parent=features)
    page = Artifact(key="pipelines/events/evaluate/k/report.000000000000.html", sha256="5" * 64, num_bytes=1)
    report = ReportRef(
        place="x", artifacts={"report": page}, passed=True, reason="Better than noise.", metrics={"ndcg@10": 0.81234},
        champion=champion, parent=checkpoint,
    )  # fmt: skip
    store = f"file://{airflow.stack.store}"
    version = training(airflow, "-c", STAGE, store, airflow.stack.mlflow_url, json.dumps(report.to_wire()))
    return ModelVersionRef(place="x", name="events", version=version, semantic_version="1.0.0", parent=report)


def wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + RUN_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"not within {RUN_SECONDS} s: {what}"
        time.sleep(0.3)


def release(airflow: LiveAirflow, version: ModelVersionRef, dag_id: str = "releasing") -> str:
    run_id = f"version_{version.version}"
    airflow.client.trigger(dag_id, run_id, None, {"ref": version.to_wire()})
    return run_id


def form(airflow: LiveAirflow, run_id: str) -> dict[str, Any]:
    """The form of a run, once it waits for an answer."""
    deadline = time.monotonic() + RUN_SECONDS
    while airflow.states(run_id, "releasing").get("approve") != "awaiting_input":
        assert time.monotonic() < deadline, airflow.states(run_id, "releasing")
        time.sleep(0.3)
    time.sleep(READING_SECONDS)
    path = f"/dags/releasing/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"
    return dict(airflow.client.request("GET", path))


def answer(airflow: LiveAirflow, user: str, run_id: str, chosen: str, why: str) -> None:
    client = AirflowClient(airflow.stack.airflow_url, (user, f"the-password-of-{user}"))
    path = f"/dags/releasing/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"
    client.request("PATCH", path, json={"chosen_options": [chosen], "params_input": {"why": why}})


@pytest.fixture(scope="module")
def approved(airflow: LiveAirflow) -> str:
    """A run whose version was put into production, with vera's consent."""
    version = register(airflow)
    run_id = release(airflow, version)
    detail = form(airflow, run_id)
    assert detail["subject"] == "Put version 1 of events into production?"
    for said in (
        "Better than noise.",
        "| ndcg@10 | 0.8123 |",
        "no model was in production",
        "/mlops/reports/pipelines",
    ):
        assert said in detail["body"]
    with pytest.raises(httpx.HTTPStatusError, match="403.*otto.* is not a respondent"):
        answer(airflow, "otto", run_id, "Approve", "I like it")
    answer(airflow, "vera", run_id, "Approve", "ship it")
    assert airflow.client.wait("releasing", run_id, RUN_SECONDS) == "success", airflow.states(run_id, "releasing")
    return run_id


def test_only_an_approver_approves(airflow: LiveAirflow, approved: str) -> None:
    """Broken: anybody could put a model into production, and nobody would know who it was."""
    assert airflow.states(approved, "releasing")["promote"] == "success"
    assert airflow.aliases() == {"champion": "1"}
    entries = history(airflow)
    assert [entry["action"] for entry in entries] == ["register", "approve", "promote"]
    assert entries[1]["why"] == "approved by vera: ship it"
    assert {entry["approver"] for entry in entries[1:]} == {"vera"}
    assert entries[2]["who"] == f"admin by releasing/{approved}/promote"


def test_a_rejected_version_is_archived_and_nothing_failed(airflow: LiveAirflow, approved: str) -> None:
    run_id = release(airflow, register(airflow))
    form(airflow, run_id)
    answer(airflow, "vera", run_id, "Reject", "too many late flights")
    assert airflow.client.wait("releasing", run_id, RUN_SECONDS) == "success"
    states = airflow.states(run_id, "releasing")
    assert (states["approve"], states["promote"]) == ("skipped", "skipped")
    assert airflow.aliases() == {"champion": "1"}
    newest = history(airflow)[-1]
    assert (newest["action"], newest["to_stage"]) == ("archive", "archived")
    assert newest["why"] == "rejected by vera: too many late flights"


def test_nobodys_answer_is_a_rejection(airflow: LiveAirflow, approved: str) -> None:
    run_id = release(airflow, register(airflow), "releasing_late")
    assert airflow.client.wait("releasing_late", run_id, RUN_SECONDS) == "success"
    assert airflow.states(run_id, "releasing_late")["promote"] == "skipped"
    assert history(airflow)[-1]["why"].startswith("rejected by nobody within")
    assert airflow.aliases() == {"champion": "1"}


def test_rollback_is_one_trigger_and_listeners_hear_of_it(airflow: LiveAirflow, approved: str) -> None:
    """Broken: taking a bad model back would need somebody who knows MLflow, or servers would keep the bad one."""
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        airflow.client.trigger("rollback", "without_reason", None, {"model": "events", "why": ""})
    second = register(airflow)
    run_id = release(airflow, second)
    form(airflow, run_id)
    answer(airflow, "vera", run_id, "Approve", "better")
    assert airflow.client.wait("releasing", run_id, RUN_SECONDS) == "success"
    assert airflow.aliases() == {"champion": second.version}
    airflow.client.trigger("rollback", "back", None, {"model": "events", "why": "complaints"})
    assert airflow.client.wait("rollback", "back", RUN_SECONDS) == "success", airflow.states("back", "rollback")
    assert airflow.aliases() == {"champion": "1"}
    newest = history(airflow)[-1]
    assert (newest["action"], newest["why"], newest["who"]) == (
        "rollback",
        "complaints",
        "admin by rollback/back/rollback",
    )
    assert ModelVersionRef.from_wire(airflow.client.xcom("rollback", "back", "rollback")).version == "1"
    told: list[str] = []
    deadline = time.monotonic() + RUN_SECONDS
    while told[-1:] != ["1"] or second.version not in told:
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
        runs = airflow.client.request("GET", "/dags/serving/dagRuns", params={"order_by": "run_after"})["dag_runs"]
        told = [version for run in runs for version in airflow.client.xcom("serving", run["dag_run_id"], "serve") or []]
    # Cleared, it is executed again, and takes nothing more back.
    airflow.client.clear_run("rollback", "back")
    time.sleep(1)
    assert airflow.client.wait("rollback", "back", RUN_SECONDS) == "success"
    # Cleared, the promotion that was taken back since is not made again, and nobody is told of it.
    airflow.client.clear_task("releasing", run_id, "promote")
    time.sleep(1)
    assert airflow.client.wait("releasing", run_id, RUN_SECONDS) == "success"
    assert airflow.states(run_id, "releasing")["promote"] == "skipped"
    assert airflow.aliases() == {"champion": "1"}
    assert history(airflow)[-1] == newest


def test_a_canary_that_fails_is_taken_back_and_one_that_does_well_is_promoted(
    airflow: LiveAirflow, served: Served
) -> None:
    """Broken: users would meet a bad model before anybody has seen it at work."""
    champion = airflow.aliases().get("champion") if history(airflow) else None
    served.answer = {"samples": 100, "error_rate": 0.9}
    bad = register(airflow)
    run_id = release(airflow, bad, "releasing_canary")
    assert airflow.client.wait("releasing_canary", run_id, RUN_SECONDS) == "failed"
    message = history(airflow)[-1]["why"]
    assert message == "the canary failed: error_rate > 0.5: error_rate 0.9, samples 100"
    assert airflow.aliases().get("champion") == champion
    assert f"/events/{bad.version}" in served.asked
    assert airflow.client.tasks("releasing_canary", run_id)["promote"]["state"] == "upstream_failed"

    served.answer = {"samples": 100, "error_rate": 0.001}
    good = register(airflow)
    run_id = release(airflow, good, "releasing_canary")
    assert airflow.client.wait("releasing_canary", run_id, RUN_SECONDS) == "success"
    assert airflow.aliases() == {"champion": good.version}
    assert [entry["action"] for entry in history(airflow)][-3:] == ["register", "canary", "promote"]


def test_a_canary_outlives_the_triggerer_that_watches_it(airflow: LiveAirflow, served: Served) -> None:
    """Broken: a lost triggerer would begin the canary anew, or have it judged, promoted and written down twice."""
    before = len(history(airflow))
    served.answer = {"samples": 100, "error_rate": 0.001}
    version = register(airflow)
    run_id = release(airflow, version, "releasing_watched")
    wait_for(lambda: f"/events/{version.version}" in served.asked, "the canary is watched")
    time.sleep(8)
    killed_at = datetime.now(UTC)
    airflow.stack.kill("triggerer")
    served.asked.clear()
    airflow.start()
    wait_for(lambda: bool(served.asked), "another triggerer has taken over")
    assert airflow.client.wait("releasing_watched", run_id, RUN_SECONDS) == "success"

    entries = history(airflow)[before:]
    assert [entry["action"] for entry in entries] == ["register", "canary", "promote"]
    assert airflow.aliases() == {"champion": version.version}
    canary = airflow.client.tasks("releasing_watched", run_id)["canary"]
    begun, ended = datetime.fromisoformat(entries[1]["at"]), datetime.fromisoformat(canary["end_date"])
    assert begun + WATCHED <= ended < killed_at + WATCHED, "it ends when it would have"
    assert canary["try_number"] == 1
    assert airflow.client.log("releasing_watched", run_id, "canary", 1).count("the canary did well") == 1
