"""From a registered version to production and back, with a real Airflow: the form, its users, the rollback DAG."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import httpx
import pytest
from browser import keep, page_at
from live_airflow import LiveAirflow
from locked_bucket import make_locked_bucket
from playwright.sync_api import Route
from project import REPOSITORY
from releases import RUN_SECONDS, answer, form, history, mlops, register, release, wait_for
from served_metrics import Served
from services import kms_server
from told_people import People, add_notify, people

from mlops.client import Client, RefusedError
from mlops.contract.refs import ModelVersionRef
from mlops.signing.keys import load_key
from mlops_provider.local.client import AirflowClient
from mlops_provider.locked_anchors import LockedAnchors
from mlops_provider.why import explain

KEY = "awskms:alias/release"
BUCKET = "s3://anchors/of/production"
WATCHED = timedelta(minutes=0.4)
"""That a canary of ``releasing_watched`` takes."""


@pytest.fixture(scope="module")
def kms() -> Iterator[None]:
    """A key management service and a bucket that is locked, for the deployment to find by its environment."""
    with kms_server() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        make_locked_bucket("anchors")
        yield


@pytest.fixture(scope="module")
def told() -> Iterator[People]:
    """Whom the pipeline of the model tells."""
    with people() as found:
        yield found


@pytest.fixture(scope="module")
def airflow(
    new_airflow: Callable[..., LiveAirflow],
    served: Served,
    kms: None,
    told: People,
    tmp_path_factory: pytest.TempPathFactory,
) -> LiveAirflow:
    """Its key is in a key management service, and a bucket keeps the newest entries of the audit trail."""
    trusted = tmp_path_factory.mktemp("keys") / "trusted"
    trusted.write_text(load_key(KEY).public)
    dags = [REPOSITORY / "tests/fixtures/dags/releasing.py", REPOSITORY / "dags/rollback.py"]
    # A triggerer that is lost is noticed within seconds.
    settings = {
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
        "AIRFLOW__MLOPS__RELEASE_KEY": KEY,
        "AIRFLOW__MLOPS__ANCHOR_BUCKET": BUCKET,
        "AIRFLOW__MLOPS__RELEASE_PUBLIC_KEYS": str(trusted),
        **told.connections,
    }
    users = {"users": ["vera", "otto", "greta"], "roles": {"greta": "viewer"}}
    airflow = new_airflow(with_login=True, **users, dags=dags, settings=settings, prepare=add_notify)
    for dag_id in ("releasing", "releasing_late", "releasing_canary", "releasing_watched", "rollback", "serving"):
        airflow.client.wait_for_dag(dag_id, timeout_seconds=120)
        airflow.client.unpause(dag_id)
    airflow.client.wait_for_dag("events", timeout_seconds=120)  # whose model REST takes it for
    return airflow


@pytest.fixture(scope="module", autouse=True)
def approved(airflow: LiveAirflow) -> str:
    """A run whose version, the first, was put into production, with vera's consent."""
    version = register(airflow)
    run_id = release(airflow, version)
    detail = form(airflow, run_id)
    assert detail["subject"] == "Put version 1 of events into production?"
    for said in (
        "Better than noise.",
        "| ndcg@10 | 0.8123 (0.8000 to 0.8200) |  |",
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
    entries = history(airflow)[:3]
    assert [entry["action"] for entry in entries] == ["register", "approve", "promote"]
    assert entries[1]["why"] == "approved by vera: ship it"
    assert {entry["approver"] for entry in entries[1:]} == {"vera"}
    assert entries[2]["who"] == f"admin by releasing/{approved}/promote"


def test_a_rejected_version_is_archived_and_nothing_failed(airflow: LiveAirflow, approved: str) -> None:
    champion = airflow.aliases()["champion"]
    run_id = release(airflow, register(airflow))
    form(airflow, run_id)
    answer(airflow, "vera", run_id, "Reject", "too many late flights")
    assert airflow.client.wait("releasing", run_id, RUN_SECONDS) == "success"
    states = airflow.states(run_id, "releasing")
    assert (states["approve"], states["promote"]) == ("skipped", "skipped")
    sentence, *_ = explain(airflow.client, "releasing", run_id).sentences
    assert sentence.startswith("approve was skipped, and what follows it: version ")
    assert sentence.endswith(" of events is archived: rejected by vera: too many late flights")
    assert airflow.aliases()["champion"] == champion
    newest = history(airflow)[-1]
    assert (newest["action"], newest["to_stage"]) == ("archive", "archived")
    assert newest["why"] == "rejected by vera: too many late flights"


def test_nobodys_answer_is_a_rejection(airflow: LiveAirflow, approved: str) -> None:
    champion = airflow.aliases()["champion"]
    run_id = release(airflow, register(airflow), "releasing_late")
    assert airflow.client.wait("releasing_late", run_id, RUN_SECONDS) == "success"
    assert airflow.states(run_id, "releasing_late")["promote"] == "skipped"
    assert history(airflow)[-1]["why"].startswith("rejected by nobody within")
    assert airflow.aliases()["champion"] == champion


def client_of(airflow: LiveAirflow, user: str) -> Client:
    return Client(airflow.stack.airflow_url, user, f"the-password-of-{user}")


def test_rollback_is_one_trigger_and_people_and_listeners_hear_of_it(
    airflow: LiveAirflow, told: People, approved: str
) -> None:
    """Broken: taking a bad model back would need somebody who knows MLflow, or servers would keep the bad one."""
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        airflow.client.trigger("rollback", "without_reason", None, {"model": "events", "why": ""})
    first, second = airflow.aliases()["champion"], register(airflow)
    run_id = release(airflow, second)
    form(airflow, run_id)
    answer(airflow, "vera", run_id, "Approve", "better")
    assert airflow.client.wait("releasing", run_id, RUN_SECONDS) == "success"
    assert airflow.aliases()["champion"] == second.version
    otto = client_of(airflow, "otto")
    with pytest.raises(RefusedError) as refused:
        client_of(airflow, "greta").rollback("events", "complaints")
    assert refused.value.status == 403
    with pytest.raises(RefusedError, match=f"version {second.version} of events is in production, not version {first}"):
        otto.rollback("events", "complaints", champion=first)
    with pytest.raises(AssertionError, match="Forbidden"):
        _roll_back_on_page(airflow, "greta", "complaints")
    run_address, key = _roll_back_on_page(airflow, "otto", "complaints")
    run = otto.rollback("events", "complaints", champion=second.version, idempotency_key=key)
    assert quote(run.id, safe="") in run_address, "what is asked twice is done once"
    done = otto.wait(run, RUN_SECONDS)
    assert (done.state, done.kind, done.pipeline, done.user) == ("success", "rollback", None, "otto"), done.failure
    assert airflow.aliases()["champion"] == first
    newest, back = history(airflow)[-1], run.id.partition("@")[2]
    assert (newest["action"], newest["why"], newest["who"]) == (
        "rollback",
        "complaints",
        f"otto by rollback/{back}/rollback",
    )
    assert ModelVersionRef.from_wire(airflow.client.xcom("rollback", back, "rollback")).version == first
    posted = told.hook.wait_for(lambda each: each["run_id"] == back)
    assert (posted["event"], posted["pipeline"]) == ("rolled_back", "events")
    assert posted["message"] == f"Version {first} of events is in production again. otto says: complaints"
    # By Airflow's own form, which checks nothing before.
    airflow.client.trigger("rollback", "late", None, {"model": "events", "why": "x", "champion": second.version})
    late = otto.wait("rollback@late", RUN_SECONDS)
    assert (late.state, [task.try_number for task in late.tasks]) == ("failed", [1])
    assert f"version {first} of events is in production, not version {second.version}" in str(late.failure)
    assert history(airflow)[-1] == newest
    assert otto.ask_stage("events", "champion").is_done
    with pytest.raises(RefusedError, match=f"version {second.version} of events is archived: mlops models history"):
        otto.ask_stage("events", second.version)
    assert {run.id for run in otto.runs(kind="rollback")} == {"rollback@late", f"rollback@{back}"}
    assert "rollback" in otto.logs(run)
    heard: list[str] = []
    deadline = time.monotonic() + RUN_SECONDS
    while heard[-1:] != [first] or second.version not in heard:
        assert time.monotonic() < deadline, heard
        time.sleep(0.5)
        runs = airflow.client.request("GET", "/dags/serving/dagRuns", params={"order_by": "run_after"})["dag_runs"]
        heard = [
            version for run in runs for version in airflow.client.xcom("serving", run["dag_run_id"], "serve") or []
        ]
    # Cleared, it is executed again, and takes nothing more back.
    airflow.client.clear_run("rollback", back)
    time.sleep(1)
    assert airflow.client.wait("rollback", back, RUN_SECONDS) == "success"
    # Cleared, the promotion that was taken back since is not made again, and nobody is told of it.
    airflow.client.clear_task("releasing", run_id, "promote")
    time.sleep(1)
    assert airflow.client.wait("releasing", run_id, RUN_SECONDS) == "success"
    assert airflow.states(run_id, "releasing")["promote"] == "skipped"
    assert airflow.aliases()["champion"] == first
    assert history(airflow)[-1] == newest


def _roll_back_on_page(airflow: LiveAirflow, user: str, why: str) -> tuple[str, str]:
    """
    :return: address of the run that does it, and the key by which the page has asked
    """
    keys: list[str] = []
    by = AirflowClient(airflow.stack.airflow_url, (user, f"the-password-of-{user}"))
    with page_at(airflow, "/dags/events/plugin/mlops-model", by=by) as page:
        page.on("request", lambda request: keys.append(request.headers.get("idempotency-key", "")))
        page.route(re.compile(r"/versions\?limit=\d+$"), _with_newer_versions)
        page.reload()
        page.get_by_role("button", name="Roll back").click()
        page.get_by_label(re.compile("^Why version . is taken back")).fill(why)
        page.get_by_role("button", name="Roll back").click()
        done, refused = page.get_by_role("link", name="It is being taken back"), page.get_by_role("alert")
        done.or_(refused).first.wait_for()
        assert not refused.count(), refused.all_inner_texts()
        keep(page, "rollback_1400_light")
        return str(done.get_attribute("href")), next(filter(None, keys))


def _with_newer_versions(route: Route) -> None:
    """As after thirty nights whose versions were rejected: the page of the newest ones has no champion."""
    newest = route.fetch().json()["versions"][0]
    newer = [newest | {"version": str(number), "stage": "archived"} for number in range(130, 100, -1)]
    route.fulfill(json={"versions": newer, "next": "101"})


def test_a_canary_that_fails_is_taken_back_and_one_that_does_well_is_promoted(
    airflow: LiveAirflow, served: Served
) -> None:
    """Broken: users would meet a bad model before anybody has seen it at work."""
    champion = airflow.aliases()["champion"]
    served.answer = {"samples": 100, "error_rate": 0.9}
    bad = register(airflow)
    run_id = release(airflow, bad, "releasing_canary")
    assert airflow.client.wait("releasing_canary", run_id, RUN_SECONDS) == "failed"
    message = history(airflow)[-1]["why"]
    assert message == "the canary failed: error_rate > 0.5: error_rate 0.9, samples 100"
    assert airflow.aliases()["champion"] == champion
    assert f"/events/{bad.version}" in served.asked
    assert airflow.client.tasks("releasing_canary", run_id)["promote"]["state"] == "upstream_failed"

    served.answer = {"samples": 100, "error_rate": 0.001}
    good = register(airflow)
    run_id = release(airflow, good, "releasing_canary")
    assert airflow.client.wait("releasing_canary", run_id, RUN_SECONDS) == "success"
    assert airflow.aliases()["champion"] == good.version
    assert [entry["action"] for entry in history(airflow)][-3:] == ["register", "canary", "promote"]


def test_the_bucket_knows_what_airflow_was_made_to_forget(airflow: LiveAirflow, approved: str) -> None:
    """Attack: who may change both the store and Airflow's variables cuts off the end of the trail."""
    newest = len(history(airflow))
    assert LockedAnchors(BUCKET).newest("events") == json.loads(airflow.client.variable("mlops_audit.events") or "")
    code, said = mlops(airflow, "audit", "verify", "events", "--user", "admin")
    assert (code, f"up to {newest}" in said) == (0, True), said
    version = register(airflow)
    airflow.client.request("DELETE", "/variables/mlops_audit.events")
    trail = airflow.stack.store / "models/events"
    cut = [path for path in trail.glob("*/0*") if int(path.stem) >= newest]
    kept = {path: path.read_bytes() for path in cut}
    for path in cut:
        path.unlink()
    try:
        code, said = mlops(airflow, "audit", "verify", "events", "--json", "--user", "admin")
        assert (code, f"{newest:012}.json was cut off (the anchor knows it" in said) == (1, True), said
        assert said.startswith("["), "it is JSON"
        run_id = release(airflow, version)
        assert airflow.client.wait("releasing", run_id, RUN_SECONDS) == "failed"
        wait_for(lambda: f"{BUCKET}/events knows it as" in airflow.client.log("releasing", run_id, "approve", 1), "why")
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


@pytest.mark.skipif("CHAOS_ROUNDS" not in os.environ, reason="takes half a minute: make chaos")
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
