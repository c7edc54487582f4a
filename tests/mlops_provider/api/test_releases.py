"""What is asked for by REST of the registry: before an Airflow and a registry of dictionaries, without servers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from airflow.api_fastapi.core_api.security import get_user
from busy_server import busy_server
from fastapi import FastAPI
from project import REPOSITORY
from signed_decisions import FOREIGN, KEY

from mlops.contract.refs import CheckpointRef, ModelVersionRef
from mlops.contract.stages import STAGE_TAG
from mlops.contract.step import used_key
from mlops.signing.keys import SigningKey
from mlops.signing.packages import SIGNATURE_TAG, PackageSeal
from mlops.signing.seals import entry_key
from mlops_provider.api import idempotency, models, registration, releases, translations
from mlops_provider.api.airflow import Airflow, _airflow
from mlops_provider.api.problems import answer_problems
from mlops_provider.experiments.dags import _shown
from mlops_provider.operators.adopted import PARAM, WEIGHTS
from mlops_provider.operators.question import options_about, subject_about
from mlops_provider.registry import PIPELINE_TAG, REF_TAG, Registry

MODEL = "flight_ranking"
TEXT = (REPOSITORY / "dags/flight_ranking.pipeline.yaml").read_text()
TRIED = f"{MODEL}.experiments"
TRAINING = f"experiments/ana/{MODEL}/train/20130209T050000Z-1e89fd782e2c"
JUDGES = f"experiment__ana__{MODEL}__20130209T050000Z-1e89fd782e2c"


class World:
    """What Airflow, the registry and the store have."""

    def __init__(self, folder: Path, ref: ModelVersionRef) -> None:
        self.store, self._ref = folder, ref
        self.dags: dict[str, dict[str, Any]] = {
            MODEL: {"dag_id": MODEL, "is_paused": False, "params": {PARAM: {}, WEIGHTS: {}}},
            "rollback": {"dag_id": "rollback", "is_paused": False},
        }
        self.runs: dict[tuple[str, str], dict[str, Any]] = {}
        self.forms: list[dict[str, Any]] = []
        self.tasks: list[dict[str, str]] = []
        self.result: dict[str, Any] | None = None
        self.versions: dict[int, dict[str, str]] = {}
        """Tags by number."""
        self.champion: int | None = None
        self.may_trigger = True

    # Airflow.

    def run(self, dag_id: str, run_id: str, state: str, conf: Any = None, run_after: str | None = None) -> None:
        dates = dict.fromkeys(("queued_at", "start_date", "end_date"))
        self.runs[dag_id, run_id] = {
            "dag_id": dag_id, "dag_run_id": run_id, "state": state, "conf": conf or {}, "note": None,
            "triggering_user_name": "ana", "run_after": run_after or "2026-01-01T00:00:00Z", **dates,
        }  # fmt: skip

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v2")
        match request.method, *path.strip("/").split("/"):
            case "GET", "dags", dag_id, "dagRuns", "~", "hitlDetails":
                asked = request.url.params
                assert (asked["response_received"], asked["state"]) == ("false", "awaiting_input")
                found: Any = {"hitl_details": [f for f in self.forms if f["task_instance"]["dag_id"] == dag_id]}
            case "POST", "dags", dag_id, "dagRuns" if self.may_trigger:
                body = json.loads(request.content)
                self.run(dag_id, body["dag_run_id"], "queued", body["conf"], body.get("run_after"))
                found = self.runs[dag_id, body["dag_run_id"]]
            case "POST", *_:
                return httpx.Response(403, json={"detail": "Forbidden"})
            case "GET", "dags", dag_id, "dagRuns", run_id:
                found = self.runs.get((dag_id, run_id))
            case "GET", "dags", _, "dagRuns", _, "taskInstances":
                states = request.url.params.get_list("state")
                found = {"task_instances": [task for task in self.tasks if task["state"] in states]}
            case "GET", "dags", _, "dagRuns", _, "taskInstances", _, "xcomEntries", _:
                found = None if self.result is None else {"value": self.result}
            case "GET", "dags", dag_id, "tasks", _:
                found = {"doc_md": _shown(TEXT)} if dag_id == TRIED else None
            case "GET", "dags":
                found = {"dags": [{"dag_id": TRIED}], "total_entries": 1}
            case "GET", "dags", dag_id, *_:
                found = self.dags.get(dag_id)
            case _:
                raise AssertionError(request.url)
        return httpx.Response(404, json={"detail": f"{path} was not found"}) if found is None else self._said(found)

    @staticmethod
    def _said(found: Any) -> httpx.Response:
        return httpx.Response(200, json=found)

    # The registry and the store.

    def register(self, number: int, stage: str | None, run: str | None = None, key: SigningKey = KEY) -> None:
        """:param run: that has signed the version"""
        tags = {PIPELINE_TAG: MODEL, REF_TAG: json.dumps(self._ref.parent.to_wire())}
        if stage is not None:
            tags[STAGE_TAG] = stage
        if run is not None:
            seal = PackageSeal(
                model=MODEL, version=str(number), sha256="1" * 64, files="x", signed_for=f"{MODEL}/{run}/register"
            )
            tags[SIGNATURE_TAG] = seal.sealed(key).decode()
        self.versions[number] = tags

    def trail(self, former: list[str]) -> None:
        """The newest entry of the audit trail; the others, and copies of it that somebody has made, say nothing."""
        for key, text in (
            (entry_key(MODEL, 9), "{}"),
            (entry_key(MODEL, 10), json.dumps({"stages": {"live": {}, "former": former}})),
            (f"{entry_key(MODEL, 10)}.bak", "{}"),
        ):
            (self.store / key).parent.mkdir(parents=True, exist_ok=True)
            (self.store / key).write_text(text)

    def train(self, place: str) -> None:
        """What an experiment has trained."""
        ref = self._ref.ancestor(CheckpointRef)
        (self.store / place).mkdir(parents=True)
        (self.store / place / "ref.json").write_text(json.dumps({**ref.to_wire(), "place": place}))

    def tried(self, *places: str, state: str = "success") -> str:
        """The id of an experiment's run that has trained this."""
        common = {"seed": 0, "epoch": 1, "tracking_run": "r", "tracking": "", "validation": {}}
        self.result = {
            "experiment": f"experiments/ana/{MODEL}", "interval": ["2013-02-08T05:00:00Z", "2013-02-09T05:00:00Z"],
            "last": None, "trainings": [{"checkpoint": place, **common} for place in places],
        }  # fmt: skip
        self.run(TRIED, "try", state)
        return f"{TRIED}@try"

    def question(self, version: int, run: str, **changes: Any) -> None:
        """A form that waits for an answer."""
        self.forms.append({
            "subject": subject_about(MODEL, str(version)),
            "options": [*options_about(str(version), self._ref.parent.digest())],
            "assigned_users": [{"id": "1", "name": "vera"}, {"id": "2", "name": "otto"}],
            "task_instance": {"dag_id": MODEL, "dag_run_id": run, "task_id": "approve"},
            **changes,
        })  # fmt: skip

    def ask(self, method: str, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """:return: status and answer; of an error its words"""
        answer = asyncio.run(self._ask(method, path, body, headers))
        return answer.status_code, answer.json() if answer.is_success else answer.json()["detail"]

    async def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        app = FastAPI()
        for each in (registration, releases, translations):
            app.include_router(each.router)
        answer_problems(app)

        async def airflow() -> AsyncIterator[Airflow]:
            transport = httpx.MockTransport(self.answer)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                yield Airflow(client)

        app.dependency_overrides = {
            _airflow: airflow,
            models._registry: lambda: _Models(self),
            get_user: lambda: SimpleNamespace(get_name=lambda: "ana"),
        }
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            answer = await client.request(method, path, json=body, headers=headers)
        if answer.is_success and "Location" in answer.headers:
            address = answer.url.join(answer.headers["Location"]).path
            assert address == f"/runs/{answer.json()['id']}"
        return answer


class _Models:
    """As :class:`mlops_provider.registry.Registry`."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def model(self, name: str) -> dict[str, Any]:
        champion = self._world.champion
        return {"aliases": [] if champion is None else [{"alias": "champion", "version": str(champion)}]}

    async def versions(self, model: str, most: int, below: int | None = None) -> list[dict[str, Any]]:
        return [
            {
                "name": MODEL, "version": str(number), "creation_timestamp": 1,
                "tags": [{"key": key, "value": value} for key, value in tags.items()],
            }
            for number, tags in sorted(self._world.versions.items(), reverse=True)
            if below is None or number < below
        ][:most]  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, version_ref: ModelVersionRef, monkeypatch: pytest.MonkeyPatch) -> World:
    keys = tmp_path / "trusted"
    keys.write_text(KEY.public)
    monkeypatch.setenv("AIRFLOW__MLOPS__RELEASE_PUBLIC_KEYS", str(keys))
    monkeypatch.setenv("AIRFLOW__MLOPS__STORE", f"file://{tmp_path}/store")
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_SOURCES", "s3://models/")
    found = World(tmp_path / "store", version_ref)

    @asynccontextmanager
    async def opened(*_: Any) -> AsyncIterator[_Models]:
        yield _Models(found)

    monkeypatch.setattr(Registry, "open", opened)
    monkeypatch.setattr(idempotency, "rights", lambda *_: lambda *asked: found.may_trigger)
    return found


VERSION = f"/models/{MODEL}/versions/3/stage"


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_where_people_decide_the_answer_says_where_and_who(world: World, method: str) -> None:
    """Broken: whoever asks would not know whom to wait for; or it would have moved by asking."""
    world.register(3, "staging", run="night")
    world.question(2, "before")
    world.question(3, "again")
    status, said = world.ask(method, VERSION, {"stage": "production"})
    page = f"/dags/{MODEL}/runs/again"
    assert (status, said) == (202, {
        "model": MODEL, "version": "3", "stage": "staging", "wanted": "production", "is_done": False,
        "waits_for": f"an answer to: Put version 3 of {MODEL} into production?",
        "question": f"{page}/tasks/approve/required_actions", "approvers": ["vera", "otto"],
        "run": f"{MODEL}@again", "airflow": page,
    })  # fmt: skip
    status, said = world.ask(method, VERSION, {"stage": "archived"})
    assert (status, said) == (
        409, f"version 3 of {MODEL} is in staging: answer it with Reject at {page}/tasks/approve/required_actions, or "
        f"mlops models archive {MODEL} 3 --why ...",
    )  # fmt: skip


def test_a_form_about_another_version_is_none(world: World) -> None:
    """Broken: people would be sent to a question that looks alike, and their answer would not count."""
    world.register(3, "staging")
    world.question(3, "night", options=["Approve version 3 (0000000000000000)", "Reject version 3 (0000000000000000)"])
    world.question(3, "night", task_instance={"dag_id": "other", "dag_run_id": "x", "task_id": "approve"})
    status, said = world.ask("PUT", VERSION, {"stage": "production"})
    assert (status, "no signature says which run has registered" in said) == (409, True), said


def test_where_airflow_lets_everybody_answer_the_pipeline_says_whose_answer_counts(world: World) -> None:
    world.register(3, "canary")
    world.question(3, "night", assigned_users=[])
    _, said = world.ask("PUT", VERSION, {"stage": "production"})
    assert said["approvers"] == re.findall(r"approvers: \[(.*)\]", TEXT)[0].split(", ")


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 18, "0", "4"], ids=["long", "large", "zero", "unknown"])
def test_a_number_that_is_no_version_is_told_so(world: World, number: str) -> None:
    """Broken: the answer would be a defect of the server, 500."""
    world.register(3, "staging")
    status, said = world.ask("PUT", f"/models/{MODEL}/versions/{number}/stage", {"stage": "production"})
    assert (status, said.startswith("there is no version '")) == (404, True), said


def test_what_is_there_already_is_done(world: World) -> None:
    world.register(3, "production")
    world.champion = 3
    for version in ("3", "champion"):
        status, said = world.ask("PUT", f"/models/{MODEL}/versions/{version}/stage", {"stage": "production"})
        assert (status, said["is_done"], said["version"]) == (200, True, "3")
        assert {said[name] for name in ("waits_for", "question", "run", "airflow")} == {None}
    assert world.ask("PUT", f"/models/{MODEL}/versions/4/stage", {"stage": "production"})[0] == 404


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([("train", "success", "TrainOperator"), ("approve", "running", "ApproveOperator")],
         "approve of run flight_ranking@night, which asks its approvers: it is running"),
        ([("canary", "deferred", "CanaryOperator")],
         "canary of run flight_ranking@night, which watches it as a canary: it is deferred"),
        ([("promote", "up_for_retry", "PromoteOperator")],
         "promote of run flight_ranking@night, which puts it into production: it is up_for_retry"),
        ([("notify", "running", "PythonOperator")], "notify of run flight_ranking@night: it is running"),
        ([("register", "success", "RegisterOperator")],
         "run flight_ranking@night, whose next task is about to begin"),
    ],
)  # fmt: skip
def test_before_a_question_it_says_what_the_run_does(world: World, tasks: list[tuple[str, ...]], said: str) -> None:
    world.register(3, "staging", run="night")
    world.run(MODEL, "night", "running")
    world.tasks = [dict(zip(("task_id", "state", "operator_name"), task, strict=True)) for task in tasks]
    status, answer = world.ask("PUT", VERSION, {"stage": "production"})
    assert (status, answer["waits_for"], answer["question"]) == (202, said, None)
    assert (answer["run"], answer["approvers"]) == (f"{MODEL}@night", [])


def test_where_nothing_goes_on_it_says_what_would_do(world: World) -> None:
    promote = f"mlops models promote {MODEL} 3 --why ... puts it into production by your own decision"
    world.register(3, "staging", run="night")
    status, said = world.ask("PUT", VERSION, {"stage": "production"})
    assert (status, said) == (
        409, f"Airflow knows no run {MODEL}@night, which has registered version 3 of {MODEL}: {promote}"
    )  # fmt: skip
    world.run(MODEL, "night", "failed")
    world.tasks = [{"task_id": "approve", "state": "failed", "operator_name": "ApproveOperator"}]
    status, said = world.ask("PUT", VERSION, {"stage": "production"})
    assert (status, said) == (
        409, f"run {MODEL}@night has ended as failed at approve, and left version 3 of {MODEL} in staging: clear that "
        f"task and those after it at /dags/{MODEL}/runs/night to have it go on; {promote}",
    )  # fmt: skip


def test_only_a_trusted_signature_says_which_run_it_was(world: World) -> None:
    """Attack: who may set tags in MLflow leads people to a run of theirs."""
    world.run(MODEL, "mine", "running")
    world.register(3, "staging", run="mine", key=FOREIGN)
    world.register(2, "staging", run="mine")
    world.versions[3][SIGNATURE_TAG], of_another = world.versions[2][SIGNATURE_TAG], world.versions[3][SIGNATURE_TAG]
    for envelope in (world.versions[3][SIGNATURE_TAG], of_another, "{}", "no envelope"):
        world.versions[3][SIGNATURE_TAG] = envelope
        status, said = world.ask("PUT", VERSION, {"stage": "production"})
        assert (status, "no signature says which run has registered" in said) == (409, True), said


@pytest.mark.parametrize(
    ("stage", "wanted", "said"),
    [
        ("staging", "canary", "is in staging: the canary of its pipeline does (promote.canary)"),
        ("canary", "staging", "is in canary: register puts a version there, once"),
        (None, "staging", "is in no stage yet: register puts"),
        ("production", "archived", f"is in production: POST /models/{MODEL}/rollback puts the former champion in its"),
        ("archived", "production", f"it is the former champion, which POST /models/{MODEL}/rollback puts into"),
        ("archived", "canary", "is archived: the canary of"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_names_what_does_it(world: World, stage: str, wanted: str, said: str) -> None:
    world.register(3, stage)
    world.trail(former=["1", "3"])
    status, told = world.ask("PUT", VERSION, {"stage": wanted})
    assert (status, said in told) == (409, True), told


def test_a_rejected_version_is_brought_back_by_a_person_only(world: World) -> None:
    world.register(3, "archived")
    world.trail(former=["1"])
    status, told = world.ask("PUT", VERSION, {"stage": "production"})
    assert (status, f"mlops models history {MODEL} says by whom, and why; mlops models promote" in told) == (409, True)
    assert world.ask("PUT", VERSION, {"stage": "live"})[1].startswith("stage must be 'staging', 'canary'")
    assert world.ask("PUT", VERSION, {"stage": "production", "who": "vera"})[0] == 422


ROLLBACK = f"/models/{MODEL}/rollback"


def test_a_rollback_is_one_run_of_the_dag_however_often_it_is_sent(world: World) -> None:
    """Broken: an answer that was lost, and asked for again, would take two champions back."""
    world.champion = 3
    world.trail(former=["1"])
    first = world.ask("POST", ROLLBACK, {"why": "late \n flights", "champion": "3"}, **{"Idempotency-Key": "one"})
    assert first[0] == 202
    assert (first[1]["kind"], first[1]["pipeline"], first[1]["state"]) == ("rollback", None, "queued")
    assert first[1]["asked"] == {"model": MODEL, "why": "late flights", "champion": "3"}
    world.champion = 1
    again = world.ask("POST", ROLLBACK, {"why": "late flights", "champion": "3"}, **{"Idempotency-Key": "one"})
    assert again == (200, first[1])
    other = world.ask("POST", ROLLBACK, {"why": "others"}, **{"Idempotency-Key": "one"})
    assert (other[0], "the Idempotency-Key was given with another request" in other[1]) == (422, True)
    assert [dag_id for dag_id, _ in world.runs] == ["rollback"]


def test_a_rollback_takes_back_what_is_in_production_when_it_is_asked_for(world: World) -> None:
    """Broken: of two who ask at once, the second takes back what the first has just put into production."""
    world.champion = 3
    world.trail(former=["1", "2"])
    key = {"Idempotency-Key": "one"}
    first = world.ask("POST", ROLLBACK, {"why": "late flights"}, **key)
    assert (first[0], first[1]["asked"]) == (202, {"model": MODEL, "why": "late flights", "champion": "3"})
    world.champion = 2
    assert world.ask("POST", ROLLBACK, {"why": "late flights"}, **key) == (200, first[1]), "it is the same request"
    assert world.ask("POST", ROLLBACK, {"why": "late flights", "champion": "2"}, **key)[0] == 422
    assert world.ask("POST", ROLLBACK, {"why": "late flights"})[1]["asked"]["champion"] == "2"


def test_a_rollback_that_would_do_nothing_is_refused_before_it_runs(world: World) -> None:
    asked = {"why": "complaints"}
    assert world.ask("POST", ROLLBACK, asked) == (
        409, f"no version of {MODEL!r} is in production: there is nothing to take back"
    )  # fmt: skip
    world.champion = 4
    status, said = world.ask("POST", ROLLBACK, {**asked, "champion": "3"})
    assert (status, said.startswith("champion: version 4 of flight_ranking is in production, not version 3")) == (
        409, True
    )  # fmt: skip
    world.trail(former=[])
    assert (
        "no former champion of flight_ranking to go back to, version 4 is the first"
        in (world.ask("POST", ROLLBACK, asked)[1])
    )
    for body, said in (
        ({"why": " \n"}, "why: it is empty: say why, for those who read the audit trail"),
        ({}, "why: it is missing"),
        ({**asked, "champion": "champion"}, "champion must be the number of a version, such as 7, got"),
    ):
        status, told = world.ask("POST", ROLLBACK, body)
        assert (status, said in told) == (422, True), told
    assert world.runs == {}


def test_a_file_in_a_folder_below_the_audit_trail_is_not_its_newest_entry(world: World) -> None:
    """Broken: a copy that somebody has made there says which champions there were."""
    world.champion = 4
    world.trail(former=[])
    copy = world.store / f"models/{MODEL}/audit/copies/000000000011.json"
    copy.parent.mkdir()
    copy.write_text(json.dumps({"stages": {"live": {}, "former": ["1", "3"]}}))
    status, said = world.ask("POST", ROLLBACK, {"why": "complaints"})
    assert (status, f"there is no former champion of {MODEL} to go back to" in said) == (409, True), said
    world.register(3, "archived")
    status, said = world.ask("PUT", VERSION, {"stage": "production"})
    assert (status, f"mlops models promote {MODEL} 3 --why ... puts it into production all the same" in said) == (
        409, True
    ), said  # fmt: skip


def test_where_the_store_refuses_the_answer_has_its_word_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: nobody can tell a missing right from a wrong key."""
    world.champion = 4
    monkeypatch.setenv("AIRFLOW__MLOPS__STORE", "s3://bucket/prefix")
    for name, value in {"ALLOW_HTTP": "true", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "r"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with busy_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        server.status = 403
        server.body = b"<?xml version='1.0'?>\n<Error><Code>AccessDenied</Code><Message>No.</Message></Error>"
        status, said = world.ask("POST", ROLLBACK, {"why": "complaints"})
    assert (status, said.startswith("the store cannot be read: "), said[-19:]) == (502, True, ": AccessDenied: No.")


def test_airflow_says_who_may_take_back_and_whether_it_can(world: World) -> None:
    world.champion = 3
    world.may_trigger = False
    assert world.ask("POST", ROLLBACK, {"why": "x"}) == (403, "Forbidden")
    world.may_trigger = True
    world.dags["rollback"]["is_paused"] = True
    status, said = world.ask("POST", ROLLBACK, {"why": "x"})
    assert (status, said["waits_for"]) == (202, "the DAG is unpaused: airflow dags unpause rollback")
    del world.dags["rollback"]
    assert world.ask("POST", ROLLBACK, {"why": "x"}) == (
        409, f"Airflow has no DAG 'rollback', which takes {MODEL} back: deploy dags/rollback.py"
    )  # fmt: skip


VERSIONS = f"/models/{MODEL}/versions"


def test_a_training_is_judged_once_by_the_pipeline_itself(world: World) -> None:
    """Broken: what was asked for twice would be evaluated twice; or what an experiment has made went by no gate."""
    world.train(TRAINING)
    run = world.tried(TRAINING)
    status, said = world.ask("POST", VERSIONS, {"run": run})
    assert (status, said["id"], said["kind"]) == (202, f"{MODEL}@{JUDGES}", "night")
    assert (said["asked"], said["waits_for"]) == ({PARAM: TRAINING}, None)
    world.dags[MODEL]["is_paused"] = True
    status, said = world.ask("POST", VERSIONS, {"run": run, "training": TRAINING})
    assert (status, said["id"]) == (200, f"{MODEL}@{JUDGES}")
    assert said["waits_for"] == f"the DAG is unpaused: airflow dags unpause {MODEL}"


def test_who_may_not_trigger_marks_no_training(world: World) -> None:
    """Broken: who may only read could keep `mlops runs expire` from removing what nobody uses."""
    world.train(TRAINING)
    run, mark = world.tried(TRAINING), world.store / used_key(TRAINING)
    world.may_trigger = False
    status, said = world.ask("POST", VERSIONS, {"run": run})
    assert (status, said.startswith(f"you may not trigger {MODEL}: "), mark.exists()) == (403, True, False)
    world.may_trigger = True
    assert (world.ask("POST", VERSIONS, {"run": run})[0], mark.exists()) == (202, True)


def test_of_several_trainings_one_is_named(world: World) -> None:
    other = f"{TRAINING[:-1]}d"
    world.train(other)
    run = world.tried(TRAINING, other)
    status, said = world.ask("POST", VERSIONS, {"run": run})
    assert (status, said) == (422, f"training: run {run} has several; name one of {TRAINING}, {other}")
    status, said = world.ask("POST", VERSIONS, {"run": run, "training": "x"})
    assert (status, said) == (422, f"training: run {run} has no 'x'; name one of {TRAINING}, {other}")
    status, said = world.ask("POST", VERSIONS, {"run": run, "training": other.rpartition("/")[2]})
    assert (status, said["asked"]) == (202, {PARAM: other})


def test_what_cannot_be_registered_is_told_before_anything_runs(world: World) -> None:
    world.train(TRAINING)
    run = world.tried(TRAINING)
    foreign = "/models/other/versions"

    def told(run_id: str = run, path: str = VERSIONS) -> tuple[int, Any]:
        return world.ask("POST", path, {"run": run_id})

    assert told(path=foreign) == (
        422, f"model 'other': {MODEL} registers its versions as {MODEL!r}: POST /models/{MODEL}/versions"
    )  # fmt: skip
    assert told(f"{TRIED}@none")[0] == 404
    world.run(MODEL, "night", "success")
    assert "it is no experiment; what a night trains, the night registers itself" in told(f"{MODEL}@night")[1]
    for state, status, said in (
        ("running", 409, "has not ended yet, it is running: ask again when it has"),
        ("failed", 409, "has failed, so nothing of it is registered: GET /runs/"),
    ):
        assert told(world.tried(TRAINING, state=state))[0] == status
        assert said in told()[1]
    assert told(world.tried()) == (
        422, f"run {run} has trained nothing: ask for one without `until`, or until train"
    )  # fmt: skip
    for place, said in (
        (f"pipelines/{MODEL}/train/20130209T050000Z-1e89fd782e2c", "is the pipeline's own, which its run has judged"),
        (f"{TRAINING[:-1]}d", "is not trained to its end, or was removed"),
    ):
        status, found = told(world.tried(place))
        assert (status, said in found) == (422, True), found
    # Who may edit XComs names the training of another pipeline.
    other = "experiments/ana/other/train/20130209T050000Z-1e89fd782e2c"
    world.train(other)
    assert told(world.tried(other)) == (422, f"run {run}: {other} is no training of {MODEL}")
    world.result = None
    assert "what came out of it cannot be read" in told()[1]
    world.tried(TRAINING)
    world.dags[MODEL]["params"] = {}
    status, found = told()
    assert (status, "it can put models into production without anybody's yes" in found) == (409, True), found
    assert [dag_id for dag_id, _ in world.runs] == [TRIED, MODEL], "nothing was started"


ELSEWHERE = {"uri": "s3://models/ranking/3.1/weights.pt", "version": "3.1", "metrics": {"auc": 0.97, "f1": 0.89}}
TAKEN = {"path": ELSEWHERE["uri"], "known_as": "3.1", "claimed": ELSEWHERE["metrics"]}


def test_weights_from_elsewhere_are_judged_by_the_pipelines_own_run(world: World) -> None:
    """Broken: a model that was trained elsewhere cannot be registered, or is by who says that it is good."""
    path = f"/models/{MODEL}/versions"
    status, said = world.ask("POST", path, {"artifact": ELSEWHERE}, **{"Idempotency-Key": "k"})
    assert (status, said["kind"], said["asked"]) == (202, "night", {WEIGHTS: TAKEN})
    again, same = world.ask("POST", path, {"artifact": ELSEWHERE}, **{"Idempotency-Key": "k"})
    assert (again, same["id"]) == (200, said["id"])
    status, other = world.ask("POST", path, {"artifact": ELSEWHERE | {"metrics": {}}}, **{"Idempotency-Key": "k"})
    assert (status, "the Idempotency-Key was given with another request" in other) == (422, True)
    status, new = world.ask("POST", path, {"artifact": ELSEWHERE})
    assert (status, new["id"] != said["id"]) == (202, True), "the file may be another one by now"


def test_another_platforms_registration_is_sent_as_it_is(world: World) -> None:
    body = {
        "name": MODEL, "version": "3.1", "artifact_uri": ELSEWHERE["uri"], "metrics": {"auc": 0.97, "f1": 0.89},
        "stage": "staging",
    }  # fmt: skip
    status, said = world.ask("POST", "/models/register", body)
    assert (status, said["asked"]) == (202, {WEIGHTS: TAKEN})
    status, why = world.ask("POST", "/models/register", body | {"artifact_uri": "/etc/passwd"})
    assert (status, why.startswith("artifact_uri /etc/passwd: experiments may read")) == (422, True), why
    status, why = world.ask("POST", "/models/register", body | {"stage": "production"})
    assert (status, "stage: 'staging', where a version begins, got 'production'" in why) == (422, True), why


@pytest.mark.parametrize(
    ("artifact", "status", "words"),
    [
        (
            {"uri": "s3://others/w.pt"},
            422,
            "artifact.uri s3://others/w.pt: experiments may read what lies below s3://m",
        ),
        ({"uri": "s3://models/../others/w.pt"}, 422, "artifact.uri s3://models/../others/w.pt: experiments may read"),
        ({"uri": ""}, 422, "artifact.uri must"),
        ({"uri": "s3://models/"}, 422, "artifact.uri s3://models/: name one file"),
        ({"version": " "}, 422, "artifact.version must be a line of at most 100 printable characters"),
        ({"metrics": {"f1(macro)": 0.9}}, 422, "must be a name such as auc or ndcg@10"),
        ({"sha256": "abc"}, 422, "artifact.sha256 must be a SHA-256, 64 hexadecimal digits, got 'abc'"),
        ({"metrics": {"auc": "high"}}, 422, "artifact.metrics.auc must be"),
        ({"metric": {"auc": 1}}, 422, "artifact.metric: there is no such field; leave it out"),
        ({"as_of": "soon"}, 422, "as_of soon: "),
        ({"as_of": "2999-01-01"}, 422, "as_of 2999-01-01 is yet to come"),
        ({"metrics": {"auc": True}}, 422, "artifact.metrics.auc must be"),
        (
            {"metrics": {"ndcg@10": 0.9, "ndcg_at_10": 0.8}},
            422,
            "artifact.metrics: MLflow calls ndcg@10 and ndcg_at_10 alike, so that one would be lost; leave one of them",
        ),
        ({"pipeline": "nope"}, 404, "there is no pipeline 'nope' that may be tried out"),
    ],
)
def test_weights_that_nobody_may_or_can_take_are_refused(
    world: World, artifact: dict[str, Any], status: int, words: str
) -> None:
    found, said = world.ask("POST", f"/models/{MODEL}/versions", {"artifact": ELSEWHERE | artifact})
    assert (found, words in said) == (status, True), said
    assert not world.runs


def test_a_registration_is_of_a_run_or_of_weights(world: World) -> None:
    path = f"/models/{MODEL}/versions"
    for body in ({}, {"run": "a@b", "artifact": ELSEWHERE}):
        status, said = world.ask("POST", path, body)
        assert (status, "say `run`, an experiment, or `artifact`" in said) == (422, True), said
    world.dags[MODEL]["params"] = {}
    status, said = world.ask("POST", path, {"artifact": ELSEWHERE})
    assert (status, "takes no experiments" in said) == (409, True), said
    world.dags[MODEL]["params"], world.may_trigger = {WEIGHTS: {}}, False
    assert world.ask("POST", path, {"artifact": ELSEWHERE})[0] == 403, "Airflow decides who may"


def test_the_data_are_those_of_a_nights_interval(world: World) -> None:
    """Broken: it is judged on other days than the champion was, or an answer of another day is given again."""
    path, key = f"/models/{MODEL}/versions", {"Idempotency-Key": "k"}
    asked = {"artifact": ELSEWHERE | {"as_of": "2013-02-09T12:00"}}
    status, said = world.ask("POST", path, asked, **key)
    assert status == 202, said
    (run,) = world.runs.values()
    assert run["run_after"] == "2013-02-09T05:00:00+00:00", "midnight in New York, when the day's data were whole"
    assert world.ask("POST", path, asked, **key)[0] == 200
    for as_of in ({"as_of": "2013-02-10"}, {}):
        status, other = world.ask("POST", path, {"artifact": ELSEWHERE | as_of}, **key)
        assert (status, "the Idempotency-Key was given with another request" in other) == (422, True), other


def test_what_was_asked_for_is_found_also_where_it_would_be_refused_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = f"/models/{MODEL}/versions", {"Idempotency-Key": "k"}
    assert world.ask("POST", path, {"artifact": ELSEWHERE}, **key)[0] == 202
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_SOURCES", "s3://others/")
    assert world.ask("POST", path, {"artifact": ELSEWHERE}, **key)[0] == 200
    assert world.ask("POST", path, {"artifact": ELSEWHERE})[0] == 422


def test_a_model_whose_pipeline_one_may_not_read_is_not_there(world: World) -> None:
    """Broken: who may not read a pipeline learns its name by asking for a model."""
    world.register(3, "staging")
    del world.dags[MODEL]
    status, said = world.ask("POST", "/models/hidden/versions", {"artifact": ELSEWHERE})
    assert (status, "there is no pipeline 'hidden'" in said) == (404, True), said
