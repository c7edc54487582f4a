"""Approvals where users are FAB's: who may answer a form, by role and by the name or number that a pipeline names."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from deployments import FAB
from live_airflow import LiveAirflow
from project import REPOSITORY
from releases import RUN_SECONDS, answer, client_of, form, history, register, release, wait_for

pytestmark = [
    pytest.mark.skipif(not FAB, reason="needs an environment with FAB: make chaos"),
    pytest.mark.timeout(900),
]
USERS = {"vera": "user", "vic": "viewer", "uwe": "user", "otto": "op", "ada": "admin"}
VERA = "2"
"""Her number: the administrator of the tests is the first."""
DAGS = {"releasing": "vera", "releasing_by_id": VERA}


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow], tmp_path_factory: pytest.TempPathFactory) -> LiveAirflow:
    by_name = REPOSITORY / "tests/fixtures/dags/releasing.py"
    by_id = tmp_path_factory.mktemp("dags") / "releasing_by_id.py"
    text = by_name.read_text().partition('with DAG("serving"')[0]
    text = text.replace('"vera"', f'"{VERA}"').replace('"releasing', '"releasing_by_id')
    by_id.write_text(text)
    airflow = new_airflow(with_login=True, fab=True, users=list(USERS), roles=USERS, dags=[by_name, by_id])
    for dag_id in DAGS:
        airflow.client.wait_for_dag(dag_id, timeout_seconds=120)
        airflow.client.unpause(dag_id)
    return airflow


@pytest.mark.parametrize("dag_id", DAGS, ids=["by name", "by number"])
def test_only_an_approver_approves(airflow: LiveAirflow, dag_id: str) -> None:
    """Broken: whoever may answer forms puts a model into production, or the right person may not."""
    before = airflow.aliases().get("champion") if history(airflow) else None
    version = register(airflow)
    run_id = release(airflow, version, dag_id)
    assert form(airflow, run_id, dag_id)["subject"] == f"Put version {version.version} of events into production?"
    for user in USERS:
        if user == "vera":
            continue
        if user == "vic" or dag_id == "releasing_by_id":
            with pytest.raises(httpx.HTTPStatusError, match="403"):
                answer(airflow, user, run_id, "Approve", "mine", dag_id)
        else:  # FAB knows users by number: the task does not count the answer, and asks again
            answer(airflow, user, run_id, "Approve", "mine", dag_id)
            wait_for(lambda: _asks(airflow, run_id, dag_id), f"the question after the answer of {user}")
        assert airflow.aliases().get("champion") == before
    form(airflow, run_id, dag_id)
    answer(airflow, "vera", run_id, "Approve", "ship it", dag_id)
    assert airflow.client.wait(dag_id, run_id, RUN_SECONDS) == "success", airflow.states(run_id, dag_id)
    assert airflow.aliases()["champion"] == version.version
    assert [entry["approver"] for entry in history(airflow)[-2:]] == ["vera", "vera"]
    (record,) = _decisions(airflow, version.version)
    assert (record["person_id"], record["person_name"], record["why"]) == (VERA, "vera", "ship it")


@pytest.mark.parametrize("user", [user for user in USERS if user != "vera"])
def test_a_forged_answer_is_no_answer(airflow: LiveAirflow, user: str) -> None:
    """Attack 1 by each role: an answer in the task's state, and a clear."""
    before = airflow.aliases().get("champion") if history(airflow) else None
    version = register(airflow)
    run_id = release(airflow, version)
    form(airflow, run_id)
    client = client_of(airflow, user)
    path = f"/dags/releasing/dagRuns/{run_id}/taskInstances/approve/state-store/answer"
    forged = {"approved": True, "by": "vera", "why": ""}
    if user == "vic":
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            client.request("PUT", path, json={"value": forged})
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            client.clear_task("releasing", run_id, "approve")
    else:
        client.request("PUT", path, json={"value": forged})
        client.clear_task("releasing", run_id, "approve")
        wait_for(lambda: airflow.client.tasks("releasing", run_id)["approve"]["try_number"] > 1, "another try")
    assert form(airflow, run_id)["response_received"] is False
    answer(airflow, "vera", run_id, "Reject", "no")
    assert airflow.client.wait("releasing", run_id, RUN_SECONDS) == "success"
    assert airflow.aliases().get("champion") == before


def _asks(airflow: LiveAirflow, run_id: str, dag_id: str) -> bool:
    waits = airflow.states(run_id, dag_id)["approve"] == "awaiting_input"
    return waits and not airflow.client.question(dag_id, run_id, "approve")["response_received"]


def _decisions(airflow: LiveAirflow, version: str) -> list[dict[str, str]]:
    """What the signed records of a version say."""
    folder: Path = airflow.stack.store / "models/events/decisions"
    envelopes = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{version}-*.json"))]
    return [dict(json.loads(base64.b64decode(envelope["payload"]))["predicate"]) for envelope in envelopes]
