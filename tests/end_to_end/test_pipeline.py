"""The pipeline as its users meet it: nights, overrides, bad input, reports, other teams' DAGs, lineage."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import yaml
from browser import keep, page_at
from live_airflow import LiveAirflow
from project import REPOSITORY, write_events
from releases import answer, form
from told_people import People, add_notify, people

from mlops.client import Client, RefusedError
from mlops.contract.refs import CheckpointRef, DatasetRef, ModelVersionRef, ReportRef
from mlops_provider.links import report_url
from mlops_provider.local.stack import StackError, stack_settings
from mlops_provider.why import explain

NIGHT_SECONDS = 600


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights that were trained elsewhere."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def told() -> Iterator[People]:
    """Whom the pipeline tells."""
    with people() as found:
        yield found


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow], elsewhere: Path, told: People) -> LiveAirflow:
    """With a login, unlike `make up` on one's own machine; MLflow has one too, as under `make up`."""
    settings = {"AIRFLOW__MLOPS__EXPERIMENT_SOURCES": str(elsewhere), **told.connections}
    settings["AIRFLOW__MLOPS__EXPERIMENT_CODE"] = "always"
    return new_airflow(with_login=True, mlflow_login=True, users=["vera"], settings=settings, prepare=add_notify)


@pytest.fixture(scope="module", autouse=True)
def first_night(airflow: LiveAirflow) -> str:
    """A finished run, the first; the DAGs that wait for it were started before."""
    for dag_id in ("waiting", "listening"):
        airflow.client.wait_for_dag(dag_id)
        airflow.client.unpause(dag_id)
    airflow.client.trigger("waiting", "early", None)
    run_id = airflow.trigger(10)
    assert airflow.client.wait("events", run_id, NIGHT_SECONDS) == "success", airflow.states(run_id)
    assert [version["version"] for version in airflow.model_versions()] == ["1"]
    assert airflow.aliases() == {"champion": "1"}
    return run_id


@pytest.fixture
def restore_events(airflow: LiveAirflow):
    yield
    write_events(airflow.home / "data/events.csv")


def fail(airflow: LiveAirflow, day: int, task_id: str, dag_id: str = "events") -> str:
    """Run a night that fails in a task at its first try; the message."""
    run_id = airflow.trigger(day, dag_id)
    assert airflow.client.wait(dag_id, run_id, NIGHT_SECONDS) == "failed"
    tasks = airflow.client.tasks(dag_id, run_id)
    assert tasks[task_id]["state"] == "failed"
    assert tasks[task_id]["try_number"] == 1, "what cannot be mended by trying again is not tried again"
    failure = airflow.client.xcom(dag_id, run_id, task_id, "failure")
    message: str = failure["message"]
    log = airflow.client.log(dag_id, run_id, task_id, 1).removesuffix("\n::endgroup::")
    assert log.endswith(message), "the user's message is the last line of the log"
    explained = explain(airflow.client, dag_id, run_id)
    if (report := failure["details"].get("report")) is not None:
        message = message.replace(report, f"{airflow.stack.airflow_url}{report_url(report)}")
    assert (explained.state, explained.sentences[0]) == ("failed", f"{task_id} failed: {message}")
    assert any(task_id in each for each in explained.sentences if each.startswith("Next: ")), explained.sentences
    assert any(each.startswith("It changed nothing in production") for each in explained.sentences)
    return str(failure["message"])


def mlops(airflow: LiveAirflow, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a terminal of the deployment's machine."""
    word, *rest = arguments
    settings = stack_settings(airflow.stack.root) | {"PYTHONPATH": f"{REPOSITORY}/plugins:{REPOSITORY}/training"}
    return subprocess.run(
        [sys.executable, "-m", "mlops_provider.cli", word, "--home", str(airflow.home), *rest],
        env={**os.environ, **settings, **environment}, capture_output=True, text=True, check=False,
        timeout=NIGHT_SECONDS,
    )  # fmt: skip


def test_a_night_registers_the_champion(airflow: LiveAirflow, first_night: str) -> None:
    assert set(airflow.states(first_night).values()) == {"success"}
    ref = ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "register"))
    promoted = f"Version 1 of events is in production. {ref.parent.reason}"
    assert airflow.client.run("events", first_night)["note"] == promoted, "the grid is as green where nothing is better"
    assert ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "promote")).version == "1"


def test_people_are_told_of_the_champion(airflow: LiveAirflow, told: People, first_night: str) -> None:
    posted = told.hook.wait_for(lambda each: each["run_id"] == first_night)
    ref = ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "register"))
    assert (posted["event"], posted["task_id"]) == ("promoted", "promote")
    assert posted["message"] == f"Version 1 of events is in production. {ref.parent.reason}"
    version = posted["links"]["MLflow model version"]
    assert version.endswith("/models/events/versions/1?workflowType=machine_learning")
    assert posted["links"]["Run"] == f"{airflow.stack.airflow_url}/dags/events/runs/{first_night}"
    assert [each["event"] for each in told.hook.posted if each["run_id"] == first_night] == ["promoted"]
    told.mailbox.wait_for(f"events: a new version is in production ({first_night})")


def test_why_says_how_a_night_went(airflow: LiveAirflow, first_night: str) -> None:
    found = explain(airflow.client, "events", first_night)
    ref = ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "register"))
    assert found.state == "success"
    assert found.sentences[0] == f"The evaluation passed: {ref.parent.reason}"
    address = found.sentences[1].removeprefix("Report: ")
    page = httpx.get(address, headers={"Authorization": airflow.client.authorization})
    assert page.status_code == 200
    assert found.sentences[2:] == ["Version 1 of events was put into production."]
    assert explain(airflow.client, "events", None).run_id
    for dag_id, run_id, message in (("nowhere", None, "has no DAG 'nowhere'"), ("events", "x", "has no run 'x'")):
        with pytest.raises(StackError, match=message):
            explain(airflow.client, dag_id, run_id)


def test_a_version_leads_back_to_its_exact_snapshot(airflow: LiveAirflow, first_night: str) -> None:
    """From the registry alone, without Airflow: whoever audits a model starts there."""
    version = next(version for version in airflow.model_versions() if version["version"] == "1")
    tags = {tag["key"]: tag["value"] for tag in version["tags"]}
    ref = ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "register"))
    dataset = ref.ancestor(DatasetRef)
    assert tags["mlops.dataset_version"] == dataset.version
    assert dataset.version in tags["mlops.ref"]
    assert dataset.interval_end == "2024-01-10T00:00:00+00:00"
    assert (airflow.stack.store / dataset.artifacts["manifest"].key).is_file()


def test_the_mlflow_run_says_where_the_model_came_from(airflow: LiveAirflow, first_night: str) -> None:
    ref = ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "register"))
    trained = ref.ancestor(CheckpointRef).tracking_run
    (run,) = [run for run in airflow.training_runs() if run["info"]["run_id"] == trained]
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    params = {param["key"]: param["value"] for param in run["data"]["params"]}
    assert tags["mlops.dataset_version"] == ref.ancestor(DatasetRef).version
    assert tags["mlops.airflow.run_id"] == first_night
    assert tags["mlops.airflow.dag_id"] == "events"
    assert params["epochs"] == "3"
    assert params["seed"] == "0"
    assert tags["mlops.airflow.try_number"] == "1"
    assert len(tags["mlops.lock.training/requirements.txt"]) == 64
    assert tags["mlops.git_commit"]
    assert tags["mlops.hardware.cpu"]
    steps = httpx.get(
        f"{airflow.stack.mlflow_url}/api/2.0/mlflow/metrics/get-history",
        params={"run_id": run["info"]["run_id"], "metric_key": "validation_ndcg_at_10"},
        auth=airflow.stack.mlflow_admin,
    ).json()
    assert len(steps.get("metrics", [])) == 3, "one value per epoch"


def test_programs_see_the_snapshots(airflow: LiveAirflow, first_night: str) -> None:
    ref = ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "register")).ancestor(DatasetRef)
    token = airflow.client.authorization.removeprefix("Bearer ")
    with Client(airflow.stack.airflow_url, token=token) as client:
        (events,) = [each for each in client.datasets() if each.name == "events"]
        assert events.num_snapshots >= 1
        (listed,) = [each for each in client.snapshots("events") if each.version == ref.version]
        assert (listed.place, listed.num_rows, listed.deprecated) == (ref.place, ref.num_rows, None)
        found = client.snapshot("events", ref.version[:8])
        assert found.creator["run_id"] == first_night
        assert sum(period.num_rows for period in found.periods) == ref.num_rows
        assert found.window[-1] == "2024-01-09"
        assert client.compare("events", ref.version, ref.version).periods == []
        for name, status in (("nowhere", 404), ("../../x", 404), ("waiting", None)):
            if status is None:
                assert client.snapshots(name) == [], "a DAG without snapshots"
                continue
            with pytest.raises(RefusedError) as refused:
                client.snapshots(name)
            assert refused.value.status == status
    for path in ("datasets/events/versions", "models", "models/events/versions/1"):
        assert httpx.get(f"{airflow.stack.airflow_url}/mlops/api/v1/{path}").status_code == 401, path


def test_programs_see_where_a_version_came_from(airflow: LiveAirflow, first_night: str) -> None:
    ref = ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "register"))
    token = airflow.client.authorization.removeprefix("Bearer ")
    with Client(airflow.stack.airflow_url, token=token) as client:
        (events,) = [each for each in client.models() if each.name == "events"]
        assert (events.pipeline, set(events.aliases)) == ("events", {"champion"})
        every = client.model_versions("events")
        assert [each.version for each in every] == [str(number) for number in range(len(every), 0, -1)]
        assert client.model_versions("events", most=1) == every[:1]
        first = every[-1]
        assert (first.semantic_version, first.reason) == ("1.0.0", ref.parent.reason)
        assert first.metrics == ref.parent.metrics
        found = client.model_version("events", 1)
        assert [link["kind"] for link in found.lineage] == ["dataset", "validation", "features", "checkpoint", "report"]
        assert found.lineage[0]["version"] == found.dataset_version == ref.ancestor(DatasetRef).version
        weights = ref.ancestor(CheckpointRef).artifacts["weights"]
        assert found.artifact_sha256[weights.key] == weights.sha256
        assert client.model_version("events").version == events.aliases["champion"]
        for name, version in (
            ("events", "99"),
            ("events", "canary"),
            ("events", "0"),
            ("events", "\u0661"),
            ("other", "1"),
        ):
            with pytest.raises(RefusedError, match=f"there is no .*'{name}': see GET /models") as refused:
                client.model_version(name, version)
            assert refused.value.status == 404
        with pytest.raises(RefusedError, match="there is no model 'other'"):
            client.model_versions("other")


def test_links_lead_to_the_run_and_the_reports(airflow: LiveAirflow, first_night: str) -> None:
    run = ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "register")).ancestor(CheckpointRef)
    assert airflow.links(first_night, "train")["MLflow run"].endswith(run.tracking_run)
    version = airflow.links(first_night, "register")["MLflow model version"]
    assert version.endswith("/models/events/versions/1?workflowType=machine_learning")
    curves = f"plugin/mlops-tonight/{quote(f'events@{first_night}', safe='')}"
    assert airflow.links(first_night, "train")["Curves"] == curves
    for task_id in ("validate", "evaluate"):
        address = f"{airflow.stack.airflow_url}/{airflow.links(first_night, task_id)['Report']}"
        assert httpx.get(address).status_code == 401, "reports are behind Airflow's login"
        page = httpx.get(address, headers={"Authorization": airflow.client.authorization})
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert "script-src" not in page.headers["content-security-policy"], "nothing in it may run"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        assert "<script" not in page.text
        assert not re.findall(r"""(?:src|href)=["']https?:""", page.text), "readable without the internet"


def test_an_experiment_takes_what_the_night_has_made(airflow: LiveAirflow, first_night: str) -> None:
    """Broken: a change of one setting would read and store the data again, or its model would be registered."""
    night = ModelVersionRef.from_wire(airflow.client.xcom("events", first_night, "register"))
    checkpoint, versions = night.ancestor(CheckpointRef), len(airflow.model_versions())

    def run(*arguments: str) -> dict[str, Any]:
        done = mlops(airflow, "run", "events", "--json", "--as-of", "2024-01-10", *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["trainings"][0]
        return found

    def tracked() -> dict[str, Any]:
        (found,) = [each for each in airflow.training_runs() if each["info"]["run_id"] == checkpoint.tracking_run]
        return dict(found["data"])

    before = tracked()
    assert run()["checkpoint"] == checkpoint.place, "the same settings: nothing is left to train"
    assert run("--set", "evaluate.metrics=[mrr]")["metrics"].keys() > {"candidate.ndcg@10", "candidate.mrr"}
    assert tracked() == before, "the night's run says how the night judged it"
    other = run("--set", "train.learning_rate=0.02")
    assert other["checkpoint"].startswith("experiments/")
    assert other["champion"] == airflow.aliases()["champion"], "held against the one in production"
    made = {path.parent.parent.name for path in (airflow.stack.store / "experiments").rglob("ref.json")}
    assert made == {"train", "evaluate"}
    assert len(airflow.model_versions()) == versions


def test_a_pipeline_judges_what_somebody_tried_out(
    airflow: LiveAirflow, told: People, elsewhere: Path, tmp_path: Path
) -> None:
    """The very training is registered, by the pipeline's own gate, and goes live by an approver's yes, not before."""
    assert airflow.login is not None
    user, password = airflow.login
    client = Client(airflow.stack.airflow_url, user, password)
    spec = yaml.safe_load((airflow.home / "dags/events.pipeline.yaml").read_text())
    spec |= {"pipeline": "judging", "promote": {"approval": {"approvers": ["vera"]}}, "schedule": None}
    spec["deadline_hours"] = 0.001
    later = {"by": "webhook", "events": ["late"], "late_hours": 0.002}
    spec["notify"].append(later | {"settings": {"connection": "hook", "endpoint": "escalated"}})
    for step in ("evaluate", "register"):
        spec[step] = spec[step] | {"registered_model": "judging"}
    path = airflow.home / "dags/judging.pipeline.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    try:
        airflow.client.wait_for_dag("judging.experiments")
        mine = tmp_path / "include/events"  # a model that is not deployed
        shutil.copytree(airflow.home / "include/events", mine, ignore=shutil.ignore_patterns("__pycache__"))
        (mine / "model.py").write_text((mine / "model.py").read_text().replace(").squeeze(", ").mul(2).squeeze("))
        tried = client.submit("judging", as_of="2024-01-10", settings={"train.epochs": 2}, seeds=2, recipes=[mine])
        done = client.wait(tried, NIGHT_SECONDS)
        assert done.result is not None, done.failure
        training, other = (each.checkpoint for each in done.result.trainings)
        with pytest.raises(RefusedError, match=f"has several; name one of {training}, {other}"):
            client.register("judging", tried)
        with pytest.raises(RefusedError, match="model 'events': judging registers its versions as 'judging'"):
            client.register("events", tried, training=training)
        airflow.client.wait_for_dag("judging")
        airflow.client.unpause("judging")
        key, login = training.rpartition("/")[2], {"MLOPS_AIRFLOW_PASSWORD": password}
        asked = mlops(airflow, "register", key, "--user", user, "--json", **login)
        assert asked.returncode == 0, asked.stderr
        run_id = json.loads(asked.stdout)["run_id"]
        assert f"how it goes: mlops why judging {run_id}" in asked.stderr
        deadline = time.monotonic() + NIGHT_SECONDS
        while airflow.states(run_id, "judging").get("approve") != "awaiting_input":
            assert airflow.client.run("judging", run_id)["state"] != "failed", "\n".join(
                explain(airflow.client, "judging", run_id).sentences
            )
            assert time.monotonic() < deadline
            time.sleep(0.3)
        version = ModelVersionRef.from_wire(airflow.client.xcom("judging", run_id, "register"))
        assert version.ancestor(CheckpointRef).place == training
        assert version.parent.place.startswith("pipelines/judging/evaluate/")
        result = client.run(f"judging@{run_id}").result  # though the approver's answer is still to come
        assert result is not None
        (judged,) = result.trainings
        assert (judged.checkpoint, judged.passed, judged.reason) == (training, True, version.parent.reason)
        assert judged.report is not None
        assert httpx.get(judged.report).status_code in (200, 401), "it is Airflow's page"
        assert {each.name for each in (airflow.stack.store / "pipelines/judging").iterdir()} == {"evaluate", "register"}
        events = airflow.client.every("/assets/events", "asset_events", source_dag_id="judging")
        assert not events, "nobody hears of a snapshot that the run has not made"
        asked_for = airflow.client.question("judging", run_id, "approve")["body"]
        assert f"**It is of an experiment of {training.split('/')[1]}**" in asked_for
        again = mlops(airflow, "register", training, "--user", user, **login)
        assert again.returncode == 1
        assert f"was given to the run {run_id} of judging" in again.stdout
        assert client.register("judging", tried, training=training).id == f"judging@{run_id}", "it is the same one"
        # One at a time: the other begins when this has ended.
        second = client.register("judging", tried, training=other)
        assert (second.state, second.asked) == ("queued", {"judged_experiment": other})
        client.cancel(second)
        stays = mlops(airflow, "runs", "remove", "/".join(training.split("/")[1:3]), "--delete")
        assert f"stays: {version.parent.place} judged what was made from experiments/" in stays.stderr
        assert "IDENTICAL" in mlops(airflow, "reproduce", f"judging/{version.version}").stdout

        waiting = client.ask_stage("judging", version.version)
        assert (waiting.stage, waiting.is_done, waiting.approvers) == ("staging", False, ["vera"])
        assert (waiting.run, waiting.waits_for) == (
            f"judging@{run_id}", f"an answer to: {form(airflow, run_id, 'judging')['subject']}",
        )  # fmt: skip
        assert waiting.question == f"{waiting.airflow}/tasks/approve/required_actions"
        posted = told.hook.wait_for(lambda each: each["event"] == "approval" and each["run_id"] == run_id)
        assert posted["links"]["Answer"] == waiting.question
        assert posted["message"] == form(airflow, run_id, "judging")["subject"]
        assert asked_for.partition("](")[0] in posted["question"]
        late = told.hook.wait_for(lambda each: each["event"] == "late" and each["run_id"] == run_id)
        assert late["message"].endswith("UTC, and is running."), "it waits for an approver"
        told.hook.wait_for(lambda each: each["run_id"] == run_id and " 0.002 h after" in each["message"])
        assert "/escalated" in told.hook.paths
        first, *_ = client.tonight()
        (question,) = first.questions
        assert (first.name, first.standing) == ("judging", "asked")
        assert (question.address, question.approvers) == (waiting.question, ["vera"])
        shown = mlops(airflow, "tonight", "--user", user, **login)
        assert "Put version" in shown.stdout.replace("\n", " ")
        assert waiting.question in shown.stdout
        _see_tonight(airflow, waiting.question)
        assert airflow.aliases("judging") == {"staging": version.version}, "asking moves nothing"
        with pytest.raises(RefusedError, match="is in staging: answer it with Reject at /dags/judging/runs/"):
            client.ask_stage("judging", version.version, "archived")
        # The run's signature says which run it was, and what is told to be done does it.
        client.cancel(f"judging@{run_id}")
        with pytest.raises(RefusedError, match=f"run judging@{run_id} has ended as failed.* clear "):
            client.ask_stage("judging", version.version)
        cleared: dict[str, Any] = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": ["approve"],
            "include_downstream": True,
        }
        cleared |= {"only_failed": False, "reset_dag_runs": True}
        airflow.client.request("POST", "/dags/judging/clearTaskInstances", json=cleared)
        form(airflow, run_id, "judging")
        place = f"/dags/judging/dagRuns/{run_id}"
        airflow.client.request("PATCH", place, json={"note": "vera's last word"})
        answer(airflow, "vera", run_id, "Approve", "ship it", "judging")
        assert airflow.client.wait("judging", run_id, NIGHT_SECONDS) == "success"
        assert client.ask_stage("judging", version.version).is_done
        assert "vera's last word" in airflow.client.run("judging", run_id)["note"], "a person's note stays"
        _compare(client, airflow, _judge_weights(client, airflow, elsewhere, version))
    finally:
        client.close()
        path.unlink()


def _see_tonight(airflow: LiveAirflow, question: str) -> None:
    """Whoever is on call sees on a phone what waits for whom, and is one click away from the form."""
    assert httpx.get(f"{airflow.stack.airflow_url}/mlops/api/v1/tonight").status_code == 401
    module = httpx.get(f"{airflow.stack.airflow_url}/mlops/pages/tonight.js")
    assert (module.status_code, module.headers["cache-control"]) == (200, "no-cache")
    for width, scheme in ((400, "dark"), (1400, "light")):
        with page_at(airflow, "/plugin/mlops-tonight", width=width, scheme=scheme) as page:  # type: ignore[arg-type]
            line = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="judging", exact=True))
            line.get_by_text("waits for an answer").wait_for()
            assert page.get_by_role("status").get_by_text(re.compile(r"\d+ of \d+ needs? a person")).is_visible()
            assert line.get_by_text("May answer: vera").is_visible()
            assert line.get_by_role("link", name="Answer").get_attribute("href") == question
            assert page.get_by_role("listitem").first.get_by_role("link", name="judging", exact=True).is_visible(), (
                "it comes first"
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is cut off"
            keep(page, f"tonight_{width}_{scheme}")


def _watch_night(airflow: LiveAirflow, day: int) -> str:
    """A night from its beginning to its end, on pages that nobody loads again."""
    with page_at(airflow, "/plugin/mlops-tonight") as page:
        name = page.get_by_role("link", name="events", exact=True)
        line = page.get_by_role("listitem").filter(has=name)
        line.wait_for()
        airflow.hold("train", 5.0)
        airflow.hold("step", 1.0)
        run_id = airflow.trigger(day)
        line.get_by_text("running", exact=True).wait_for()
        while not (airflow.states(run_id).get("train") == "running" and airflow.links(run_id, "train")["Curves"]):
            assert airflow.states(run_id).get("train") != "success", "a training leads to its curves from its beginning"
            time.sleep(0.1)
        airflow.hold("train", 0.0)
        # In slow motion.
        bar = line.get_by_role("progressbar", name=re.compile("^Progress: events 2024-01"))
        bar.wait_for()
        line.get_by_text(re.compile(r"[1-9]\d* of \d+ steps, loss .*, up to \d+ s left, goodput \d+ %")).wait_for()
        keep(page, "training_1400_light")
        said = explain(airflow.client, "events", run_id).sentences
        assert said[0].startswith("train is running")
        assert re.fullmatch(r"events 2024-01-12: \d+ of 15 steps, loss .*, up to .* left, goodput \d+ %\.", said[1]), (
            said
        )
        name.click()
        page.set_viewport_size({"width": 400, "height": 900})
        page.get_by_role("progressbar", name=re.compile("^Progress: events 2024-01")).wait_for()
        keep(page, "training_400_light")
        airflow.hold("step", 0.0)
        page.get_by_role("img", name=re.compile("^validation")).first.wait_for()
        verdict = re.compile(r"^(Nothing goes into production|Version \d+ of events is in production)")
        page.get_by_text(verdict).first.wait_for(timeout=1000 * NIGHT_SECONDS)
    return run_id


def _see_night(airflow: LiveAirflow, run_id: str, reason: str) -> None:
    """What came of a night, how it trained, and what it was measured at, on one page, also on a phone."""
    night = quote(f"events@{run_id}", safe="")
    for path, width, scheme in (
        (f"/plugin/mlops-tonight/{night}", 400, "dark"),
        (f"/dags/events/runs/{run_id}/plugin/mlops-run", 1400, "light"),
    ):
        with page_at(airflow, path, width=width, scheme=scheme) as page:  # type: ignore[arg-type]
            page.get_by_role("img", name=re.compile("^validation")).first.wait_for()
            assert page.get_by_text(reason).first.is_visible()
            steps = page.get_by_role("list", name="Steps").get_by_role("listitem")
            assert [step.split("\n")[0] for step in steps.all_inner_texts()][:2] == ["ingest", "validate"]
            assert page.get_by_role("columnheader", name="version 1, the champion").is_visible()
            assert page.get_by_role("columnheader", name="difference").is_visible()
            report = page.get_by_role("link", name="Report: evaluate").get_attribute("href")
            assert report is not None
            assert "<html" in httpx.get(report, headers={"Authorization": airflow.client.authorization}).text[:200]
            assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is cut off"
            keep(page, f"run_{width}_{scheme}")
            page.get_by_text("Checkpoints:").click()
            page.get_by_text(", the best").wait_for()
    with page_at(airflow, "/dags/events/plugin/mlops-model") as page:
        page.get_by_role("link", name=re.compile("ndcg@10 .* to ")).first.wait_for()
        page.get_by_role("heading", name="Versions of events").wait_for()
        assert page.get_by_text(reason).first.is_visible()
        keep(page, "model_1400_light")


def _compare(client: Client, airflow: LiveAirflow, report: ReportRef) -> None:
    """
    The champion beside what was judged after it, by programs and on the page.

    :param report: becomes version 2, as a night would have registered it whose gate lets it pass
    """
    (first,) = airflow.model_versions("judging")
    tags = {tag["key"]: tag["value"] for tag in first["tags"]} | {"mlops.ref": json.dumps(report.to_wire())}
    tags.pop("mlops.stage")
    version = {
        "name": "judging", "source": f"runs:/{first['run_id']}/model", "run_id": first["run_id"],
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }  # fmt: skip
    api = f"{airflow.stack.mlflow_url}/api/2.0/mlflow"
    httpx.post(f"{api}/model-versions/create", json=version, auth=airflow.stack.mlflow_admin).raise_for_status()
    found = client.compare_versions("judging", 2)
    assert (found.before, found.after) == ("2", "1")
    parts = {part.name: part for part in found.parts}
    assert [each.what for each in parts["data"].differences] == ["features"], "by other code, of the same snapshot"
    assert "layer(features).squeeze(-1)\n+        return self.layer(features).mul(2)" in parts["code"].patch
    told = {each.what: (each.before, each.after) for each in parts["parameters"].differences}
    assert told["train.epochs"] == ("0", "2")
    with page_at(airflow, "/dags/judging/plugin/mlops-model") as page:
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("row", name=re.compile(r"^train\.epochs")).wait_for()
        assert page.get_by_label("Files of the recipe").get_by_text("mul(2)").is_visible()
        assert page.get_by_role("columnheader", name="version 1").first.is_visible()
        keep(page, "compare_1400_light")


def _judge_weights(client: Client, airflow: LiveAirflow, elsewhere: Path, champion: ModelVersionRef) -> ReportRef:
    """
    Those of the champion, as if they had been trained elsewhere: they are no better, and measured to be as good.

    :return: how they were judged
    """
    data = (airflow.stack.store / champion.ancestor(CheckpointRef).artifacts["weights"].key).read_bytes()
    (elsewhere / "weights.pt").write_bytes(data)
    with pytest.raises(
        RefusedError, match=f"artifact.uri /etc/passwd: experiments may read what lies below {elsewhere}"
    ):
        client.register_artifact("judging", "/etc/passwd")
    pinned = f"train.initialise={{path: {elsewhere}/weights.pt, sha256: '{hashlib.sha256(data).hexdigest()}'}}"
    given = ("--set", "train.epochs=0", "--set", "tune=null", "--set", pinned)
    tried = mlops(airflow, "run", "judging", "--json", "--as-of", "2024-01-10", "--name", "given", *given)
    assert tried.returncode == 0, tried.stderr
    assert json.loads(tried.stdout)["trainings"][0]["epoch"] == 0, "in a terminal, too"
    said: dict[str, Any] = {"version": "3.1", "metrics": {"ndcg@10": 0.99}, "as_of": "2024-01-10"}
    uri = f"{elsewhere}/weights.pt"
    asked = client.register_artifact("judging", uri, **said, idempotency_key="once")
    assert client.register_artifact("judging", uri, **said, idempotency_key="once").id == asked.id
    judged = client.wait(asked, NIGHT_SECONDS)
    assert judged.result is not None, judged.failure
    (training,) = judged.result.trainings
    assert (training.epoch, training.champion, training.passed) == (0, champion.version, False), training.reason
    assert training.metrics is not None
    assert training.metrics["candidate.ndcg@10"] == training.metrics["champion.ndcg@10"], "it is the same model"
    taken = CheckpointRef.from_wire(airflow.client.xcom("judging", judged.id.partition("@")[2], "train"))
    assert taken.artifacts["weights"].sha256 == hashlib.sha256(data).hexdigest()
    return ReportRef.from_wire(airflow.client.xcom("judging", judged.id.partition("@")[2], "evaluate"))


def test_a_pipeline_without_approval_takes_no_experiment(airflow: LiveAirflow, first_night: str) -> None:
    """Broken: what nobody has reviewed would go live by itself."""
    assert airflow.login is not None
    user, password = airflow.login
    tried = mlops(airflow, "run", "events", "--json", "--as-of", "2024-01-10", "--set", "train.epochs=2")
    training = json.loads(tried.stdout)["trainings"][0]["checkpoint"]
    asked = mlops(airflow, "register", training, "--user", user, MLOPS_AIRFLOW_PASSWORD=password)
    assert asked.returncode == 1
    assert "events takes no experiments" in asked.stdout
    airflow.client.trigger("events", "forced", None, {"judged_experiment": training})
    assert airflow.client.wait("events", "forced", NIGHT_SECONDS) == "failed"
    found = explain(airflow.client, "events", "forced").sentences[0]
    assert "was triggered with 'judged_experiment', which is no parameter of this pipeline" in found


def test_the_doctor_knows_the_deployment(airflow: LiveAirflow, first_night: str) -> None:
    assert airflow.login is not None
    user, password = airflow.login
    done = mlops(airflow, "doctor", "--json", "--user", user, MLOPS_AIRFLOW_PASSWORD=password)
    found = {(each["subject"], each["found"]): each["state"] for each in json.loads(done.stdout)}
    assert done.returncode == 0, found
    for login in ("steps", "release", "reader"):
        assert [state for (_, said), state in found.items() if said.endswith(f"knows {login!r}")] == ["ok"]
    assert found[("Airflow", f"{airflow.stack.airflow_url} is healthy")] == "ok"
    assert set(found.values()) <= {"ok", "warning"}
    nobody = mlops(airflow, "doctor")
    assert "its DAGs cannot be asked for" in nobody.stdout
    assert "name yourself by --user" in nobody.stdout


def test_reports_address_reads_nothing_else(airflow: LiveAirflow, first_night: str) -> None:
    """The route must not become a way to read the store, or the disk."""
    for key in ("pipelines/events/ingest/../../../x", "blobs/sha256/aa/aa", "..%2f..%2fairflow.db", "pipelines/events"):
        page = httpx.get(
            f"{airflow.stack.airflow_url}/mlops/reports/{key}", headers={"Authorization": airflow.client.authorization}
        )
        assert page.status_code == 404, key
    for page_of_the_api in ("docs", "redoc", "openapi.json"):  # FastAPI shows them without a login
        assert httpx.get(f"{airflow.stack.airflow_url}/mlops/{page_of_the_api}").status_code == 404


def test_sensors_return_the_refs_they_waited_for(airflow: LiveAirflow, first_night: str) -> None:
    assert airflow.client.wait("waiting", "early", NIGHT_SECONDS) == "success", airflow.states("early", "waiting")
    assert airflow.client.xcom("waiting", "early", "compare") is True


def test_another_dag_is_started_by_the_new_version(airflow: LiveAirflow, first_night: str) -> None:
    (run,) = airflow.client.request("GET", "/dags/listening/dagRuns")["dag_runs"]
    assert airflow.client.wait("listening", run["dag_run_id"], NIGHT_SECONDS) == "success"
    assert airflow.client.xcom("listening", run["dag_run_id"], "told") == 1
    source = {"source_dag_id": "events", "source_run_id": first_night, "source_task_id": "promote"}
    (event,) = airflow.client.request("GET", "/assets/events", params=source)["asset_events"]
    assert list(event["extra"]) == ["version", "semantic_version", "metrics", "reason", "ref"]
    assert (event["extra"]["version"], list(event["extra"]["metrics"])) == ("1", ["ndcg@10"])


def test_trigger_form_overrides_one_run(airflow: LiveAirflow, first_night: str) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        airflow.trigger(11, conf={"epochs": 0})
    mistyped = airflow.trigger(16, conf={"epoch": 1})
    assert airflow.client.wait("events", mistyped, NIGHT_SECONDS) == "failed"
    assert airflow.client.tasks("events", mistyped)["ingest"]["try_number"] == 1, "no retry makes it right"
    run_id = airflow.trigger(11, conf={"epochs": 1, "window": 5, "learning_rate": 0.02})
    assert airflow.client.wait("events", run_id, NIGHT_SECONDS) == "success", airflow.states(run_id)
    dataset = DatasetRef.from_wire(airflow.client.xcom("events", run_id, "ingest"))
    assert dataset.num_rows == 500
    checkpoint = CheckpointRef.from_wire(airflow.client.xcom("events", run_id, "train"))
    run = next(r for r in airflow.training_runs() if r["info"]["run_id"] == checkpoint.tracking_run)
    params = {param["key"]: param["value"] for param in run["data"]["params"]}
    assert (params["epochs"], params["learning_rate"]) == ("1", "0.02")


def test_judged_against_the_champion_on_the_same_rows(airflow: LiveAirflow, told: People, first_night: str) -> None:
    """The second night exists to find out whether it is better; that it ran is no reason to replace the champion."""
    run_id = _watch_night(airflow, 12)
    assert airflow.client.wait("events", run_id, NIGHT_SECONDS) == "success", airflow.states(run_id)
    report: dict[str, Any] = airflow.client.xcom("events", run_id, "evaluate")
    assert report["champion"] is not None
    for step in ("register", "promote"):
        assert airflow.states(run_id)[step] == ("success" if report["passed"] else "skipped")
    verdict, _, changed, *_ = explain(airflow.client, "events", run_id).sentences
    if report["passed"]:
        assert changed.endswith(" of events was put into production.")
    else:
        assert verdict == f"The evaluation did not pass: {report['reason']}"
        assert changed == f"register was skipped, and what follows it: not registered: {report['reason']}"
    posted = told.hook.wait_for(lambda each: each["run_id"] == run_id)
    assert posted["event"] == ("promoted" if report["passed"] else "stopped")
    assert report["reason"] in posted["message"]
    said = posted["message"] if report["passed"] else f"Nothing goes into production: {posted['message']}"
    assert airflow.client.run("events", run_id)["note"].split("\n\n")[0] == said
    _see_night(airflow, run_id, report["reason"])


@pytest.mark.usefixtures("restore_events")
def test_bad_data_stops_the_pipeline_before_training(airflow: LiveAirflow, told: People, first_night: str) -> None:
    write_events(airflow.home / "data/events.csv", rows_of_last_day=40)
    message = fail(airflow, 15, "validate")
    assert "2024-01-14 has 40 rows, 2024-01-07 had 100: ratio 0.400 is outside 0.8 .. 1.2" in message
    states = airflow.states("night_15")
    assert {states[step] for step in ("features", "train", "evaluate", "register", "promote")} == {"upstream_failed"}
    address = f"{airflow.stack.airflow_url}/{airflow.links('night_15', 'validate')['Report']}"
    page = httpx.get(address, headers={"Authorization": airflow.client.authorization})
    assert "0.400" in page.text
    posted = told.hook.wait_for(lambda each: each["run_id"] == "night_15")
    assert (posted["event"], posted["task_id"], posted["message"]) == ("failed", "validate", message)
    assert posted["links"]["Report"] == address
    assert [each["event"] for each in told.hook.posted if each["run_id"] == "night_15"] == ["failed"], "once"
    assert airflow.login is not None
    with Client(airflow.stack.airflow_url, *airflow.login) as client:
        (events,) = [each for each in client.tonight() if each.name == "events"]
        verdict = client.verdict("events@night_15")
    assert verdict.happened == f"validate failed: {message}"
    assert verdict.last_good is not None
    assert verdict.last_good.run.startswith("events@")
    assert verdict.changes is not None
    assert any(each.startswith("rows of ingest") for each in verdict.changes), verdict.changes
    assert verdict.action.startswith("read the report of validate. If the data is wrong")
    assert verdict.action in posted["action"], "the message says the same"
    note = airflow.client.run("events", "night_15")["note"]
    assert note.startswith(f"validate failed: {message[:200]}")
    assert verdict.action in note
    assert (events.run, events.standing) == ("events@night_15", "failed")
    assert events.said.startswith("validate failed: ")
    with page_at(airflow, "/plugin/mlops-tonight", width=400) as page:
        page.get_by_role("link", name="events", exact=True).click()
        page.get_by_role("list", name="Steps").wait_for()
        assert page.get_by_text("2024-01-14 has 40 rows").first.is_visible()
        sentences = page.get_by_role("list", name="Verdict").get_by_role("listitem").all_inner_texts()
        assert sentences == verdict.sentences
        keep(page, "incident_400_light")
        assert page.get_by_role("link", name="Report: validate").get_attribute("href") == posted["links"]["Report"]
        page.get_by_role("link", name="All pipelines").click()
        page.get_by_role("heading", name="Tonight").wait_for()


@pytest.mark.usefixtures("restore_events")
def test_missing_source_file(airflow: LiveAirflow, told: People) -> None:
    """Whom it cannot tell changes nothing: Airflow takes a task that goes on after its end for one that was lost."""
    (airflow.home / "data/events.csv").unlink()
    told.hook.released.clear()
    try:
        message = fail(airflow, 9, "ingest")
    finally:
        told.hook.released.set()
    told.mailbox.wait_for("events: ingest failed (night_9)")
    assert "events" in message
    assert str(airflow.home / "data/events.csv") in message


@pytest.mark.usefixtures("restore_events")
def test_missing_column(airflow: LiveAirflow) -> None:
    path = airflow.home / "data/events.csv"
    path.write_text(path.read_text().replace("at,query", "time,query", 1))
    message = fail(airflow, 8, "ingest")
    assert "'at'" in message
    assert "time" in message, "the columns that are there"


def test_empty_day(airflow: LiveAirflow) -> None:
    assert "2024-01-18" in fail(airflow, 19, "ingest")


def test_names_that_are_not_there_are_told_before_anything_is_stored(airflow: LiveAirflow) -> None:
    """Broken: each would cost the steps before it, and all that follow it another run."""
    text = (airflow.home / "dags/events.pipeline.yaml").read_text()
    text = text.replace("pipeline: events", "pipeline: typo").replace("model:build_model", "modle:build_model")
    text = text.replace("features:FEATURES", "features:FEATURE")
    (airflow.home / "dags/typo.pipeline.yaml").write_text(text)
    message = fail(airflow, 10, "ingest", dag_id="typo")
    assert "- train.model: 'include.events.modle:build_model': there is no file include/events/modle.py" in message
    assert "'include.events.features:FEATURE': include/events/features.py has no 'FEATURE'; did you mean" in message


def test_broken_yaml_is_shown_and_spares_the_others(airflow: LiveAirflow, first_night: str) -> None:
    """One team's typo must not take everyone's pipelines out of service."""
    broken = airflow.home / "dags/broken.pipeline.yaml"
    text = (airflow.home / "dags/events.pipeline.yaml").read_text()
    broken.write_text(text.replace("pipeline: events", "pipeline: broken").replace("epochs: 3", "epochs: -1"))
    try:
        error = airflow.wait_for_import_errors(1)[0]["stack_trace"]
        assert "broken.pipeline.yaml:27:11: train.epochs must be >= 0, got -1" in error
        dag = airflow.client.request("GET", "/dags/events")
        assert not dag["is_stale"]
        assert not dag["has_import_errors"]
        assert airflow.client.wait("events", airflow.trigger(14, conf={"epochs": 1}), NIGHT_SECONDS) == "success"
    finally:
        broken.unlink()
    airflow.wait_for_import_errors(0)


def test_many_write_to_airflow_at_once(airflow: LiveAirflow) -> None:
    """Broken: on SQLite the API server waits for itself, minutes in which nobody gets an answer, and then fails."""

    def write(number: int) -> str | None:
        for value in range(20):
            airflow.client.set_variable(f"written_{number}", str(value), "by several at once")
        return airflow.client.variable(f"written_{number}")

    with ThreadPoolExecutor() as several:
        assert list(several.map(write, range(4))) == ["19"] * 4


def test_a_training_goes_on_while_mlflow_is_away(airflow: LiveAirflow, first_night: str) -> None:
    """Broken: a restart of MLflow would cost a training, or the night."""
    airflow.hold("features", 5)
    try:
        run_id = airflow.trigger(13)
        airflow.wait_for_try(run_id, "features", 1)
        airflow.stack.kill("mlflow")
        airflow.wait_for_try(run_id, "train", 1)
    finally:
        airflow.hold("features", 0)
        airflow.start()
    assert airflow.client.wait("events", run_id, 2 * NIGHT_SECONDS) == "success", airflow.states(run_id)
