"""
Two teams that share a deployment: a real Airflow, MLflow with its login and workspaces, an S3 server that checks keys.

Team ads has trained a model and put it into production. Team search attacks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import httpx
from live_airflow import LiveAirflow
from other_users import OTHER_USER, USER, give, open_interpreter
from project import REPOSITORY
from releases import answer, client_of, form, wait_for
from services import s3_server

from mlops.contract.refs import ModelVersionRef
from mlops.contract.step import TRACKING_VARIABLES, python_path
from mlops.signing.keys import make_key
from mlops_provider.local.client import AirflowClient
from mlops_provider.logins import RIGHTS, Login

PEOPLE = {"ads": "anna", "search": "berta"}
USERS = {"ads": USER, "search": OTHER_USER}
TEAM = """\
  {team}:
    dags: [{team}]
    names: {team}_
    store: s3://{team}/mlops
    store_connection: {team}_store
    workspace: {team}
    steps_login: {team}_steps
    release_login: {team}_release
    reader_login: {team}_reader
    allowed_connections: [{team}_warehouse]
    kubernetes_namespace: {team}
    service_account: {team}-steps
    allowed_secrets: [{team}-keys]
    approvers: [{person}]
    release_key: {folder}/keys/{team}.pem
    run_as_user: {user}
"""
NIGHT = 14
NIGHT_SECONDS = 900


@dataclass
class World:
    airflow: LiveAirflow
    folder: Path
    s3: Mapping[str, str]
    keys: Mapping[str, tuple[str, str]]
    """Of the store, by team."""

    def person(self, team: str) -> AirflowClient:
        """Airflow's REST API, as the team's approver."""
        return client_of(self.airflow, PEOPLE[team])

    def store(self, team: str) -> Any:
        """S3, with the team's keys."""
        return s3_client(self.s3, self.keys[team])

    def mlflow(self, purpose: str, team: str, workspace: str | None) -> httpx.Client:
        """MLflow's REST API, with a login of the team's, in a workspace."""
        login = mlflow_login(purpose, team)
        return httpx.Client(
            base_url=self.airflow.stack.mlflow_url,
            auth=login.auth,
            headers={} if workspace is None else {"X-MLFLOW-WORKSPACE": workspace},
            timeout=60,
        )

    @cached_property
    def version(self) -> ModelVersionRef:
        """Of team ads, in production."""
        run_id = self.airflow.trigger(NIGHT, "ads_events")
        form(self.airflow, run_id, "ads_events")
        return ModelVersionRef.from_wire(self.airflow.client.xcom("ads_events", run_id, "register"))

    def release(self) -> None:
        """Anna approves."""
        answer(self.airflow, "anna", f"night_{NIGHT}", "Approve", "fine", "ads_events")
        state = self.airflow.client.wait("ads_events", f"night_{NIGHT}", NIGHT_SECONDS)
        assert state == "success", self.airflow.states(f"night_{NIGHT}", "ads_events")

    def state(self) -> list[Any]:
        """All of team ads that search might have changed."""
        objects = self.store("ads").list_objects_v2(Bucket="ads")["Contents"]
        release = self.mlflow("release", "ads", "ads")
        models = release.get("/api/2.0/mlflow/registered-models/search").json()
        versions = release.get("/api/2.0/mlflow/model-versions/search").json()
        run = self.version.parent.parent.tracking_run
        found = release.get("/api/2.0/mlflow/runs/get", params={"run_id": run}).json()["run"]
        return [[(each["Key"], each["ETag"]) for each in objects], models, versions, found]

    def run(self, client: AirflowClient, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run; its state in the end."""
        self.airflow.client.wait_for_dag(dag_id, timeout_seconds=180)
        self.airflow.client.unpause(dag_id)
        client.trigger(dag_id, run_id, self.airflow.night(NIGHT), dict(conf or {}))
        return self.airflow.client.wait(dag_id, run_id, NIGHT_SECONDS)

    def wait_for_task(self, dag_id: str, run_id: str, task_id: str) -> None:
        def ended() -> bool:
            return self.airflow.states(run_id, dag_id).get(task_id) in ("success", "failed")

        wait_for(ended, f"the end of {task_id}")

    def log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """With the errors, which Airflow's API gives apart."""
        folder = self.airflow.stack.root / f"airflow/logs/dag_id={dag_id}/run_id={run_id}/task_id={task_id}"
        return max(folder.glob("attempt=*.log")).read_text()

    def mlops(self, *arguments: str, connections_of: str = "search") -> tuple[int, str]:
        """The command line as a team has it: with the connections of its own; exit code and output."""
        stack = self.airflow.stack
        own = {
            "AIRFLOW_HOME": str(self.folder / "berta"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.airflow.home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__MLOPS__HOME": str(self.airflow.home),
            "AIRFLOW__MLOPS__STORE": f"file://{self.folder}/berta/store",
            "AIRFLOW__MLOPS__TRACKING_URI": stack.mlflow_url,
            "AIRFLOW__MLOPS__TEAMS_FILE": str(self.folder / "teams.yaml"),
            "PYTHONPATH": f"{python_path(REPOSITORY)}{os.pathsep}{REPOSITORY / 'plugins'}",
            "NO_COLOR": "1",
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            **connections(self.s3, {connections_of: self.keys[connections_of]}),
        }
        return run_mlops(own, *arguments)


@contextmanager
def world(new_airflow: Callable[..., LiveAirflow], folder: Path) -> Iterator[World]:
    """:param folder: that every user may enter; it must outlive what ``new_airflow`` makes, and stops"""
    python = REPOSITORY / ".venv/training/bin/python"
    with s3_server() as s3, open_interpreter(python):
        keys = make_buckets(s3)
        (folder / "keys").mkdir(mode=0o700)
        for team in PEOPLE:
            make_key(folder / f"keys/{team}.pem")
            give(folder / f"own_of_{team}", USERS[team])
        teams = "".join(
            TEAM.format(team=team, person=person, user=USERS[team], folder=folder) for team, person in PEOPLE.items()
        )
        (folder / "teams.yaml").write_text(f"teams:\n{teams}")
        airflow = new_airflow(
            with_login=True,
            mlflow_login=True,
            users=[*PEOPLE.values()],
            settings={
                "AIRFLOW__MLOPS__TEAMS_FILE": str(folder / "teams.yaml"),
                # Of another user it would stay for a while after the test.
                "AIRFLOW__MLOPS__WARM_RUNTIMES": "False",
                "A_SECRET_OF_THE_WORKER": "open sesame",
                **connections(s3, keys),
            },
            root=folder / "deployment",
            prepare=add_recipes,
        )
        make_all_logins(airflow)
        made = World(airflow, folder, s3, keys)
        assert made.version.name == "ads_events"
        yield made


def make_all_logins(airflow: LiveAirflow) -> None:
    """As MLflow's administrator does: the workspaces, users and rights of all teams."""
    admin = airflow.stack.mlflow_admin
    assert admin is not None
    who = dict(zip(TRACKING_VARIABLES, admin.auth, strict=True))
    code, said = run_mlops({**os.environ, **airflow.stack.environment(), **who}, "logins")
    assert code == 0, said
    assert "made workspace 'ads'" in said


def run_mlops(environment: Mapping[str, str], *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(REPOSITORY / ".venv/airflow/bin/python"), "-m", "mlops_provider.cli", *arguments],
        env=environment,
        cwd=REPOSITORY,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout


def add_recipes(home: Path) -> None:
    """Each team's folder, with a pipeline; that of search has more."""
    fixtures = REPOSITORY / "tests/fixtures"
    for team, person in PEOPLE.items():
        folder = home / "dags" / team
        folder.mkdir()
        for name in ("pipelines.py", "pipeline_errors.py"):
            shutil.copy(REPOSITORY / "dags" / name, folder)
        (folder / f"{team}_events.pipeline.yaml").write_text(pipeline_of(team, person))
    shutil.copy(REPOSITORY / "dags/rollback.py", home / "dags")
    for path in sorted((fixtures / "tenants").glob("*.py")):
        shutil.copy(path, home / "dags/search")
    shutil.copytree(fixtures / "tenants/search_probe", home / "include/search_probe")


def pipeline_of(team: str, person: str, recipe: str = "events") -> str:
    text = (REPOSITORY / "tests/fixtures/events/events.pipeline.yaml").read_text()
    text = text.replace("pipeline: events", f"pipeline: {team}_events\nteam: {team}")
    text = text.replace("registered_model: events", f"registered_model: {team}_events")
    text = text.replace("processes: 2", "processes: 1").replace("epochs: 3", "epochs: 1")
    if team == "search":
        text = text.replace("include.events.dataset", "include.search_probe.dataset")
    return f"{text}\npromote: {{approval: {{approvers: [{person}], separation: false}}}}\n"


def mlflow_login(purpose: str, team: str) -> Login:
    return Login(f"{team}-{purpose}", f"the-password-of-{team}-{purpose}", team)


def connections(s3: Mapping[str, str], keys: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Airflow's connections of some teams, by environment variables."""
    found = {}
    for team, (key, secret) in keys.items():
        extra = {"endpoint_url": s3["AWS_ENDPOINT_URL"], "region_name": s3["AWS_REGION"]}
        store = {"conn_type": "aws", "login": key, "password": secret, "extra": extra}
        found[f"AIRFLOW_CONN_{team.upper()}_STORE"] = json.dumps(store)
        for purpose in RIGHTS:
            user, password, _ = mlflow_login(purpose, team)
            login = {"conn_type": "http", "login": user, "password": password}
            found[f"AIRFLOW_CONN_{team.upper()}_{purpose.upper()}"] = json.dumps(login)
    return found


def make_buckets(s3: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """A bucket and a user for each team, who may do everything there, and nothing elsewhere."""
    root = s3["AWS_ACCESS_KEY_ID"], s3["AWS_SECRET_ACCESS_KEY"]
    iam, keys = s3_client(s3, root, "iam"), {}
    for team in PEOPLE:
        s3_client(s3, root).create_bucket(Bucket=team)
        iam.create_user(UserName=team)
        own = [f"arn:aws:s3:::{team}", f"arn:aws:s3:::{team}/*"]
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": own}]}
        iam.put_user_policy(UserName=team, PolicyName="own", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=team)["AccessKey"]
        keys[team] = key["AccessKeyId"], key["SecretAccessKey"]
    # From now on it checks who asks.
    address = f"{s3['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
    headers = {"Content-Type": "text/plain"}
    with urllib.request.urlopen(urllib.request.Request(address, data=b"0", method="POST", headers=headers)) as done:
        assert done.status == 200
    return keys


def s3_client(s3: Mapping[str, str], key: tuple[str, str], service: str = "s3") -> Any:
    return boto3.client(
        service,
        endpoint_url=s3["AWS_ENDPOINT_URL"],
        region_name=s3["AWS_REGION"],
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
    )
