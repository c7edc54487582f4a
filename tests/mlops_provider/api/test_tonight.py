"""What is read of Airflow's tables. ``tests/end_to_end/test_pipeline.py`` has an Airflow fill them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow_rows import BUNDLE, add_dag, add_run, add_task, add_xcom, database, put
from rest_world import World
from sqlalchemy.orm import Session

from mlops.contract.refs import Artifact, ModelVersionRef, ReportRef
from mlops_provider.api import tonight
from mlops_provider.api.app import app
from mlops_provider.api.standings import Shown, night_of, standing_of
from mlops_provider.api.tables import nights, pipelines

MIDNIGHT = datetime(2026, 1, 11, tzinfo=UTC)
NIGHT = timedelta(days=1)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with database(f"sqlite:///{tmp_path}/airflow.db") as session:
        yield session


def shown(session: Session) -> dict[str, Shown]:
    return {each.dag_id: each for each in pipelines(session)}


def test_a_pipeline_is_a_dag_with_the_tag(session: Session) -> None:
    add_dag(session, "flights")
    add_dag(session, "flights.experiments")
    add_dag(session, "rollback")
    add_dag(session, "somebodys", tag="reports")
    add_dag(session, "deleted", is_stale=True)
    assert list(shown(session)) == ["flights"]


def test_the_newest_run_is_shown_unless_an_older_one_is_under_way(session: Session) -> None:
    for name in ("ended", "waits", "both_run"):
        add_dag(session, name)
        add_run(session, name, "old", "failed", MIDNIGHT - NIGHT)
    # Of nights that are made up for, the newest by its date is not the last one that was made.
    add_run(session, "ended", "newest", "success", MIDNIGHT)
    add_run(session, "ended", "made_up_for", "failed", MIDNIGHT - 2 * NIGHT)
    add_run(session, "waits", "asks", "running", MIDNIGHT)
    add_run(session, "waits", "cancelled", "failed", MIDNIGHT + NIGHT)
    add_run(session, "both_run", "before", "running", MIDNIGHT)
    add_run(session, "both_run", "after", "running", MIDNIGHT + NIGHT)
    add_dag(session, "asks")
    for day in range(3):
        add_run(session, "asks", f"night_{day}", "running", MIDNIGHT + day * NIGHT)
    add_task(session, "asks", "night_1", "approve", "awaiting_input")
    # Somebody may trigger a run that is of no date.
    add_dag(session, "undated")
    add_run(session, "undated", "dated", "success", MIDNIGHT - NIGHT)
    add_run(session, "undated", "older", "failed", MIDNIGHT - 2 * NIGHT, logical_date=None)
    add_run(session, "undated", "newer", "failed", MIDNIGHT, logical_date=None)
    add_dag(session, "new")
    assert {name: each.run_id for name, each in shown(session).items()} == {
        "ended": "newest", "waits": "asks", "both_run": "after", "asks": "night_1", "undated": "newer", "new": None,
    }  # fmt: skip


def test_it_says_what_people_are_asked_and_whose_note_it_is(session: Session) -> None:
    add_dag(session, "flights")
    number = add_run(session, "flights", "night", "running", MIDNIGHT)
    add_task(session, "flights", "night", "evaluate", "success")
    add_task(session, "flights", "night", "promote", "scheduled", operator="PromoteOperator")
    task = add_task(session, "flights", "night", "approve", "awaiting_input", operator="ApproveOperator")
    asked = {"ti_id": task, "subject": "Put 3 in?", "options": ["Approve"], "created_at": MIDNIGHT}
    put(session, "hitl_detail", asked | {"assignees": [{"id": "7", "name": "vera"}]})
    put(session, "dag_run_note", {"dag_run_id": number, "content": "mine", "user_id": "7", "created_at": MIDNIGHT})
    found = shown(session)["flights"]
    assert (found.note, found.is_noted) == ("mine", True)
    assert [task.task_id for task in found.tasks] == ["promote", "approve"], "what has ended is not read"
    told = standing_of(found)
    assert (told.standing, told.said, told.questions[0].approvers) == ("asked", "Put 3 in?", ["vera"])


@pytest.mark.parametrize(
    ("note", "is_noted"),
    [
        pytest.param({"user_id": "7", "created_at": MIDNIGHT + NIGHT}, True, id="a person's"),
        pytest.param({"user_id": None, "created_at": MIDNIGHT}, True, id="of the program that has triggered it"),
        pytest.param({"user_id": None, "created_at": MIDNIGHT + NIGHT}, False, id="ours"),
    ],
)
def test_it_says_whose_note_it_is(session: Session, note: dict[str, Any], is_noted: bool) -> None:
    """Broken: what somebody has noted would be told as why the run failed."""
    add_dag(session, "flights")
    number = add_run(session, "flights", "night", "failed", MIDNIGHT, created_at=MIDNIGHT)
    put(session, "dag_run_note", {"dag_run_id": number, "content": "ticket 17", **note})
    found = shown(session)["flights"]
    assert found.is_noted == is_noted
    assert standing_of(found).said.startswith("ticket 17")


def test_it_says_why_a_file_cannot_be_read(session: Session) -> None:
    """Airflow makes the DAGs of a broken YAML file stale, and names the DAG file that says its mistakes."""
    for name in ("flights", "flights_two", "gone"):
        add_dag(session, name, is_stale=True)
        add_run(session, name, "night", "success", MIDNIGHT)
    add_dag(session, "sound")
    add_dag(session, "python", file="python.py")
    trace = (
        'Traceback (most recent call last):\n  File "/dags/pipeline_errors.py", line 7, in <module>\n'
        "mlops.contract.section.SpecError: flights.pipeline.yaml:3:1: train.epochs: must be 1 at least, got 0\n"
        "flights.pipeline.yaml:9:1: tune: no such key\n"
        "flights_two.pipeline.yaml:1:1: features: missing\n"
    )
    put(session, "import_error", {"bundle_name": BUNDLE, "filename": "pipeline_errors.py", "stacktrace": trace})
    error = {"bundle_name": BUNDLE, "filename": "python.py", "stacktrace": "Traceback ...\nNameError: name 'x'\n"}
    put(session, "import_error", error)
    put(session, "import_error", error | {"bundle_name": "another", "stacktrace": trace.replace("9:1", "8:1")})
    add_dag(session, "another_teams", file="python.py", tag="reports")
    assert {name: each.broken for name, each in shown(session).items()} == {
        "flights": (
            "flights.pipeline.yaml:3:1: train.epochs: must be 1 at least, got 0\n"
            "flights.pipeline.yaml:9:1: tune: no such key"
        ),
        "flights_two": "flights_two.pipeline.yaml:1:1: features: missing",
        "sound": "",
        "python": "Airflow cannot read python.py: NameError: name 'x'",
    }
    assert standing_of(shown(session)["flights"]).standing == "broken"
    assert shown(session)["flights"].broken_beside == (), "its own file has its own mistakes only"
    assert set(shown(session)["python"].broken_beside) == {"python", "another_teams"}


def test_nights_come_with_what_they_were_measured_at(session: Session, version_ref: ModelVersionRef) -> None:
    metrics = {"ndcg@10": 0.5, "candidate.ndcg@10": 0.5, "champion.ndcg@10": 0.4, "difference.ndcg@10": 0.1}
    limits = {"difference.ndcg@10.low": 0.02, "difference.ndcg@10.high": 0.18}
    report = replace(
        version_ref.ancestor(ReportRef),
        metrics=metrics | limits,
        champion="6",
        artifacts={"report": Artifact(key="blobs/r.html", sha256="ab" * 32, num_bytes=7)},
    )
    add_dag(session, "flights")
    edited = report.to_wire() | {"metrics": [], "artifacts": 7}
    values = {"night_0": report.to_wire(), "night_1": "s3://elsewhere", "night_2": None, "night_3": edited}
    for day, (run_id, value) in enumerate(values.items()):
        run = add_run(session, "flights", run_id, "success", MIDNIGHT + day * NIGHT)
        add_task(session, "flights", run_id, "evaluate", "success", operator="EvaluateOperator")
        add_task(session, "flights", run_id, "promote", "success", operator="PromoteOperator")
        add_task(session, "flights", run_id, "train", "success")
        add_xcom(session, run, run_id, "train", "return_value", report.to_wire(), MIDNIGHT)
        if value is not None:
            add_xcom(session, run, run_id, "evaluate", "return_value", value, MIDNIGHT)
    found = nights(session, "flights", 30)
    assert found is not None
    told = [night_of(*each) for each in found]
    assert [night.run for night in told] == [f"flights@night_{day}" for day in (3, 2, 1, 0)]
    assert [night.standing for night in told] == ["promoted"] * 4
    assert [night.judged for night in told[:3]] == [None] * 3, "of another XCom backend, none, edited by somebody"
    judged = told[3].judged
    assert judged is not None
    assert (judged.metric, judged.value, judged.champion, judged.champion_value) == ("ndcg@10", 0.5, "6", 0.4)
    assert (judged.difference_low, judged.difference, judged.difference_high) == (0.02, 0.1, 0.18)
    assert judged.report == "/mlops/reports/blobs/r.html"
    assert len(nights(session, "flights", 2) or ()) == 2
    assert nights(session, "nobodys", 30) is None
    add_dag(session, "somebodys", tag="reports")
    assert nights(session, "somebodys", 30) is None


def test_a_first_night_has_no_difference(session: Session, version_ref: ModelVersionRef) -> None:
    add_dag(session, "flights")
    run = add_run(session, "flights", "night", "running", MIDNIGHT)
    add_task(session, "flights", "night", "evaluate", "success", operator="EvaluateOperator")
    report = replace(version_ref.ancestor(ReportRef), metrics={"ndcg@10": 0.5, "candidate.ndcg@10": 0.5})
    add_xcom(session, run, "night", "evaluate", "return_value", report.to_wire(), MIDNIGHT)
    (found,) = nights(session, "flights", 30) or ()
    judged = night_of(*found).judged
    assert judged is not None
    assert (judged.value, judged.champion, judged.difference, judged.report) == (0.5, None, None, None)


def test_a_note_is_one_event_whatever_ends_its_lines(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a note with a line separator of Unicode would stop the page of all who may read that pipeline."""
    said = "one\ntwo\u2028three\u2029four\u0085fünf"
    stood = Shown(dag_id="flights", is_paused=False, next_run=None, run_id="night", state="failed", note=said)
    looked = tonight.Looked(pipelines=[stood], trainings={}, problems={})

    async def look() -> tonight.Looked:
        return looked

    monkeypatch.setattr(tonight, "_permitted", lambda found, user: iter(found))
    monkeypatch.setattr(tonight, "_shared", type("Shared", (), {"look": staticmethod(look)}))
    monkeypatch.setattr(tonight, "STREAM_SECONDS", 3.0)
    monkeypatch.setattr(tonight, "_LOOK_SECONDS", 3.1)

    async def ask() -> str:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return (await client.get("/tonight/stream")).text

    (line,) = [line for line in asyncio.run(ask()).split("\n") if line.startswith("data: ")]
    assert json.loads(line.removeprefix("data: "))["pipelines"][0]["said"] == said
