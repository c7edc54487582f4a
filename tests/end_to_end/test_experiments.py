"""Experiments in Airflow, as programs and people ask for them: by REST, in the name of somebody with rights."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from httpx_sse import EventSource
from live_airflow import LiveAirflow
from project import REPOSITORY, write_events
from strikes import step_processes
from turns import SEED

from mlops.client import AsyncClient, Client, Curve, Curves, RefusedError, Value
from mlops.contract.code_files import code_digest
from mlops.contract.recipe_bundles import pack
from mlops_provider.api.app import app
from mlops_provider.handed_over import PASSWORD_VARIABLE
from mlops_provider.links import report_url
from mlops_provider.local.client import AirflowClient
from mlops_provider.why import explain

SECONDS = 600
DELIVERIES = "data/deliveries"
SHORT = {"pipeline": "events", "as_of": "2024-01-10", "settings": {"train.epochs": 1}}


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow]) -> LiveAirflow:
    found = new_airflow(
        with_login=True, users=["ana", "vera"], roles={"vera": "viewer"},
        settings={"AIRFLOW__MLOPS__EXPERIMENT_SOURCES": DELIVERIES, "AIRFLOW__MLOPS__EXPERIMENT_CODE": "always"},
    )  # fmt: skip
    found.client.wait_for_dag("events.experiments")
    return found


class Person:
    """Who asks, by a token of their own."""

    def __init__(self, airflow: LiveAirflow, name: str, password: str = "") -> None:
        login = name, password or f"the-password-of-{name}"
        token = AirflowClient(airflow.stack.airflow_url, login).authorization
        self.http = httpx.Client(
            base_url=f"{airflow.stack.airflow_url}/mlops/api/v1", headers={"Authorization": token}, timeout=300
        )

    def submit(self, body: Mapping[str, Any], **headers: str) -> dict[str, Any]:
        answer = self.http.post("/runs", json=body, headers=headers)
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())

    def run(self, run_id: str) -> dict[str, Any]:
        return dict(self.http.get(f"/runs/{run_id}").raise_for_status().json())

    def wait(self, run_id: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while not until(found := self.run(run_id)):
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        return found

    def ended(self, run_id: str) -> dict[str, Any]:
        return self.wait(run_id, lambda run: run["state"] in ("success", "failed"))


@pytest.fixture(scope="module")
def ana(airflow: LiveAirflow) -> Person:
    return Person(airflow, "ana")


@pytest.fixture(scope="module")
def tried(ana: Person) -> dict[str, Any]:
    """A run that has ended."""
    return ana.ended(ana.submit(SHORT)["id"])


def test_an_experiment_runs_to_its_verdict_and_registers_nothing(
    airflow: LiveAirflow, ana: Person, tried: dict[str, Any]
) -> None:
    assert (tried["state"], tried["failure"]) == ("success", None), ana.http.get(f"/runs/{tried['id']}/logs").text
    assert (tried["kind"], tried["pipeline"], tried["user"]) == ("experiment", "events", "ana")
    assert tried["asked"] == {"as_of": "2024-01-10", "settings": {"train.epochs": 1}}
    assert [each["step"] for each in tried["steps"]] == ["ingest", "validate", "features", "train", "evaluate"]
    assert all(each["place"].startswith("experiments/ana/events/") for each in tried["steps"])
    result = tried["result"]
    assert result["experiment"] == "experiments/ana/events"
    assert result["interval"] == ["2024-01-09T00:00:00Z", "2024-01-10T00:00:00Z"]
    (training,) = result["trainings"]
    assert training["epoch"] == 1
    assert "candidate.ndcg@10" in training["metrics"]
    assert training["passed"] is True
    assert airflow.model_versions() == []
    # Its report and log, for people.
    assert (airflow.stack.store / tried["steps"][2]["place"] / "used").exists(), "the training has taken it"
    (report,) = (airflow.stack.store / tried["steps"][-1]["place"]).glob("report.*.html")
    address = airflow.stack.airflow_url + report_url(str(report.relative_to(airflow.stack.store)))
    assert training["report"] == address
    page = ana.http.get(address)
    assert page.status_code == 200
    log = ana.http.get(f"/runs/{tried['id']}/logs")
    assert log.headers["content-type"].startswith("text/plain")
    assert "would be registered: " in log.text
    tags = {tag["key"]: tag["value"] for tag in _training_run(airflow, training["tracking"])["data"]["tags"]}
    assert tags["mlops.airflow.dag_id"] == "events.experiments"
    assert f"{tags['mlops.airflow.dag_id']}@{tags['mlops.airflow.run_id']}" == tried["id"]
    assert explain(airflow.client, *tried["id"].split("@")).state == "success"


def _training_run(airflow: LiveAirflow, address: str) -> dict[str, Any]:
    run_id = address.rpartition("/")[2]
    url = f"{airflow.stack.mlflow_url}/api/2.0/mlflow/runs/get"
    return dict(httpx.get(url, params={"run_id": run_id}).raise_for_status().json()["run"])


def test_a_failure_names_the_report_in_airflow(airflow: LiveAirflow, ana: Person) -> None:
    """Broken: it would name a file of a machine that who asks may never see."""
    write_events(airflow.home / "data/events.csv", rows_of_last_day=40)
    try:
        run = ana.ended(ana.submit({"pipeline": "events", "as_of": "2024-01-15", "name": "short"})["id"])
    finally:
        write_events(airflow.home / "data/events.csv")
    assert run["failure"].startswith("validate: ")
    (address,) = re.findall(r"http://\S+\.html", run["failure"])
    assert ana.http.get(address).status_code == 200


def test_a_task_that_is_none_is_told_with_those_that_are(ana: Person, tried: dict[str, Any]) -> None:
    logs = f"/runs/{tried['id']}/logs"
    for params, said in (
        ({"task": "train"}, f"task 'train' of {tried['id']}: its tasks are experiment"),
        ({"map_index": "3"}, f"task 'experiment' of {tried['id']}: map_index 3: it has -1 to -1"),
        ({"try_number": "9"}, f"experiment of {tried['id']} has had 1 tries so far"),
    ):
        answer = ana.http.get(logs, params=params)
        assert (answer.status_code, answer.json()["detail"]) == (404, said)


def test_what_was_tried_before_is_found(ana: Person, tried: dict[str, Any]) -> None:
    """Broken: the hundred small runs of a day would each take a snapshot of their own."""
    again = ana.ended(ana.submit(SHORT | {"seeds": 2})["id"])
    assert again["state"] == "success", again["failure"]
    assert [each["place"] for each in again["steps"]][:5] == [each["place"] for each in tried["steps"]]
    assert [each["seed"] for each in again["result"]["trainings"]] == [0, 1]


def test_a_request_that_is_sent_twice_counts_once(ana: Person, tried: dict[str, Any]) -> None:
    first = ana.http.post("/runs", json=SHORT | {"until": "ingest"}, headers={"Idempotency-Key": "one"})
    second = ana.http.post("/runs", json=SHORT | {"until": "ingest"}, headers={"Idempotency-Key": "one"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert first.headers["Location"] == f"runs/{first.json()['id']}"
    other = ana.http.post("/runs", json=SHORT | {"until": "validate"}, headers={"Idempotency-Key": "one"})
    assert (other.status_code, other.headers["content-type"]) == (422, "application/problem+json")
    assert "the Idempotency-Key was given with another request" in other.json()["detail"]
    assert ana.http.post("/runs", json=SHORT, headers={"Idempotency-Key": ""}).status_code == 422


def test_runs_are_listed_by_pages_and_told_apart(airflow: LiveAirflow, ana: Person, tried: dict[str, Any]) -> None:
    ana.ended(ana.submit(SHORT | {"until": "ingest"})["id"])
    page = ana.http.get("/runs", params={"limit": 1, "user": "ana"}).json()
    found = [*page["runs"]]
    while page["next"]:
        page = ana.http.get("/runs", params={"limit": 1, "user": "ana", "cursor": page["next"]}).json()
        found += page["runs"]
    assert tried["id"] in {run["id"] for run in found}
    assert {run["kind"] for run in found} == {"experiment"}
    assert ana.http.get("/runs", params={"user": "an"}).json()["runs"] == []
    assert ana.http.get("/runs", params={"pipeline": "events", "kind": "night"}).json()["runs"] == []
    assert ana.http.get("/runs", params={"kind": "night"}).status_code == 422
    whole = ana.http.get(f"/runs/{tried['id']}")
    for known in (whole.headers["ETag"], f'"other", W/{whole.headers["ETag"]}', "*"):
        same = ana.http.get(f"/runs/{tried['id']}", headers={"If-None-Match": known})
        assert (same.status_code, same.content) == (304, b""), known


def test_a_cancelled_run_leaves_nothing_and_the_same_request_goes_on(airflow: LiveAirflow, ana: Person) -> None:
    """Broken: it would hold its processor, or its GPU, until somebody looks."""
    body = SHORT | {"name": "held"}
    airflow.hold("train", 600)
    try:
        run_id = ana.submit(body)["id"]
        ana.wait(run_id, lambda run: len(run["steps"]) == 3)
        deadline = time.monotonic() + SECONDS
        while "pausing in train" not in ana.http.get(f"/runs/{run_id}/logs").text:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert _steps(airflow)
        assert ana.http.delete(f"/runs/{run_id}").status_code == 202
        while _steps(airflow):
            assert time.monotonic() < deadline, _steps(airflow)
            time.sleep(0.2)
    finally:
        airflow.hold("train", 0)
    cancelled = ana.run(run_id)
    assert (cancelled["state"], cancelled["note"]) == ("failed", "cancelled by ana")
    assert ana.wait(run_id, lambda run: run["failure"] is not None)["failure"] == "cancelled by ana"
    assert explain(airflow.client, *run_id.split("@")).sentences == ["It was cancelled by ana."]
    noted = airflow.client.every("/eventLogs", "event_logs", run_id=run_id.partition("@")[2])
    assert {(each["event"], each["owner"]) for each in noted} >= {("trigger_dag_run", "ana"), ("patch_dag_run", "ana")}
    over = ana.http.delete(f"/runs/{run_id}")
    assert (over.status_code, over.json()["detail"]) == (409, f"{run_id} has ended already, as failed")
    again = ana.ended(ana.submit(body)["id"])
    assert again["state"] == "success", again["failure"]
    assert again["steps"][:3] == ana.run(run_id)["steps"]


def test_users_take_turns_where_runs_wait(airflow: LiveAirflow, ana: Person) -> None:
    """Broken: who asks for one run would wait for the hundred of a colleague."""
    admin = Person(airflow, "admin", str(airflow.login[1]) if airflow.login else "")
    airflow.client.request("PATCH", "/dags/events.experiments", json={"is_paused": True})
    short = SHORT | {"until": "ingest"}
    try:
        first = [admin.submit(short)["id"] for _ in range(3)]
        patient = ana.submit(short | {"priority": "low"})["id"]
        second = [ana.submit(short)["id"] for _ in range(2)]
        line = {"state": "queued", "order_by": "run_after"}
        runs = airflow.client.request("GET", "/dags/events.experiments/dagRuns", params=line)["dag_runs"]
    finally:
        airflow.client.request("PATCH", "/dags/events.experiments", json={"is_paused": False})
    wanted = [first[0], second[0], first[1], second[1], first[2], patient]
    assert [f"events.experiments@{run['dag_run_id']}" for run in runs] == wanted
    assert {ana.ended(run_id)["state"] for run_id in wanted} == {"success"}


def test_a_terminal_submits_follows_and_cancels(airflow: LiveAirflow, tried: dict[str, Any], tmp_path: Path) -> None:
    asked = ["events", "--as-of", "2024-01-10", "--set", "train.epochs=1"]
    done = mlops(airflow, "submit", *asked, "--follow", "--json")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert (run["state"], run["steps"]) == ("success", tried["steps"])
    assert "would be registered: " in done.stderr
    logged = mlops(airflow, "logs", run["id"])
    assert (logged.returncode, "would be registered: " in logged.stdout) == (0, True), logged.stderr
    curves = mlops(airflow, "metrics", run["id"], "--follow", "--metric", "validation_ndcg_at_10")
    assert (curves.returncode, curves.stderr) == (0, "")
    assert re.search(r"^step 1: .*validation_ndcg_at_10 0\.\d+", curves.stdout, re.MULTILINE), curves.stdout
    assert re.search(r"validation_ndcg_at_10 +│ +1 │.*▁", curves.stdout), curves.stdout
    spec = tmp_path / "events.pipeline.yaml"
    spec.write_text(re.sub(r"epochs: \d+", "epochs: 1", (airflow.home / "dags/events.pipeline.yaml").read_text()))
    own = mlops(airflow, "submit", str(spec), *asked[1:3], "--priority", "low", "--follow", "--json")
    assert own.returncode == 0, own.stderr
    whole = json.loads(own.stdout)
    assert whole["asked"] == tried["asked"] | {"priority": "low"}
    assert whole["steps"] == tried["steps"]
    listed = mlops(airflow, "submitted", "events", "--by", "ana", "--state", "success", "--watch", "--json")
    assert listed.returncode == 0, listed.stderr
    assert [each["id"] for each in json.loads(listed.stdout)][:2] == [whole["id"], run["id"]]
    shown = mlops(airflow, "submitted", "events", "--most", "1").stdout
    assert " success " in shown, shown
    none = mlops(airflow, "submitted", "events", "--by", "nobody")
    assert (none.returncode, none.stdout.startswith("there are none of events by nobody; ")) == (0, True), none.stdout
    failed = mlops(airflow, "submit", *asked, "--set", "train.model=include.events.model:build", "--follow")
    assert failed.returncode == 1
    assert "module 'include.events.model' has no 'build'; did you mean 'build_model'?" in failed.stdout.splitlines()[-1]
    wrong = mlops(airflow, "submit", "events", "--set", "train.epoch=1")
    assert (wrong.returncode, wrong.stdout.count("\n")) == (1, 1), wrong.stdout
    assert "settings train.epoch=1: unknown key 'train.epoch'; did you mean 'epochs'?" in wrong.stdout
    airflow.hold("features", 600)
    try:
        begun = mlops(airflow, "submit", *asked, "--name", "given_up", "--json")
        run_id = json.loads(begun.stdout)["id"]
        ended = mlops(airflow, "cancel", run_id, "--json")
        assert json.loads(ended.stdout)["id"] == run_id
        assert f"{run_id} is being ended; what it has committed stays\n" in ended.stderr
        again = mlops(airflow, "cancel", run_id)
        assert (again.returncode, again.stdout) == (1, f"{run_id} has ended already, as failed\n")
    finally:
        airflow.hold("features", 0)


def test_code_that_only_she_has_runs_in_airflow(airflow: LiveAirflow, tried: dict[str, Any], tmp_path: Path) -> None:
    """Broken: each idea would cost a deployment, or the result would say that it is of the deployed code."""
    deployed = airflow.home / "include/events"
    mine = tmp_path / "include/events"
    shutil.copytree(deployed, mine, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(airflow.home / "dags", tmp_path / "dags")
    model = (mine / "model.py").read_text().replace("return Scorer(", 'print("the idea of ana")\n    return Scorer(')
    (mine / "model.py").write_text(model)
    before = code_digest([deployed])
    asked = ["events", "--as-of", "2024-01-10", "--set", "train.epochs=1", "--code", "--follow", "--json"]
    done = mlops(airflow, "submit", *asked, home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads(done.stdout)
    assert "the idea of ana" in done.stderr
    sha256 = hashlib.sha256(pack(mine)).hexdigest()
    assert run["asked"] == tried["asked"] | {"recipes": {"include/events": sha256}}
    places = [each["place"] for each in run["steps"]]
    assert all(place.startswith("experiments/ana/events/") for place in places)
    assert not set(places) & {each["place"] for each in tried["steps"]}, "other code makes other work"
    for place in places:
        ref = json.loads((airflow.stack.store / place / "ref.json").read_text())
        assert ref["artifacts"]["recipe_events"]["sha256"] == sha256
    assert code_digest([deployed]) == before
    again = mlops(airflow, "submit", *asked, home=tmp_path)
    assert [each["place"] for each in json.loads(again.stdout)["steps"]] == places, "it is found"
    assert "the idea of ana" not in again.stderr
    vera = Client(airflow.stack.airflow_url, "vera", "the-password-of-vera")
    with vera, pytest.raises(RefusedError, match="you may not trigger events.experiments"):
        vera.submit("events", as_of="2024-01-10", recipes=[mine])
    assert not (airflow.stack.store / "experiments/vera").exists()
    (mine / "model.py").write_text("from ..other import x\n")
    wrong = mlops(airflow, "submit", *asked, home=tmp_path)
    assert (wrong.returncode, "model.py:1: imports ..other" in wrong.stdout + wrong.stderr) == (1, True)


def mlops(
    airflow: LiveAirflow, word: str, *arguments: str, home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a terminal that knows Airflow's address only."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "mlops_provider.cli", word, *arguments),
            *("--airflow-url", airflow.stack.airflow_url, "--user", "ana", "--home", str(home or airflow.home)),
        ],
        env={
            **os.environ,
            "PYTHONPATH": f"{REPOSITORY}/plugins:{REPOSITORY}/training",
            "AIRFLOW_HOME": str(airflow.home),
            PASSWORD_VARIABLE: "the-password-of-ana",
        },
        capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip


def _steps(airflow: LiveAirflow) -> list[list[str]]:
    """The processes of steps in this deployment."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if process.info["cwd"] == str(airflow.home) and any("mlops.steps" in word for word in words):
            found.append(words)
    return found


def test_curves_come_live_and_go_on_where_they_were_cut(airflow: LiveAirflow, ana: Person) -> None:
    """Broken: who watches a long training would miss what came while the connection was away, or see it twice."""
    run_id = ana.submit(SHORT | {"name": "watched", "settings": {"train.epochs": 6}})["id"]
    with ThreadPoolExecutor() as several:
        cut, whole = several.submit(watched, ana, run_id, most=1), several.submit(watched, ana, run_id)
        first, rest = cut.result(), watched(ana, run_id, after=cut.result()[-1]["id"])
        everything = whole.result()
    assert everything[-1] == {"kind": "end", "id": None, "data": {"state": "success"}}
    assert sorted(points(first) + points(rest)) == sorted(points(everything)), "each once"
    losses = [step for metric, step in points(everything) if metric == "validation_ndcg_at_10"]
    assert losses == [1, 2, 3, 4, 5, 6]
    curves = ana.http.get(f"/runs/{run_id}/metrics").raise_for_status().json()["curves"]
    assert sorted((curve["metric"], step) for curve in curves for step in curve["steps"]) == sorted(points(everything))
    (one,) = ana.http.get(f"/runs/{run_id}/metrics", params={"metric": "validation_ndcg_at_10"}).json()["curves"]
    assert (one["steps"], len(one["values"]), len(one["at"])) == (losses, 6, 6)
    # A training that was found done is another run's in MLflow.
    again = ana.ended(ana.submit(SHORT | {"name": "watched", "settings": {"train.epochs": 6}})["id"])
    assert ana.http.get(f"/runs/{again['id']}/metrics").json()["curves"] == curves
    wrong = ana.http.get(f"/runs/{run_id}/metrics/stream", headers={"Last-Event-ID": "7"})
    assert (wrong.status_code, wrong.headers["content-type"]) == (422, "application/problem+json"), wrong.text
    assert ana.http.get("/runs/events.experiments@none/metrics/stream").status_code == 404


def test_an_experiment_starts_from_a_snapshot_by_its_version(
    airflow: LiveAirflow, ana: Person, tried: dict[str, Any]
) -> None:
    """Broken: what was tried out on a snapshot could not be tried out on the same one tomorrow."""
    version = _version(airflow, tried)
    run = ana.ended(ana.submit({"pipeline": "events", "dataset": version[:8], "settings": {"train.epochs": 2}})["id"])
    assert run["state"] == "success", run["failure"]
    assert run["steps"][:3] == tried["steps"][:3], "the snapshot, and what was made of it"
    assert run["result"]["interval"] == tried["result"]["interval"]


def test_a_training_is_gone_on_with_from_its_checkpoints(airflow: LiveAirflow, ana: Person) -> None:
    """Broken: who wants more epochs, or to go back, begins from the start, or gets another model."""
    long = ana.ended(ana.submit(SHORT | {"name": "long", "settings": {"train.epochs": 4}})["id"])
    assert long["state"] == "success", long["failure"]
    (whole,) = long["result"]["trainings"]
    listed = ana.http.get(f"/runs/{long['id']}/checkpoints").raise_for_status().json()["checkpoints"]
    ends = {each["epoch"]: each for each in listed if each["is_end_of_epoch"]}
    assert 4 in ends
    early = min(ends)  # of short epochs some end while the save before is being written
    assert {each["training"] for each in listed} == {whole["checkpoint"]}
    assert ends[whole["epoch"]]["validation"] == pytest.approx(
        {name: value for name, value in whole["validation"].items() if name != "train_loss"}
    )
    with Client(airflow.stack.airflow_url, "ana", "the-password-of-ana") as client:
        assert [each.id for each in client.checkpoints(long["id"])] == [each["id"] for each in listed]
        told = [each.kind for each in client.events(long["id"])]
        assert [kind for kind in told if kind != "checkpoint"] == ["task_started", "started", "ended", "task_ended"]
        assert told.count("checkpoint") == len(listed)
        same = client.restore(client.checkpoints(long["id"])[-1], name="same")
    further = ana.http.post(
        f"/training-runs/{long['id']}/checkpoints/{early}/restore",
        json={"settings": {"train.epochs": 6}},
        headers={"Idempotency-Key": "further"},
    )
    assert further.status_code == 201, further.text
    assert further.json()["asked"]["name"] == "long"
    again = ana.http.post(
        f"/training-runs/{long['id']}/checkpoints/{early}/restore",
        json={"settings": {"train.epochs": 6}},
        headers={"Idempotency-Key": "further"},
    )
    assert (again.status_code, again.json()["id"]) == (200, further.json()["id"])
    for run_id, epochs in ((same.id, 4), (further.json()["id"], 6)):
        run = ana.ended(run_id)
        assert run["state"] == "success", run["failure"]
        (training,) = run["result"]["trainings"]
        events = ana.http.get(f"/runs/{run_id}/events").raise_for_status().json()["events"]
        assert [each["kind"] for each in events].count("resumed") == 1
        step = next(each for each in run["steps"] if each["step"] == "train")
        history = _ref(airflow, step)["artifacts"]["history"]["key"]
        curve = json.loads((airflow.stack.store / history).read_text())
        assert [each["epoch"] for each in curve] == [*range(1, epochs + 1)]
        if epochs == 4:
            assert training["validation"] == whole["validation"]
            of_whole = next(each for each in long["steps"] if each["step"] == "train")
            digests = [_ref(airflow, each)["artifacts"]["weights"]["sha256"] for each in (step, of_whole)]
            assert digests[0] == digests[1]
    refused = ana.http.post(f"/checkpoints/{listed[0]['id']}/restore", json={"settings": {"train.seed": 5}})
    assert (refused.status_code, "seed is 5 here and was 0 there" in refused.text) == (422, True), refused.text


def test_a_training_that_runs_tells_its_checkpoints(ana: Person) -> None:
    """Broken: what goes wrong would have to be waited for, before somebody can go back."""
    run_id = ana.submit(SHORT | {"name": "running", "settings": {"train.epochs": 2000}})["id"]

    def checkpoints() -> list[Any]:
        found: list[Any] = ana.http.get(f"/runs/{run_id}/checkpoints").raise_for_status().json()["checkpoints"]
        return found

    try:
        ana.wait(run_id, lambda run: bool(checkpoints()) or run["state"] in ("success", "failed"))
        assert ana.run(run_id)["state"] == "running"
        chosen = next(each for each in checkpoints() if each["is_end_of_epoch"])
        body = {"settings": {"train.epochs": chosen["epoch"]}, "name": "gone_back"}
        answer = ana.http.post(f"/checkpoints/{chosen['id']}/restore", json=body)
        # One that was replaced meanwhile is told with those that there are.
        assert answer.status_code in (201, 404), answer.text
    finally:
        ana.http.delete(f"/runs/{run_id}").raise_for_status()
    if answer.status_code == 201:
        ended = ana.ended(answer.json()["id"])
        assert ended["state"] == "success" or "has no checkpoint of step" in ended["failure"], ended["failure"]


def test_requests_of_another_platform_are_runs(airflow: LiveAirflow, ana: Person, tried: dict[str, Any]) -> None:
    """Broken: programs that speak so already would have to be written anew."""
    delivered = airflow.home / DELIVERIES / "2024"
    delivered.mkdir(parents=True)
    write_events(delivered / "events.csv", first_day=6)
    body = {
        "pipeline_id": "events",
        "config": {
            "data_source": f"{DELIVERIES}/2024/",
            "model_type": "lightgbm",
            "hyperparams": {"lr": 0.01, "depth": 8},
            "resources": {"gpus": 4, "memory": "64Gi"},
        },
    }
    asked = ana.http.post("/pipelines/runs", json=body, headers={"Idempotency-Key": "as written"})
    assert asked.status_code == 201, asked.text
    started = asked.json()
    again = ana.http.post("/pipelines/runs", json=body, headers={"Idempotency-Key": "as written"})
    assert (again.status_code, again.json()["run_id"]) == (200, started["run_id"])
    assert str(asked.url.join(asked.headers["Location"])).endswith(f"/mlops/api/v1/runs/{started['run_id']}")
    run = ana.ended(started["run_id"])
    assert run["state"] == "success", run["failure"]
    assert run["result"]["interval"] == ["2024-01-19T00:00:00Z", "2024-01-20T00:00:00Z"], "the pipeline's end_date"
    (source,) = _artifact(airflow, run["steps"][0], "manifest")["sources"].values()
    assert source["position"]["path"] == f"{DELIVERIES}/2024/events.csv"
    told = _artifact(airflow, run["steps"][3], "input")["config"]
    assert (told["learner"], told["model"], told["processes"]) == ("lightgbm", None, 1)
    assert (told["learner_settings"]["learning_rate"], told["learner_settings"]["max_depth"]) == (0.01, 8)
    by_experiment = f"/experiments/{started['experiment_id']}/runs"
    for name in (started["run_id"], started["run_id"].partition("@")[2]):
        assert ana.http.get(f"{by_experiment}/{name}").json() == run
    for path in (
        f"{by_experiment}/none",
        f"{by_experiment}/digits@x",
        "/experiments/../runs/x",
        "/experiments/x/runs/y",
    ):
        assert ana.http.get(path).status_code == 404, path

    training = {
        "model": {"type": "torch"},
        "dataset": {"kind": "dataset", "name": "events", "version": _version(airflow, tried), "num_rows": 700},
        "hyperparameters": {"epochs": 2, "lr": 0.02, "batch_size": 8},
        "resources": {"cpu": 1},
    }
    asked = ana.http.post("/training-runs", json=training)
    assert asked.status_code == 201, asked.text
    run_id = asked.json()["run_id"]
    with ana.http.stream("GET", f"/training-runs/{run_id}/metrics", timeout=SECONDS) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
    run = ana.ended(run_id)
    assert run["state"] == "success", run["failure"]
    assert run["steps"][:3] == tried["steps"][:3]
    wanted = {"train.epochs": 2, "train.learning_rate": 0.02, "train.global_batch": 8, "pods.train.cpu": 1}
    assert run["asked"]["settings"] == wanted


def test_a_search_tells_its_trials_and_what_it_has_found(airflow: LiveAirflow, ana: Person) -> None:
    asked = {
        "pipeline": "events", "as_of": "2024-01-10", "settings": {"train.epochs": 1},
        "space": {"learning_rate": {"low": 0.01, "high": 0.1, "log": True}},
        "trials": 2, "parallel": 2, "sampler": "random",
    }  # fmt: skip
    answer = ana.http.post("/studies", json=asked)
    assert answer.status_code == 201, answer.text
    study_id = answer.json()["id"]
    assert answer.headers["Location"] == f"studies/{study_id}"
    run = ana.ended(study_id)
    assert run["state"] == "success", run["failure"]
    trials = ana.http.get(f"/studies/{study_id}/trials").raise_for_status().json()["trials"]
    assert [(trial["number"], trial["state"]) for trial in trials] == [(0, "complete"), (1, "complete")]
    assert all(0.01 <= trial["parameters"]["learning_rate"] <= 0.1 for trial in trials)
    study = ana.http.get(f"/studies/{study_id}").json()
    assert study["trials"] == {"complete": 2, "pruned": 0, "failed": 0, "not begun": 0}
    best = max(trials, key=lambda trial: (trial["value"], -trial["number"]))
    found = (study["best_trial"], study["best_value"], study["best_parameters"])
    assert found == (best["number"], best["value"], best["parameters"])
    with Client(airflow.stack.airflow_url, "ana", "the-password-of-ana") as client:
        same = client.search(
            "events", asked["space"], trials=2, parallel=2, sampler="random", as_of="2024-01-10",
            settings={"train.epochs": 1},
        )  # fmt: skip
        assert client.study(client.wait(same)).best_value == study["best_value"], "the trials are found"
        assert [trial.model_dump() for trial in client.trials(study_id)] == trials
        assert client.study(study_id).airflow == client.run(study_id).airflow
    # As other platforms ask for it.
    body = {
        "pipeline": "events", "search_space": {"lr": {"type": "loguniform", "min": 0.01, "max": 0.1}}, "n_trials": 2,
        "objective": {"metric": "ndcg@10", "direction": "maximize"}, "sampler": "random",
    }  # fmt: skip
    again = ana.http.post("/hpo/studies", json=body)
    assert again.status_code == 201, again.text
    assert ana.http.get(str(again.url.join(again.headers["Location"]))).status_code == 200
    wanted = {
        "tune.space": {"learning_rate": asked["space"]["learning_rate"]},
        "tune.sampler": "random",
        "tune.trials": 2,
    }
    assert again.json()["asked"]["settings"] == wanted | {"train.metric": "ndcg@10"}
    ana.http.delete(f"/runs/{again.json()['run_id']}")
    for path in ("/studies/events.experiments@none", "/studies/events@x/trials"):
        assert ana.http.get(path).status_code == 404, path


SEARCH = {
    "pipeline": "events", "as_of": "2024-01-10", "settings": {"train.epochs": 1}, "name": "budget",
    "space": {"learning_rate": {"low": 0.01, "high": 0.1, "log": True}}, "sampler": "random", "parallel": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def stopped(airflow: LiveAirflow, ana: Person) -> dict[str, Any]:
    """A search that lost its first trial, was given many more than two, and then stopped: its study, with its id."""
    airflow.client.request("PATCH", "/dags/events.experiments", json={"is_paused": True})
    airflow.hold("train", 600)
    try:
        study_id = ana.http.post("/studies", json=SEARCH | {"trials": 2}).json()["id"]
        answer = ana.http.post(f"/studies/{study_id}/budget", json={"trials": 500})
        assert answer.status_code == 202, answer.text
    finally:
        airflow.client.request("PATCH", "/dags/events.experiments", json={"is_paused": False})

    def trials() -> list[Any]:
        return list(ana.http.get(f"/studies/{study_id}/trials").raise_for_status().json()["trials"])

    deadline = time.monotonic() + SECONDS
    try:
        while "trial 0 | pausing in train" not in ana.http.get(f"/runs/{study_id}/logs").text:
            assert time.monotonic() < deadline, ana.run(study_id)
            time.sleep(0.2)
    finally:
        airflow.hold("train", 0)
    for process in step_processes(airflow, "trial"):
        process.kill()
    while len(trials()) < 3:
        assert time.monotonic() < deadline, ana.run(study_id)
        time.sleep(0.2)
    answer = ana.http.post(f"/studies/{study_id}/stop")
    assert answer.status_code == 202, answer.text
    run = ana.ended(study_id)
    assert run["state"] == "success", run["failure"]
    assert run["note"] == "search: begins no more trials, 500 trials at most, by ana"
    log = ana.http.get(f"/runs/{study_id}/logs").text
    assert (
        "trial 0 | trial 0 ended without a result: killed by SIGKILL; what is committed stays; it is tried again" in log
    )
    study = ana.http.get(f"/studies/{study_id}").json()
    assert [trial["number"] for trial in trials()] == list(range(study["trials"]["complete"])), "none is lacking"
    return dict(study)


def test_a_search_that_runs_may_cost_more_and_is_stopped(ana: Person, stopped: dict[str, Any]) -> None:
    """Broken: a search that has found enough must be thrown away, or one that has not must begin anew."""
    states = dict(stopped["trials"])
    assert 3 <= states.pop("complete") < 500
    assert states == {"pruned": 0, "failed": 0, "not begun": 0}, "what it concludes is a search of so many trials"
    assert stopped["best_parameters"].keys() == {"learning_rate"}
    for path in ("budget", "stop"):
        answer = ana.http.post(f"/studies/{stopped['id']}/{path}", json={"trials": 9})
        assert answer.status_code == 409, answer.text
        assert "has ended already, as success: search again, and its trials are found" in answer.json()["detail"]


def test_a_search_that_is_stopped_before_it_begins_keeps_the_trials_that_there_are(
    airflow: LiveAirflow, ana: Person, stopped: dict[str, Any]
) -> None:
    """Broken: the next try of a search that was stopped forgets what the first one has found."""
    before = stopped["trials"]["complete"]
    viewer = Person(airflow, "vera")
    airflow.client.request("PATCH", "/dags/events.experiments", json={"is_paused": True})
    try:
        study_id = ana.http.post("/studies", json=SEARCH | {"trials": 2}).json()["id"]
        assert viewer.http.post(f"/studies/{study_id}/stop").status_code == 403
        assert ana.run(study_id)["note"] is None
        bad = ana.http.post(f"/studies/{study_id}/budget", json={})
        assert (bad.status_code, "say trials, hours or gpu_hours" in bad.json()["detail"]) == (422, True), bad.text
        for odd in ({"trials": "5"}, {"trials": True}, {"hours": "1"}, {"trials": 1025}, {"gpu_hours": 0}, {"more": 1}):
            assert ana.http.post(f"/studies/{study_id}/budget", json=odd).status_code == 422, odd
        with Client(airflow.stack.airflow_url, "ana", "the-password-of-ana") as client:
            assert client.change_budget(study_id, trials=400, hours=3).state == "queued"
            client.stop_search(study_id)
    finally:
        airflow.client.request("PATCH", "/dags/events.experiments", json={"is_paused": False})
    run = ana.ended(study_id)
    assert run["state"] == "success", run["failure"]
    assert run["note"] == "search: begins no more trials, 400 trials at most, 3 h, by ana"
    study = ana.http.get(f"/studies/{study_id}").json()
    assert study["trials"] == {"complete": before, "pruned": 0, "failed": 0, "not begun": 0}
    assert study["best_value"] == stopped["best_value"]


def test_a_run_without_a_search_is_no_study(ana: Person) -> None:
    run_id = ana.submit(SHORT | {"until": "ingest"})["id"]
    answer = ana.http.get(f"/studies/{run_id}")
    assert (answer.status_code, answer.json()["detail"]) == (
        404, f"there is no study '{run_id}': an id is that of a run which searches, see POST /studies"
    )  # fmt: skip
    ana.ended(run_id)


def _version(airflow: LiveAirflow, run: dict[str, Any]) -> str:
    """Of the snapshot that a run has taken."""
    return str(_ref(airflow, run["steps"][0])["version"])


def _artifact(airflow: LiveAirflow, step: dict[str, Any], name: str) -> dict[str, Any]:
    key = _ref(airflow, step)["artifacts"][name]["key"]
    return dict(json.loads((airflow.stack.store / key).read_text()))


def _ref(airflow: LiveAirflow, step: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads((airflow.stack.store / step["place"] / "ref.json").read_text()))


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("/pipelines/runs", {"pipeline_id": "event"}, 404, "did you mean events?"),
        (
            "/pipelines/runs",
            {"pipeline_id": "events", "config": {"data_source": "s3://others/"}},
            422,
            "s3://others/ev",
        ),
        ("/pipelines/runs", {"pipeline_id": "events", "config": {"model_type": "forest"}}, 422, "forest"),
        (
            "/pipelines/runs",
            {"pipeline_id": "events", "config": {"model_type": "os:system"}},
            422,
            "runs code of recipes only",
        ),
        (
            "/pipelines/runs",
            {"pipeline_id": "events", "config": {"hyperparams": {"depth": 8}}},
            422,
            "hyperparams.depth",
        ),
        (
            "/pipelines/runs",
            {"pipeline_id": "events", "config": {"hyperparams": {"lr": -1}}},
            422,
            "must be > 0, got -1",
        ),
        (
            "/pipelines/runs",
            {"pipeline_id": "events", "config": {"resources": {"tpus": 1}}},
            422,
            "config.resources.tpus",
        ),
        (
            "/pipelines/runs",
            {"pipeline_id": "events", "config": {"resources": {"memory": "lots"}}},
            422,
            "such as 500m",
        ),
        ("/studies", {"pipeline": "events", "space": {}}, 422, "space must have at least 1 item, has 0"),
        (
            "/studies",
            {"pipeline": "events", "space": {"epochs": {"choices": [1]}}, "trials": 3, "settings": {"tune.trials": 5}},
            422,
            "settings tune.trials: trials says it already; keep one of the two",
        ),
        (
            "/studies",
            {"pipeline": "events", "space": {"lr": {"low": 1, "high": 2}}},
            422,
            "tune.space.lr must be a",
        ),
        ("/studies", {"pipeline": "events", "space": {"epochs": {"low": 2, "high": 1}}}, 422, "low must be < high"),
        (
            "/hpo/studies",
            {"pipeline": "events", "search_space": {"depth": {"choices": [1]}}},
            422,
            "search_space.depth",
        ),
        (
            "/hpo/studies",
            {
                "pipeline": "events",
                "search_space": {"lr": {"choices": [0.1]}},
                "objective": {"metric": "ndcg@10", "direction": "minimize"},
            },
            422,
            "objective.direction minimize: of ndcg@10 it is maximize; leave it out",
        ),
        ("/training-runs", {}, 422, "model.pipeline: name the pipeline"),
        ("/training-runs", {"dataset": "events"}, 422, "dataset.version"),
        ("/training-runs", {"model": {"pipeline": "digits"}, "dataset": "events@abcdef"}, 422, "dataset.name events"),
    ],
)
def test_their_mistakes_are_named_too(ana: Person, path: str, body: dict[str, Any], status: int, detail: str) -> None:
    answer = ana.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert detail in answer.json()["detail"]


def test_a_program_asks_by_the_client(airflow: LiveAirflow, ana: Person) -> None:
    settings = {"train.epochs": 3}

    async def watch(run_id: str) -> list[Value]:
        token = str(ana.http.headers["Authorization"]).removeprefix("Bearer ")
        async with AsyncClient(airflow.stack.airflow_url, token=token) as client:
            return [value async for values in client.watch(run_id) for value in values]

    with Client(airflow.stack.airflow_url, "ana", "the-password-of-ana") as client:
        run = client.submit("events", as_of="2024-01-10", settings=settings, name="by_client")
        assert httpx.get(run.airflow).status_code == 200
        told = [value for values in client.watch(run) for value in values]
        done = client.wait(run)
        assert (done.state, done.user, done.asked["settings"]) == ("success", "ana", settings), done.failure
        assert done.result is not None
        assert "would be registered: " in client.logs(done)
        assert sorted(Curves.of(told), key=_key) == sorted(client.curves(run), key=_key)
        with pytest.raises(RefusedError, match=r"metric ndcg@10: not logged so far; there are .*validation_ndcg_at_10"):
            client.curves(run, metrics=["ndcg@10", "loss"])
        (one,) = client.curves(run, metrics=["validation_ndcg_at_10"], points=2)
        assert (one.metric, len(one.steps)) == ("validation_ndcg_at_10", 2)
        assert sorted(asyncio.run(watch(run.id)), key=repr) == sorted(told, key=repr)
        assert [each.id for each in client.runs("events", user="ana", most=1)] == [run.id]
        with pytest.raises(RefusedError, match="has ended already, as success") as refused:
            client.cancel(run)
        assert refused.value.status == 409
        with pytest.raises(RefusedError, match="unknown key 'train.epoch'; did you mean 'epochs'"):
            client.submit("events", settings={"train.epoch": 1})
    with pytest.raises(RefusedError, match="does not let 'ana' in with this password"):
        Client(airflow.stack.airflow_url, "ana", "a-guess").runs()
    with pytest.raises(RefusedError, match="asks who you are: give user and password, or a token"):
        Client(airflow.stack.airflow_url).runs()


def _key(curve: Curve) -> tuple[str, str]:
    return curve.run, curve.metric


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"x": found}
    return found


def watched(person: Person, run_id: str, most: int | None = None, after: str | None = None) -> list[dict[str, Any]]:
    """
    What the stream says, opened again wherever it ends before the run.

    :param most: values, after which the connection is cut where it may be
    :param after: id of the event that came last
    """
    told: list[dict[str, Any]] = []
    while True:
        headers = {} if after is None else {"Last-Event-ID": after}
        with person.http.stream("GET", f"/runs/{run_id}/metrics/stream", headers=headers, timeout=SECONDS) as answer:
            answer.raise_for_status()
            for event in EventSource(answer).iter_sse():
                if not event.data:  # says only how soon to open it again
                    continue
                # One without an id has that of the one before.
                own_id = event.id if event.id not in ("", after) else None
                told.append({"kind": event.event, "id": own_id, "data": event.json()})
                after = own_id or after
                is_enough = most is not None and len(told) >= most and own_id is not None
                if event.event == "end" or is_enough:
                    return told


def points(told: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(each["data"]["metric"], each["data"]["step"]) for each in told if each["kind"] == "value"]


@pytest.mark.parametrize(
    ("change", "status", "detail"),
    [
        ({"pipeline": "event"}, 404, "there is no pipeline 'event' that may be tried out: did you mean events?"),
        ({"pipeline": "nothing"}, 404, "'nothing' that may be tried out: there are events, those in YAML"),
        ({"settings": {"train.epoch": 1}}, 422, "settings train.epoch=1: unknown key 'train.epoch'; did you mean"),
        ({"settings": {"train.epochs": -1}}, 422, "settings train.epochs=-1: train.epochs must be >= 0, got -1"),
        ({"settings": {"promote.approval": None}}, 422, "'promote' is no step of an experiment; these are ingest, "),
        ({"settings": {"ingest.sources.events.path": "/etc/passwd"}}, 422, f"what lies below {DELIVERIES}: these are"),
        ({"settings": {"ingest.sources.events.path": f"{DELIVERIES}/../x.csv"}}, 422, f"what lies below {DELIVERIES}"),
        ({"settings": {"ingest.sources.more.path": f"{DELIVERIES}/x.csv"}}, 422, "reads what its pipeline reads"),
        ({"dataset": "abcdef"}, 422, "as_of 2024-01-10: dataset abcdef is of an interval of its own; keep one"),
        ({"dataset": "abcdef", "as_of": None}, 422, "dataset abcdef: events has no such snapshot; "),
        ({"dataset": "latest"}, 422, "dataset must be the version of a snapshot or its beginning"),
        ({"settings": {"train.loss": "os:system"}}, 422, "in Airflow an experiment runs code of recipes only"),
        ({"settings": {"train.model_args": {"a": "{{ conn.x }}"}}}, 422, "train.model_args.a is a template"),
        ({"as_of": "2030-01-01"}, 422, "as_of 2030-01-01 is yet to come"),
        ({"as_of": "soon"}, 422, "as_of soon: Invalid isoformat string: 'soon'; write it as 2013-02-09"),
        ({"until": "tune"}, 422, "until tune: events has no search; leave it out"),
        ({"until": "promote"}, 422, "until must be 'ingest', 'validate'"),
        ({"seeds": 2, "until": "features"}, 422, "seeds: with until features nothing is trained"),
        ({"sample": 0}, 422, "sample must be > 0, got 0"),
        ({"name": "spin"}, 422, "name spin: there mlops spin puts what it makes; take another name"),
        ({"name": "My run"}, 422, "name must be lower-case letters, digits and underscores, 100 at most"),
        ({"name": "a" * 101}, 422, "name must be lower-case letters, digits and underscores, 100 at most"),
        (
            {"settings": {"train.seed": 1 << 64}},
            422,
            "settings: 18446744073709551616 is a whole number of",
        ),
        ({"epochs": 1}, 422, "epochs: there is no such field; leave it out"),
        ({"seeds": 10**30}, 422, "seeds must be <= 1000, got 1000"),
        ({"as_of": "0001-01-01"}, 422, "as_of 0001-01-01: there is no data interval before it"),
        ({"settings": {"train.model_args.x": "x" * 60_000}}, 422, "more than 50000 characters as JSON"),
        ({"settings": {"train.model_args.x": nested(400)}}, 422, "more than 20 levels of settings within settings"),
    ],
)
def test_mistakes_are_named_before_anything_runs(ana: Person, change: dict[str, Any], status: int, detail: str) -> None:
    answer = ana.http.post("/runs", json=SHORT | change)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert detail in answer.json()["detail"]


def test_airflow_decides_who_may(airflow: LiveAirflow, tried: dict[str, Any]) -> None:
    viewer, nobody = Person(airflow, "vera"), httpx.Client(base_url=f"{airflow.stack.airflow_url}/mlops/api/v1")
    assert viewer.run(tried["id"])["state"] == "success"
    refused = [viewer.http.post("/runs", json=SHORT), viewer.http.delete(f"/runs/{tried['id']}")]
    assert [answer.status_code for answer in refused] == [403, 409], "it has ended, which she may read"
    for answer in (nobody.post("/runs", json=SHORT), nobody.get("/runs"), nobody.get(f"/runs/{tried['id']}")):
        assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
    for run_id in (
        "events.experiments@none",
        "events.experiments",
        "@",
        "other@x",
        "~@~",
        "..@..",
        "events@x%3Fy%23z",
        "events@..",
        "events.experiments@x%252FtaskInstances%252Fexperiment",
    ):
        assert viewer.http.get(f"/runs/{run_id}").status_code == 404, run_id
    document = nobody.get("/openapi.json").json()
    assert set(document["paths"]) == set(app.openapi()["paths"]), "it is for those, too, who have not logged in yet"


def test_what_nobody_approves_takes_no_experiment(ana: Person, tried: dict[str, Any]) -> None:
    """Broken: what nobody has reviewed would go live by a request."""
    answer = ana.http.post("/models/events/versions", json={"run": tried["id"]})
    assert answer.status_code == 409, answer.text
    assert "events takes no experiments, for it can put models into production" in answer.json()["detail"]
    assert ana.http.get("/runs", params={"pipeline": "events", "kind": "night"}).json()["runs"] == []


def test_no_request_that_its_document_leads_to_finds_a_defect(airflow: LiveAirflow, ana: Person) -> None:
    """Broken: an odd request would be answered by a stack trace, or in a form that no client knows."""
    checks = ["not_a_server_error", "status_code_conformance", "content_type_conformance"]
    checks += ["response_headers_conformance", "response_schema_conformance"]
    command = [
        REPOSITORY / ".venv/schemathesis/bin/st", "run", f"{airflow.stack.airflow_url}/mlops/api/v1/openapi.json",
        "--header", f"Authorization: {ana.http.headers['Authorization']}",
        "--phases", "examples,coverage,fuzzing", "--max-examples", os.environ.get("API_EXAMPLES", "3"),
        "--checks", ",".join(checks), "--seed", str(SEED), "--no-shrink", "--continue-on-failure",
        "--request-timeout", str(SECONDS), "--warnings", "off",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=airflow.home,
        env=os.environ | {
            "NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": str(REPOSITORY / "tests/schemathesis"),
            "SCHEMATHESIS_HOOKS": "hooks",
        },
        capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


def test_a_mistake_in_airflows_own_form_is_told_in_the_log(airflow: LiveAirflow, ana: Person) -> None:
    """Airflow's form checks types; what the settings mean is known to the task only."""
    airflow.client.trigger("events.experiments", "by_form", None, {"settings": {"train.epochs": -1}})
    run = ana.ended("events.experiments@by_form")
    assert run["state"] == "failed"
    assert run["failure"] == "settings train.epochs=-1: train.epochs must be >= 0, got -1"
    assert [task["try_number"] for task in run["tasks"]] == [1], "no try more would help"
