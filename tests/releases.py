"""A version's way from its registration into production, as tests walk it: without the minutes of training it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from live_airflow import LiveAirflow
from project import REPOSITORY

from mlops.contract.refs import (
    Artifact,
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    ReportRef,
    ValidationRef,
)
from mlops.contract.step import python_path
from mlops_provider.local.client import AirflowClient
from mlops_provider.local.demo import READING_SECONDS

RUN_SECONDS = 400
METRICS = {
    "ndcg@10": 0.81234,
    "candidate.ndcg@10": 0.81234,
    "candidate.ndcg@10.low": 0.8,
    "candidate.ndcg@10.high": 0.82,
}
STAGE = """
import sys
from pathlib import Path
from mlops.signing.keys import load_key
from mlops.contract.refs import ReportRef
from mlops.commands.signing import sign_entry
from mlops.registry.promotion import Promotion
from mlops.registry.semantic_version import VERSION_TAG
from mlops.registry.transitions import Author
from mlops.store import Store
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import REF_TAG, ModelRegistry
from mlops.tracking.stored_model import StoredModel

store, tracking_uri, report, key = sys.argv[1:]
registry = ModelRegistry(client=connect(tracking_uri), name="events")
run = registry.client.create_run("0").info
found = registry.client.create_logged_model("0", name="events", source_run_id=run.run_id)
model = StoredModel(model_id=found.model_id, uri=found.artifact_location)  # nothing is there, and nothing needs it
tags = {REF_TAG: report, VERSION_TAG: "1.0.0", "mlops.dataset": "events"}
version = registry.create(model=model, run_id=run.run_id, tags=tags, description="Good.")
entry = Promotion.of(registry, Store(store)).stage(version, Author(who="a night", why="Good."), report="reports/1.html")
sign_entry(Store(store), entry, load_key(key), "a night", [])
print(version)
"""


def history(airflow: LiveAirflow) -> list[dict[str, Any]]:
    """The audit trail of ``events``, oldest first."""
    folder = airflow.stack.store / "models/events/audit"
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def register(airflow: LiveAirflow) -> ModelVersionRef:
    """A version of ``events`` in staging, judged against what is in production now."""
    champion = airflow.aliases().get("champion") if history(airflow) else None
    key = uuid.uuid4().hex[:12]
    place = f"tests/releases/{key}"
    dataset = DatasetRef(
        place=f"{place}/ingest", name="events", version="1" * 64, schema_hash="2" * 64, num_rows=1, num_bytes=1,
        interval_start="2024-01-01T00:00:00+00:00", interval_end="2024-01-02T00:00:00+00:00",
    )  # fmt: skip
    features = FeaturesRef(
        place=f"{place}/features", version="4" * 64, num_features=1, num_samples={},
        parent=ValidationRef(place=f"{place}/validate", schema_sha256="3" * 64, num_checks=1, parent=dataset),
    )  # fmt: skip
    checkpoint = CheckpointRef(
        place=f"{place}/train", epoch=1, metrics={}, seed=1, world_size=1, tracking_run="r", parent=features
    )
    page = Artifact(key="pipelines/events/evaluate/k/report.000000000000.html", sha256="5" * 64, num_bytes=1)
    report = ReportRef(
        place=f"{place}/evaluate", artifacts={"report": page}, passed=True, reason="Better than noise.",
        metrics=METRICS, champion=champion, parent=checkpoint,
    )  # fmt: skip
    store = f"file://{airflow.stack.store}"
    version = training(
        airflow,
        "-c",
        STAGE,
        store,
        airflow.stack.mlflow_url,
        json.dumps(report.to_wire()),
        airflow.stack.environment()["AIRFLOW__MLOPS__RELEASE_KEY"],
    )
    ref = ModelVersionRef(
        place=f"pipelines/events/register/{key}",
        name="events",
        version=version,
        semantic_version="1.0.0",
        parent=report,
    )
    for link in ref.lineage():
        path = airflow.stack.store / link.place / "ref.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(link.to_wire()))
    return ref


def training(airflow: LiveAirflow, *arguments: str) -> str:
    """Run the training runtime's Python as `mlops` does; what it printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(REPOSITORY),
        "MLOPS_HOME": str(airflow.home),
        "MLOPS_STORE": f"file://{airflow.stack.store}",
        "MLFLOW_TRACKING_URI": airflow.stack.mlflow_url,
    }
    command = [str(REPOSITORY / ".venv/training/bin/python"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""


def release(airflow: LiveAirflow, version: ModelVersionRef, dag_id: str = "releasing", user: str | None = None) -> str:
    """:param user: who starts the run; admin where None"""
    run_id = f"version_{version.version}"
    client = client_of(airflow, user) if user else airflow.client
    client.trigger(dag_id, run_id, None, {"ref": version.to_wire()})
    return run_id


def client_of(airflow: LiveAirflow, user: str) -> AirflowClient:
    """Airflow's REST API as one of the users; as anybody, where Airflow has none."""
    return AirflowClient(airflow.stack.airflow_url, (user, f"the-password-of-{user}") if airflow.login else None)


def mlops(airflow: LiveAirflow, *arguments: str) -> tuple[int, str]:
    """The command line of the people who look after this deployment; ``--user NAME`` comes last."""
    user = arguments[-1] if arguments[-2:-1] == ("--user",) else "admin"
    own = f"the-password-of-{user}" if airflow.login is None or user != airflow.login[0] else airflow.login[1]
    environment = {**os.environ, **airflow.stack.environment(), "MLOPS_AIRFLOW_PASSWORD": own}
    command = [sys.executable, "-m", "mlops_provider.cli", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, " ".join(f"{done.stdout} {done.stderr}".split())


def wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + RUN_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"not within {RUN_SECONDS} s: {what}"
        time.sleep(0.3)


def form(airflow: LiveAirflow, run_id: str, dag_id: str = "releasing") -> dict[str, Any]:
    """The form of a run, once it waits for an answer."""
    wait_for(lambda: airflow.states(run_id, dag_id).get("approve") == "awaiting_input", f"the form of {run_id}")
    time.sleep(READING_SECONDS)
    return airflow.client.question(dag_id, run_id, "approve")


def answer(airflow: LiveAirflow, user: str, run_id: str, chosen: str, why: str, dag_id: str = "releasing") -> None:
    client_of(airflow, user).answer(dag_id, run_id, "approve", chosen, {"why": why})
