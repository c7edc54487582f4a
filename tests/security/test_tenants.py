"""
Team search against team ads: by pipelines, DAGs, runs, commands, keys of the store, logins at MLflow, code of a step.

One deployment for the whole file (see tests/tenants.py). Each attempt must be refused in the way that it names.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from botocore.exceptions import ClientError
from other_users import OTHER_USER, USER, open_folder
from tenants import PEOPLE, World, pipeline_of, world
from turns import on_turn

from mlops.client import Client, RefusedError
from mlops.contract.refs import CheckpointRef, DatasetRef, ValidationRef
from mlops.signing.seals import entry_key

pytestmark = on_turn(1, 2)

Attempt: TypeAlias = Callable[[World], str]
"""What came of it, in words."""
ATTEMPTS: dict[str, tuple[Attempt, str]] = {}
"""By name: what is done, and the refusal that it must get, a pattern."""
ADS = "ads_events"


def attempt(name: str, refusal: str) -> Callable[[Attempt], Attempt]:
    def note(function: Attempt) -> Attempt:
        assert name not in ATTEMPTS
        ATTEMPTS[name] = function, refusal
        return function

    return note


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made


@pytest.fixture(scope="module")
def tenants(folder: Path, new_airflow: Callable[..., Any]) -> Iterator[World]:
    with world(new_airflow, folder) as made:
        yield made


@pytest.mark.timeout(1800)
def test_team_ads_releases_a_model(tenants: World) -> None:
    """Broken: what keeps others out keeps the team out. Its steps ran as its user, with its store and its logins."""
    assert "403" in answer_its_form(tenants), "while it waits for an answer; later it has one"
    tenants.release()
    aliases = tenants.mlflow("reader", "ads", "ads").get("/api/2.0/mlflow/registered-models/get", params={"name": ADS})
    assert {each["alias"]: each["version"] for each in aliases.json()["registered_model"]["aliases"]}["champion"] == "1"
    log = tenants.log(ADS, "night_14", "promote")
    assert "signed entry" in log
    report = tenants.version.parent.artifacts["report"].key
    page = httpx.get(
        f"{tenants.airflow.stack.airflow_url}/mlops/reports/{report}",
        headers={"Authorization": tenants.person("ads").authorization},
        timeout=60,
    )
    assert "<html" in page.text[:200], "the page is read from the team's store"
    tasks = f"/dags/{ADS}/dagRuns/night_14/taskInstances"
    links = [
        tenants.airflow.client.request("GET", f"{tasks}/{task}/links")["extra_links"][name]
        for task, name in (("train", "MLflow run"), ("promote", "MLflow model version"))
    ]
    own = ("?workspace=ads", "&workspace=ads")
    assert all(link.endswith(own) for link in links), "MLflow would look in another workspace"
    bucket = tenants.store("ads").list_objects_v2(Bucket="ads")["Contents"]
    assert {each["Key"].split("/")[1] for each in bucket} >= {"blobs", "models", "pipelines"}
    assert not any((tenants.airflow.stack.store).glob("**/*ads*")), "nothing of the team's is in the deployment's store"


@pytest.mark.timeout(1800)
def test_no_attempt_succeeds(tenants: World, subtests: pytest.Subtests) -> None:
    """Broken: a team reads, changes, releases or takes back what is another one's."""
    assert len(ATTEMPTS) >= 30
    before = tenants.state()
    refused = 0
    for name, (function, refusal) in ATTEMPTS.items():
        with subtests.test(msg=name):
            got = function(tenants)
            found = re.search(refusal, got, re.DOTALL)
            assert found, f"{name}: {got}"
            print(f"{name}: ...{got[max(0, found.start() - 60) : found.end() + 120]}")
            refused += 1
    assert tenants.state() == before
    assert refused == len(ATTEMPTS)


@pytest.mark.timeout(900)
def test_what_is_refused_to_search_is_open_to_ads(tenants: World) -> None:
    """Broken: the attempts fail for another reason than whose they are."""
    ref = tenants.version.parent.parent
    blob = ref.ancestor(DatasetRef).artifacts["manifest"].key
    assert tenants.store("ads").get_object(Bucket="ads", Key=f"mlops/{blob}")["Body"].read()
    run = tenants.mlflow("steps", "ads", "ads").get("/api/2.0/mlflow/runs/get", params={"run_id": ref.tracking_run})
    assert run.status_code == 200
    code, said = tenants.mlops("models", "history", ADS, "--team", "ads", connections_of="ads")
    assert (code, "promote" in said) == (0, True), said
    code, said = tenants.mlops("datasets", "list", ADS, "--team", "ads", connections_of="ads")
    assert (code, ADS in said) == (0, True), said
    uid = pwd.getpwnam(OTHER_USER).pw_uid
    assert probe(tenants)["uid"] == uid
    assert probe(tenants)["own store"].startswith("DONE")
    assert "A_SECRET_OF_THE_WORKER" not in probe(tenants)["environment"]
    assert not [name for name in probe(tenants)["environment"] if "AIRFLOW" in name]


@pytest.mark.timeout(900)
def test_programs_find_each_team_in_its_own_place(tenants: World) -> None:
    """Broken: REST would look in the deployment's own store and workspace, or show one team's model as another's."""
    ref = tenants.version.parent.ancestor(DatasetRef)
    token = tenants.person("ads").authorization.removeprefix("Bearer ")
    with Client(tenants.airflow.stack.airflow_url, token=token) as client:
        before = client.models()
        (model,) = [each for each in before if each.name == ADS]
        assert (model.pipeline, model.aliases["champion"]) == (ADS, "1")
        assert client.model_version(ADS).dataset_version == ref.version
        assert client.ask_stage(ADS, 1).is_done
        with pytest.raises(RefusedError, match=f"no former champion of {ADS} to go back to, version 1 is the first"):
            client.rollback(ADS, "mine")
        assert [each.version for each in client.snapshots(ADS)] == [ref.version]
        assert client.snapshot(ADS, ref.version).place == ref.place
        assert ADS in {each.name for each in client.datasets()}
        # In its own workspace team search may call a model as it likes, and write any tag.
        release = tenants.mlflow("release", "search", "search")
        api = "/api/2.0/mlflow"
        release.post(f"{api}/registered-models/create", json={"name": ADS}).raise_for_status()
        forged = {"name": ADS, "source": "s3://search/mlops/models/x", "tags": [{"key": "mlops.dataset", "value": ADS}]}
        for _ in range(2):
            release.post(f"{api}/model-versions/create", json=forged).raise_for_status()
        assert client.models() == before
        assert [each.version for each in client.model_versions(ADS)] == ["1"]


# By a pipeline's file.


def lint(world: World, old: str, new: str, folder: str = "search") -> str:
    text = pipeline_of("search", PEOPLE["search"])
    assert old in text
    path = world.airflow.home / "dags" / folder / "tried" / "search_events.pipeline.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace(old, new))
    try:
        code, said = world.mlops("lint", str(path))
    finally:
        path.unlink()
    assert code == 1, said
    return " ".join(said.split())


@attempt("name the team in a file", "the file is one of team 'search', and may not name team 'ads'")
def _(world: World) -> str:
    return lint(world, "team: search", "team: ads")


@attempt("evaluate against its model", "evaluate.registered_model: 'ads_events' is no name of team 'search'")
def _(world: World) -> str:
    return lint(world, "registered_model: search_events", f"registered_model: {ADS}")


@attempt("have its approver approve", "promote.approval.approvers.0: 'anna' is no approver of team 'search'")
def _(world: World) -> str:
    return lint(world, f"approvers: [{PEOPLE['search']}]", f"approvers: [{PEOPLE['ads']}]")


@attempt("mount its Secret", "pods.all.env_from_secrets.0: 'ads-keys' is no Secret of team 'search'")
def _(world: World) -> str:
    return lint(world, "\ntrain:", "\npods: {all: {env_from_secrets: [ads-keys]}}\n\ntrain:")


@attempt("run as its service account", "pods.all.service_account: got 'ads-steps'")
def _(world: World) -> str:
    return lint(world, "\ntrain:", "\npods: {all: {service_account: ads-steps}}\n\ntrain:")


@attempt("read the team's database in a pipeline", "'ads_warehouse' is no Airflow connection of team 'search'")
def _(world: World) -> str:
    source = '{kind: sql, connection: ads_warehouse, query: "select 1", event_time: at}'
    return lint(world, "    events: {path", f"    stolen: {source}\n    events: {{path")


@attempt("have the store's keys in a pipeline", "'ads_store' is no Airflow connection of team 'search'")
def _(world: World) -> str:
    source = '{kind: sql, connection: ads_store, query: "select 1", event_time: at}'
    return lint(world, "    events: {path", f"    stolen: {source}\n    events: {{path")


@attempt("have the store's keys rendered into a pipeline", "model_args.key: a template can read every connection")
def _(world: World) -> str:
    return lint(world, "  epochs: 1", "  epochs: 1\n  model_args: {key: '{{ conn.ads_store.password }}'}")


# By a DAG in its own folder.


@attempt("name the team in a DAG", "the file is one of team 'search', and may not name team 'ads'")
def _(world: World) -> str:
    errors = world.airflow.client.request("GET", "/importErrors")["import_errors"]
    return "\n".join(error["stack_trace"] for error in errors)


def attacked(world: World, task: str) -> str:
    """The log of a task of the DAG search_attacks, to whom ads' refs were handed as XComs."""
    run = f"attack_{world.airflow.stack.airflow_port}"
    if world.airflow.client.run("search_attacks", run) is None:
        report = world.version.parent
        refs = {"version": world.version.to_wire(), "validation": report.ancestor(ValidationRef).to_wire()}
        world.run(world.person("search"), "search_attacks", run, refs)
    assert world.airflow.states(run, "search_attacks")[task] == "failed"
    return world.log("search_attacks", run, task)


@attempt(
    "promote the version that an edited XCom names", "the input is about a model of others: 'ads_events' is no name"
)
def _(world: World) -> str:
    return attacked(world, "promote")


@attempt("train on the snapshot that an edited XCom names", r"s3://search/mlops.*(no|not|missing)|nothing is committed")
def _(world: World) -> str:
    return attacked(world, "features")


@attempt("wait for the snapshot", "'ads_events' is no name of team 'search'")
def _(world: World) -> str:
    return attacked(world, "dataset")


@attempt("wait for the model", "'ads_events' is no name of team 'search'")
def _(world: World) -> str:
    return attacked(world, "model")


# By a run, as berta, who may trigger every DAG.


def log_of_run(world: World, dag_id: str, run_id: str, task: str, conf: dict[str, Any]) -> str:
    assert world.run(world.person("search"), dag_id, run_id, conf) == "failed"
    return world.log(dag_id, run_id, task)


@attempt("trigger with the team as a parameter", "triggered with 'team', which is no parameter of this pipeline")
def _(world: World) -> str:
    return log_of_run(world, "search_events", "as_ads", "ingest", {"team": "ads"})


@attempt("roll back by its own DAG", "'ads_events' is no name of team 'search'")
def _(world: World) -> str:
    return log_of_run(world, "search_rollback", "r", "rollback", {"model": ADS, "why": "mine"})


@attempt("roll back by the deployment's DAG", "'ads_events' is a name of team 'ads'")
def _(world: World) -> str:
    return log_of_run(world, "rollback", "r", "rollback", {"model": ADS, "why": "mine"})


@attempt("roll back by the team's DAG", "'berta' is no approver of team 'ads', which has anna")
def _(world: World) -> str:
    return log_of_run(world, "ads_rollback", "r", "rollback", {"model": ADS, "why": "mine"})


@attempt("answer the form of the other team", "403|409")
def answer_its_form(world: World) -> str:
    version = world.version
    option = world.airflow.client.question(ADS, "night_14", "approve")["options"][0]
    assert version.version in option
    with pytest.raises(httpx.HTTPStatusError) as refused:
        world.person("search").answer(ADS, "night_14", "approve", option, {"why": "mine"})
    return str(refused.value)


# By the command line, with the connections of search.


@attempt("list its snapshots", "no |not |none")
def _(world: World) -> str:
    _, said = world.mlops("datasets", "list", ADS, "--team", "search")
    return said


@attempt("promote by the command line", "does not permit|403|Permission denied|no version|no transition|no audit")
def _(world: World) -> str:
    code, said = world.mlops("models", "promote", ADS, "1", "--why", "mine", "--team", "search")
    assert code
    return said


@attempt("roll back by the command line", "does not permit|403|Permission denied|no version|nothing|no audit")
def _(world: World) -> str:
    code, said = world.mlops("models", "rollback", ADS, "--why", "mine", "--team", "search")
    assert code
    return said


@attempt("be the other team by the command line", "Airflow has no connection 'ads_store'")
def _(world: World) -> str:
    code, said = world.mlops("models", "list", "--team", "ads")
    assert code
    return said


# With the keys of search, at the store.


def at_store(act: Callable[[Any], Any]) -> Attempt:
    def run(world: World) -> str:
        try:
            return f"DONE {act(world.store('search'))}"
        except ClientError as error:
            return str(error)

    return run


def of_ads(world: World, name: str) -> str:
    """Keys in the bucket of ads."""
    ref = world.version.parent
    keys = {
        "snapshot": ref.ancestor(DatasetRef).artifacts["manifest"].key,
        "checkpoint": next(iter(ref.ancestor(CheckpointRef).artifacts.values())).key,
        "report": f"{ref.place}/ref.json",
        "trail": entry_key(ADS, 1),
    }
    return f"mlops/{keys[name]}"


DENIED = "AccessDenied|Forbidden|403"


@attempt("list its bucket", DENIED)
def _(world: World) -> str:
    return at_store(lambda s3: s3.list_objects_v2(Bucket="ads"))(world)


@attempt("read its snapshot", DENIED)
def _(world: World) -> str:
    return at_store(lambda s3: s3.get_object(Bucket="ads", Key=of_ads(world, "snapshot")))(world)


@attempt("read its checkpoint", DENIED)
def _(world: World) -> str:
    return at_store(lambda s3: s3.get_object(Bucket="ads", Key=of_ads(world, "checkpoint")))(world)


@attempt("change its report", DENIED)
def _(world: World) -> str:
    return at_store(lambda s3: s3.put_object(Bucket="ads", Key=of_ads(world, "report"), Body=b"{}"))(world)


@attempt("delete an entry of its trail", DENIED)
def _(world: World) -> str:
    return at_store(lambda s3: s3.delete_object(Bucket="ads", Key=of_ads(world, "trail")))(world)


# With the logins of search, at MLflow.


def at_mlflow(
    world: World, purpose: str, method: str, path: str, body: Any = None, /, workspace: str | None = "ads", **query: str
) -> str:
    with world.mlflow(purpose, "search", workspace) as client:
        path = path if path[0] == "/" else f"/api/2.0/mlflow/{path}"
        content = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        answer = client.request(method, path, params=query, **content)
    return f"{answer.status_code} {answer.text}"


def run_of_ads(world: World) -> str:
    return world.version.parent.ancestor(CheckpointRef).tracking_run


FORBIDDEN = "^(403|404)"


@attempt("read its run", FORBIDDEN)
def _(world: World) -> str:
    return at_mlflow(world, "steps", "GET", "runs/get", run_id=run_of_ads(world))


@attempt("read its run from its own workspace", FORBIDDEN)
def _(world: World) -> str:
    return at_mlflow(world, "steps", "GET", "runs/get", workspace="search", run_id=run_of_ads(world))


@attempt("write to its run", FORBIDDEN)
def _(world: World) -> str:
    metric = {"key": "ndcg", "value": 1, "timestamp": 1, "step": 1}
    return at_mlflow(world, "steps", "POST", "runs/log-batch", {"run_id": run_of_ads(world), "metrics": [metric]})


@attempt("read its model", FORBIDDEN)
def _(world: World) -> str:
    return at_mlflow(world, "release", "GET", "registered-models/get", name=ADS)


def files_of_version(world: World) -> str:
    with world.mlflow("release", "ads", "ads") as client:
        path = "/api/2.0/mlflow/model-versions/get-download-uri"
        found = client.get(path, params={"name": ADS, "version": "1"}).json()
    return str(found["artifact_uri"]).removeprefix("mlflow-artifacts:/").lstrip("/")


@attempt("read the files of its version", FORBIDDEN)
def _(world: World) -> str:
    path = f"/api/2.0/mlflow-artifacts/artifacts/{files_of_version(world)}/library.zip"
    return at_mlflow(world, "release", "GET", path, workspace="search")


@attempt("replace the files of its version", FORBIDDEN)
def _(world: World) -> str:
    path = f"/api/2.0/mlflow-artifacts/artifacts/{files_of_version(world)}/library.zip"
    return at_mlflow(world, "release", "PUT", path, b"mine")


@attempt("move its champion", FORBIDDEN)
def _(world: World) -> str:
    body = {"name": ADS, "alias": "champion", "version": "1"}
    return at_mlflow(world, "release", "POST", "registered-models/alias", body)


@attempt("make a version of its model", FORBIDDEN)
def _(world: World) -> str:
    return at_mlflow(world, "release", "POST", "model-versions/create", {"name": ADS, "source": "runs:/x/model"})


@attempt("make its files a version of its own", FORBIDDEN)
def _(world: World) -> str:
    body = {"name": "search_events", "source": f"mlflow-artifacts:/{files_of_version(world)}"}
    return at_mlflow(world, "release", "POST", "model-versions/create", body, workspace="search")


@attempt("take a role of the other team", FORBIDDEN)
def _(world: World) -> str:
    body = {"username": "search-release", "role_id": 2}
    return at_mlflow(world, "release", "POST", "/api/3.0/mlflow/roles/assign", body)


# By code of a recipe, in a step of search.


def probe(world: World) -> dict[str, Any]:
    """What the recipe of search came to, in its step ``ingest``."""
    into = world.folder / "own_of_search/found.json"
    if world.airflow.client.run("search_events", "probe") is not None:
        return dict(json.loads(into.read_text()))
    local = world.airflow.stack.root
    told = {
        "into": str(into),
        "store": "s3://ads/mlops",
        "blob": of_ads(world, "snapshot").removeprefix("mlops/"),
        "checkpoint": of_ads(world, "checkpoint").removeprefix("mlops/"),
        "trail": entry_key(ADS, 1),
        "run": run_of_ads(world),
        "key": str(world.folder / "keys/ads.pem"),
        "own_key": str(local / "keys/release.pem"),
        "database": str(local / "airflow/airflow.db"),
        "secrets": str(local / "secrets.json"),
        "folder": str(world.folder / "own_of_ads"),
        "uid": pwd.getpwnam(USER).pw_uid,
        "warm": f"/tmp/mlops-{pwd.getpwnam(USER).pw_uid}/warm",
        "variables": f"{world.airflow.stack.airflow_url}/api/v2/variables",
    }
    (world.airflow.home / "probe.json").write_text(json.dumps(told))
    # As after each night, in which a step of ads had a warm runtime.
    Path(told["warm"]).parent.mkdir(mode=0o700, exist_ok=True)
    os.chown(Path(told["warm"]).parent, told["uid"], -1)
    world.airflow.client.wait_for_dag("search_events")
    world.airflow.client.unpause("search_events")
    world.person("search").trigger("search_events", "probe", world.airflow.night(13), {})
    try:
        world.wait_for_task("search_events", "probe", "ingest")
        assert into.exists(), world.log("search_events", "probe", "ingest")
    finally:
        world.airflow.client.request("PATCH", "/dags/search_events/dagRuns/probe", json={"state": "failed"})
        with contextlib.suppress(OSError):  # somebody has put something there
            Path(told["warm"]).parent.rmdir()
    return dict(json.loads(into.read_text()))


def by_code(name: str, refusal: str) -> None:
    attempt(f"by code: {name}", refusal)(lambda world: str(probe(world)[name]))


for thing in ("snapshot", "checkpoint", "trail"):
    by_code(thing, "PermissionDeniedError|AccessDenied|403")
by_code("run", "HTTPError: HTTP Error 40[13]")
for thing in (
    "release key", "key of the deployment", "Airflow's database", "Airflow's secrets", "files of the other user",
    "environment of Airflow", "memory of Airflow", "signal to Airflow", "warm runtime of the other user",
    "become the other user", "become root",
):  # fmt: skip
    by_code(thing, "^PermissionError")
by_code("Airflow's API", "HTTPError: HTTP Error 401")
