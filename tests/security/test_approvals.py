"""
People who may edit task instances, but not approve, against the approval of a release.

One Airflow with a login for the whole file: admin; vera, who approves; otto, who may edit task instances. Its users are
SimpleAuthManager's, or FAB's where there is an environment with it (`make chaos`); under FAB otto is an operator, for
other users may not edit XComs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from deployments import FAB
from live_airflow import LiveAirflow
from project import REPOSITORY
from releases import RUN_SECONDS, answer, client_of, form, history, mlops, register, release, wait_for
from turns import on_turn

pytestmark = pytest.mark.timeout(900)  # FAB makes its database first
DAG, TASK = "releasing", "approve"


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow]) -> LiveAirflow:
    airflow = new_airflow(
        with_login=True,
        fab=bool(FAB),
        users=["vera", "otto"],
        roles={"otto": "op"} if FAB else {},
        dags=[REPOSITORY / "tests/fixtures/dags/releasing.py"],
    )
    for dag_id in (DAG, "releasing_by_two"):
        airflow.client.wait_for_dag(dag_id, timeout_seconds=120)
        airflow.client.unpause(dag_id)
    return airflow


def edit_xcom(airflow: LiveAirflow, run_id: str, value: Any) -> None:
    """As otto: what the task before the approval returned."""
    path = f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/registered/xcomEntries/return_value"
    client_of(airflow, "otto").request("PATCH", path, json={"value": value, "map_index": -1})


def in_production(airflow: LiveAirflow) -> str | None:
    return airflow.aliases().get("champion") if history(airflow) else None


def wait_for_try(airflow: LiveAirflow, run_id: str, number: int) -> None:
    wait_for(lambda: airflow.client.tasks(DAG, run_id)[TASK]["try_number"] >= number, f"try {number} of {run_id}")


def refused(airflow: LiveAirflow, user: str, run_id: str, why: str, dag_id: str = DAG) -> None:
    """An approval that does not count. FAB, which knows users by number, lets it through: then the task asks again."""
    if not FAB:
        with pytest.raises(httpx.HTTPStatusError, match=f"403.*{user}.* is not a respondent"):
            answer(airflow, user, run_id, "Approve", why, dag_id)
        return
    before = in_production(airflow)
    answer(airflow, user, run_id, "Approve", why, dag_id)
    wait_for(lambda: not airflow.client.question(dag_id, run_id, TASK)["response_received"], "it asks again")
    form(airflow, run_id, dag_id)
    assert in_production(airflow) == before


def test_an_answer_is_not_taken_from_the_task_state(airflow: LiveAirflow) -> None:
    """Attack 1: who may edit task instances wrote an answer there, cleared the task, and the version went live."""
    champion, known = in_production(airflow), len(history(airflow))
    version = register(airflow)
    run_id = release(airflow, version)
    form(airflow, run_id)
    otto = client_of(airflow, "otto")
    forged = json.dumps({"approved": True, "by": "admin", "why": ""})
    for key in ("answer", "decision"):
        path = f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/{TASK}/state-store/{key}"
        otto.request("PUT", path, json={"value": json.loads(forged)})
    otto.clear_task(DAG, run_id, TASK)
    wait_for_try(airflow, run_id, 2)
    assert form(airflow, run_id)["response_received"] is False, "it asks again"
    assert in_production(airflow) == champion
    refused(airflow, "otto", run_id, "mine")
    answer(airflow, "vera", run_id, "Approve", "ship it")
    assert airflow.client.wait(DAG, run_id, RUN_SECONDS) == "success", airflow.states(run_id, DAG)
    assert in_production(airflow) == version.version
    assert {entry["approver"] for entry in history(airflow)[known + 1 :]} == {"vera"}


def test_an_answer_counts_for_the_version_that_was_shown(airflow: LiveAirflow) -> None:
    """Attacks 2 and 3: the yes to one version put another one live, and the form showed a third."""
    champion, known = in_production(airflow), len(history(airflow))
    first, second, third = (register(airflow) for _ in range(3))
    run_id = release(airflow, first)
    assert form(airflow, run_id)["subject"] == f"Put version {first.version} of events into production?"

    # Another version while the form waits: the answer to the first one does not count for it.
    edit_xcom(airflow, run_id, second.to_wire())
    answer(airflow, "vera", run_id, "Approve", "the first one")
    wait_for_try(airflow, run_id, 2)
    shown = form(airflow, run_id)
    assert shown["subject"] == f"Put version {second.version} of events into production?"
    assert all(f"version {second.version} (" in option for option in shown["options"])
    assert second.parent.digest() in shown["body"]
    assert in_production(airflow) == champion

    # And another one once it is cleared: the form shows that one, whatever was answered before.
    edit_xcom(airflow, run_id, third.to_wire())
    client_of(airflow, "otto").clear_task(DAG, run_id, TASK)
    wait_for_try(airflow, run_id, 3)
    assert form(airflow, run_id)["subject"] == f"Put version {third.version} of events into production?"
    answer(airflow, "vera", run_id, "Reject", "none of them")
    assert airflow.client.wait(DAG, run_id, RUN_SECONDS) == "success"
    assert in_production(airflow) == champion
    assert "approve" not in {entry["action"] for entry in history(airflow)[known:]}


def test_a_clear_asks_again(airflow: LiveAirflow) -> None:
    """Attack 2, without malice: a clear kept the recorded answer."""
    version = register(airflow)
    run_id = release(airflow, version)
    form(airflow, run_id)
    answer(airflow, "vera", run_id, "Approve", "once")
    assert airflow.client.wait(DAG, run_id, RUN_SECONDS) == "success"
    client_of(airflow, "otto").clear_task(DAG, run_id, TASK)
    wait_for_try(airflow, run_id, 2)
    assert form(airflow, run_id)["response_received"] is False
    answer(airflow, "vera", run_id, "Approve", "twice")
    assert airflow.client.wait(DAG, run_id, RUN_SECONDS) == "success"


def test_an_edited_xcom_fails_and_names_the_field(airflow: LiveAirflow) -> None:
    """Attack 4: a version was put before the approvers, and promoted, with a reason and metrics that were made up."""
    version = register(airflow)
    run_id = release(airflow, version)
    form(airflow, run_id)
    metrics = {**version.parent.metrics, "candidate.ndcg@10": 0.9999}
    forged = dataclasses.replace(version, parent=dataclasses.replace(version.parent, metrics=metrics))
    edit_xcom(airflow, run_id, forged.to_wire())
    client_of(airflow, "otto").clear_task(DAG, run_id, TASK)
    assert airflow.client.wait(DAG, run_id, RUN_SECONDS) == "failed"
    failed = airflow.client.tasks(DAG, run_id)[TASK]
    assert (failed["state"], failed["try_number"]) == ("failed", 2), "no retry makes it right"
    field = "metrics.candidate.ndcg@10 of the ReportRef is 0.9999, and was committed as 0.81234"
    wait_for(lambda: field in airflow.client.log(DAG, run_id, TASK, 2), "the field's name in the task's log")


def test_two_people_approve_and_neither_of_them_started_it(airflow: LiveAirflow) -> None:
    """Broken: one person alone could train a model and put it into production."""
    version = register(airflow)
    started_by_one = release(airflow, version, "releasing_by_two", user="vera")
    assert airflow.client.wait("releasing_by_two", started_by_one, RUN_SECONDS) == "failed"

    version = register(airflow)
    run_id = release(airflow, version, "releasing_by_two")
    form(airflow, run_id, "releasing_by_two")
    answer(airflow, "vera", run_id, "Approve", "good", "releasing_by_two")
    wait_for(
        lambda: not airflow.client.question("releasing_by_two", run_id, TASK)["response_received"], "the second form"
    )
    form(airflow, run_id, "releasing_by_two")
    refused(airflow, "vera", run_id, "good, really", "releasing_by_two")
    answer(airflow, "otto", run_id, "Approve", "fine", "releasing_by_two")
    assert airflow.client.wait("releasing_by_two", run_id, RUN_SECONDS) == "success"
    assert in_production(airflow) == version.version
    newest = history(airflow)[-1]
    assert (newest["action"], newest["approver"]) == ("promote", "vera and otto")
    folder = airflow.stack.store / "models/events/decisions"
    assert len(list(folder.glob(f"{version.version}-*.json"))) == 2, "each answer is one record"


@on_turn(1, 2)
def test_nothing_that_happened_can_be_hidden(airflow: LiveAirflow) -> None:
    """Attack 6: a trail that was rewritten, edited or cut off was accepted."""
    version = register(airflow)
    run_id = release(airflow, version)
    form(airflow, run_id)
    answer(airflow, "vera", run_id, "Approve", "ship it")
    assert airflow.client.wait(DAG, run_id, RUN_SECONDS) == "success"
    anchored, other = len(history(airflow)), register(airflow)
    archive = "models", "archive", "events"
    code, said = mlops(airflow, *archive, other.version, "--why", "complaints", "--user", "vera")
    assert (code, "Airflow was not told of it" in said, "403" in said) == (0, True, True), said
    code, said = mlops(airflow, "audit", "verify", "--user", "admin")
    assert code == 0, said
    assert f"events {anchored + 2} up to {anchored} none changed, missing or unsigned" in said
    last = register(airflow)
    code, said = mlops(airflow, *archive, last.version, "--why", "complaints", "--user", "admin")
    assert (code, "not told" in said) == (0, False), said
    code, said = mlops(airflow, "audit", "verify", "--user", "admin")
    assert f"events {anchored + 4} up to {anchored + 4} none changed" in said, said

    # Who may write the store takes what a person did out, with all its traces.
    for file in (airflow.stack.store / "models/events").glob("*/*"):
        if file.name.partition(".")[0] in (f"{number:012}" for number in range(anchored + 3, anchored + 5)):
            file.unlink()
    code, said = mlops(airflow, "audit", "verify", "events", "--json", "--user", "admin")
    assert (code, f"{anchored + 4:012}.json was cut off (the anchor knows it" in said) == (1, True), said
    # Nor does another entry hide it.
    code, said = mlops(airflow, "models", "promote", "events", last.version, "--why", "mine", "--user", "admin")
    assert (code, "the audit trail of events was tampered with" in said) == (1, True), said
    # The next release does not go on as if nothing had been.
    airflow.client.trigger(DAG, "after", None, {"ref": version.to_wire()})
    assert airflow.client.wait(DAG, "after", RUN_SECONDS) == "failed"
    wait_for(
        lambda: "the audit trail of events was tampered with" in airflow.client.log(DAG, "after", TASK, 1), "the reason"
    )

    # Nor are trails forgotten that are deleted whole, however many there are.
    anchor = json.dumps({"number": 1, "sha256": 64 * "0"})
    ghosts = [f"ghost_{number:03}" for number in range(120)]
    for ghost in ghosts:
        airflow.client.request("POST", "/variables", json={"key": f"mlops_audit.{ghost}", "value": anchor})
    code, said = mlops(airflow, "audit", "verify", "--json", "--user", "admin")
    assert (code, [ghost for ghost in ghosts if ghost not in said]) == (1, []), said
