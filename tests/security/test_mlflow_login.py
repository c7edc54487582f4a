"""
MLflow's login, as `make up` starts it: who may not change what is in production, or get the rights to.

One MLflow server for the whole file, with a version in production that the user `release` has registered.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from project import REPOSITORY

from mlops.contract.step import python_path
from mlops_provider.local.ports import free_port
from mlops_provider.local.stack import Stack
from mlops_provider.logins import Login, LoginsError, make_logins

MODEL = "events"
LIBRARY = b"the code that the model was registered with"
EVIL = b"other code"
WHO = {"anonymous": 401, "steps": 403, "reader": 403}
"""Who attacks, and the answer that they must get."""
NEW_MODELS = {"take the name of a model to come", "take it as a prompt"}
"""MLflow lets everybody make those of whom no model is hidden. `reader` is Airflow's own, and in no step."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Of it MLflow alone is started."""
    stack = Stack(home=REPOSITORY, root=tmp_path_factory.mktemp("local"), mlflow_port=free_port(), mlflow_login=True)
    for folder in ("logs", "run", "mlflow"):
        (stack.root / folder).mkdir()
    stack._spawn("mlflow", stack._commands()["mlflow"])
    try:
        deadline = time.monotonic() + 240
        while not _is_up(stack):
            assert stack.parts.process("mlflow") is not None, (stack.root / "logs/mlflow.log").read_text()
            assert time.monotonic() < deadline, (stack.root / "logs/mlflow.log").read_text()
            time.sleep(0.2)
        list(stack._make_logins())
        yield stack
    finally:
        stack.stop()


def _is_up(stack: Stack) -> bool:
    try:
        return httpx.get(f"{stack.mlflow_url}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


@dataclass(frozen=True)
class Client:
    """MLflow's REST API, as one user sees it."""

    http: httpx.Client

    def ask(self, method: str, path: str, body: Any = None, /, **query: str) -> httpx.Response:
        """:param path: below ``/api/2.0/mlflow/``, or an address from the root"""
        content = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        return self.http.request(method, path if path[0] == "/" else f"/api/2.0/mlflow/{path}", params=query, **content)

    def __call__(self, method: str, path: str, body: Any = None, /, **query: str) -> dict[str, Any]:
        answer = self.ask(method, path, body, **query)
        assert answer.is_success, (path, answer.status_code, answer.text)
        return dict(answer.json() or {}) if answer.content.strip() else {}


@pytest.fixture(scope="module")
def clients(stack: Stack) -> Iterator[dict[str, Client]]:
    logins = {name: (name, stack._password(name)) for name in ("steps", "release", "reader", "admin")}
    made = {
        name: Client(httpx.Client(base_url=stack.mlflow_url, auth=logins.get(name), timeout=60))
        for name in ("anonymous", *logins)
    }
    yield made
    for client in made.values():
        client.http.close()


@dataclass(frozen=True)
class Released:
    experiment: str
    run: str
    model: str
    """Id of the logged model whose files the version is."""

    @property
    def file(self) -> str:
        return f"{self.experiment}/models/{self.model}/artifacts/library.zip"


@pytest.fixture(scope="module")
def released(clients: dict[str, Client]) -> Released:
    """A training by the user `steps`, registered and put into production by the user `release`."""
    steps, release = clients["steps"], clients["release"]
    experiment = steps("POST", "experiments/create", {"name": MODEL})["experiment_id"]
    run = steps("POST", "runs/create", {"experiment_id": experiment})["run"]["info"]["run_id"]
    steps("POST", "runs/log-batch", {"run_id": run, "metrics": [{"key": "m", "value": 1, "timestamp": 1, "step": 1}]})
    steps("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{experiment}/{run}/artifacts/report.html", b"report")
    surplus = steps("POST", "runs/create", {"experiment_id": experiment})["run"]["info"]["run_id"]
    steps("POST", "runs/delete", {"run_id": surplus})
    steps("POST", "runs/update", {"run_id": run, "status": "FINISHED"})

    new = {"experiment_id": experiment, "name": MODEL, "source_run_id": run}
    model = release("POST", "logged-models", new)["model"]["info"]
    found = Released(experiment, run, model["model_id"])
    release("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{found.file}", LIBRARY)
    release("PATCH", f"logged-models/{found.model}", {"model_id": found.model, "status": "LOGGED_MODEL_READY"})
    release("POST", "registered-models/create", {"name": MODEL})
    version = {"name": MODEL, "source": model["artifact_uri"], "run_id": run, "model_id": found.model}
    release("POST", "model-versions/create", version | {"tags": [{"key": "mlops.ref", "value": "{}"}]})
    release("POST", "registered-models/alias", {"name": MODEL, "alias": "champion", "version": "1"})
    return found


def state(clients: dict[str, Client], released: Released) -> list[Any]:
    """All that decides what is served."""
    admin = clients["admin"]
    return [
        admin.ask("GET", f"/api/2.0/mlflow-artifacts/artifacts/{released.file}").content,
        admin("GET", "/api/2.0/mlflow-artifacts/artifacts", path=released.file.rpartition("/")[0]),
        admin("GET", "registered-models/search"),
        admin("GET", "model-versions/search"),
        admin("GET", f"logged-models/{released.model}"),
        admin("GET", "experiments/get", experiment_id=released.experiment),
        admin("GET", "users/list"),
    ]


def attacks(released: Released) -> dict[str, tuple[str, str, Any]]:
    files, api3, model = "/api/2.0/mlflow-artifacts/artifacts", "/api/3.0/mlflow", f"logged-models/{released.model}"
    encoded = released.file.replace("/models/", "/%6dodels/")
    version = {"name": MODEL, "version": "1"}
    source = f"mlflow-artifacts:/{released.experiment}/{released.run}/artifacts"
    grant = {"username": "steps", "resource_type": "registered_model", "resource_id": MODEL, "permission": "MANAGE"}
    return {
        "replace the file": ("PUT", f"{files}/{released.file}", EVIL),
        "replace it by the pages' API": ("PUT", f"/ajax-api/2.0/mlflow-artifacts/artifacts/{released.file}", EVIL),
        "replace it by an encoded name": ("PUT", f"{files}/{encoded}", EVIL),
        "replace it by a name encoded twice": ("PUT", f"{files}/{encoded.replace('%', '%25')}", EVIL),
        "replace it in parts": ("POST", f"/api/2.0/mlflow-artifacts/mpu/create/{released.file}", {"num_parts": 1}),
        "add a file": ("PUT", f"{files}/{released.file}.pth", EVIL),
        "remove the file": ("DELETE", f"{files}/{released.file}", None),
        "remove the experiment's files": ("DELETE", f"{files}/{released.experiment}", None),
        "end the model": ("PATCH", model, {"model_id": released.model, "status": "LOGGED_MODEL_UPLOAD_FAILED"}),
        "tag the model": ("PATCH", f"{model}/tags", {"model_id": released.model, "tags": [{"key": "k", "value": "v"}]}),
        "delete the model": ("DELETE", f"{model}?model_id={released.model}", None),
        "another model": ("POST", "logged-models", {"experiment_id": released.experiment, "name": "m"}),
        "tag the version": ("POST", "model-versions/set-tag", version | {"key": "mlops.ref", "value": "forged"}),
        "remove the tag": ("DELETE", "model-versions/delete-tag", version | {"key": "mlops.ref"}),
        "tag the registered model": ("POST", "registered-models/set-tag", {"name": MODEL, "key": "k", "value": "v"}),
        "move the alias": ("POST", "registered-models/alias", version | {"alias": "canary"}),
        "remove the alias": ("DELETE", "registered-models/alias", {"name": MODEL, "alias": "champion"}),
        "create a version": ("POST", "model-versions/create", {"name": MODEL, "source": source}),
        "describe the version": ("PATCH", "model-versions/update", version | {"description": "better"}),
        "stage the version": ("POST", "model-versions/transition-stage", version | {"stage": "Production"}),
        "delete the version": ("DELETE", "model-versions/delete", version),
        "rename the registered model": ("POST", "registered-models/rename", {"name": MODEL, "new_name": "x"}),
        "delete the registered model": ("DELETE", "registered-models/delete", {"name": MODEL}),
        # Who makes one owns it: the first night registers what an evaluation could have made before.
        "take the name of a model to come": ("POST", "registered-models/create", {"name": "tomorrows"}),
        "take it as a prompt": (
            "POST", "registered-models/create",
            {"name": "tomorrows", "tags": [{"key": "mlflow.prompt.is_prompt", "value": "true"}]},
        ),
        "delete the experiment": ("POST", "experiments/delete", {"experiment_id": released.experiment}),
        "make a user": ("POST", "users/create", {"username": "mallory", "password": "a-long-password"}),
        "become administrator": ("PATCH", "users/update-admin", {"username": "steps", "is_admin": True}),
        "take over a user": ("PATCH", "users/update-password", {"username": "release", "password": "a-long-password"}),
        "give oneself the model": ("POST", f"{api3}/users/permissions/grant", grant),
        "take a role": ("POST", f"{api3}/roles/assign", {"username": "steps", "role_id": 2}),
        "change a role": (
            "POST", f"{api3}/roles/permissions/add",
            {"role_id": 1, "resource_type": "registered_model", "resource_pattern": MODEL, "permission": "MANAGE"},
        ),
        "have MLflow call elsewhere": (
            "POST", "/api/2.0/mlflow/webhooks",
            {"name": "w", "url": "https://example.com", "events": [{"entity": "MODEL_VERSION", "action": "CREATED"}]},
        ),
    }  # fmt: skip


@pytest.mark.server
@pytest.mark.parametrize("who", WHO)
def test_only_a_release_changes_what_is_in_production(who: str, clients: dict[str, Client], released: Released) -> None:
    """
    Broken: whoever reaches MLflow, or whose code runs in a training pod, has the servers of models run their code.
    """
    before = state(clients, released)
    assert before[0] == LIBRARY
    wrong = {}
    for name, (method, path, body) in attacks(released).items():
        if who == "reader" and name in NEW_MODELS:
            continue
        answer = clients[who].ask(method, path, body)
        if answer.status_code != WHO[who]:
            wrong[name] = answer.status_code, answer.text[:200]
        changed = [(was, now) for was, now in zip(before, state(clients, released), strict=True) if was != now]
        assert not changed, name
    assert not wrong
    assert len(attacks(released)) > 30


@pytest.mark.server
def test_what_each_login_reads(clients: dict[str, Client], released: Released) -> None:
    """Broken: nothing is to be seen without a login; or Airflow cannot look up a champion, or an evaluation a run."""
    reads = {
        "registered-models/get": {"name": MODEL},
        "model-versions/get": {"name": MODEL, "version": "1"},
        "runs/get": {"run_id": released.run},
    }
    found = {
        who: [clients[who].ask("GET", path, **query).status_code for path, query in reads.items()] for who in clients
    }
    assert found == {
        "anonymous": [401, 401, 401],
        "steps": [403, 403, 200],
        "reader": [200, 200, 403],
        "release": [200, 200, 200],
        "admin": [200, 200, 200],
    }
    missing = clients["reader"].ask("GET", "registered-models/get", name="never")
    assert missing.json()["error_code"] == "RESOURCE_DOES_NOT_EXIST", "of the first night"


@pytest.mark.server
def test_pages_open_with_a_login(clients: dict[str, Client], released: Released) -> None:
    """Broken: links in Airflow lead to an error, not to the browser's question who one is."""
    answer = clients["anonymous"].ask("GET", "/")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Basic realm="mlflow"')
    page = clients["admin"].ask("GET", "/")
    assert page.status_code == 200
    assert "<title>MLflow</title>" in page.text


@pytest.mark.server
def test_logins_are_made_once_and_corrected(stack: Stack, clients: dict[str, Client]) -> None:
    """Broken: rights that somebody gave by hand stay for ever, or a changed password locks the steps out."""
    admin, role = stack.mlflow_admin, {"workspace": "default"}
    assert admin is not None
    logins = {name: Login(name, stack._password(name)) for name in ("steps", "release", "reader")}
    assert list(make_logins(stack.mlflow_url, admin, logins)) == []
    roles = clients["admin"]("GET", "/api/3.0/mlflow/roles/list", **role)["roles"]
    steps = next(role for role in roles if role["name"] == "mlops-steps")
    grants = {grant["resource_type"]: grant["id"] for grant in steps["permissions"]}
    path = "/api/3.0/mlflow/roles/permissions/update"
    clients["admin"]("PATCH", path, {"role_permission_id": grants["registered_model"], "permission": "MANAGE"})
    done = list(make_logins(stack.mlflow_url, admin, logins | {"reader": Login("reader", "another-long-password")}))
    assert done == [
        "mlops-steps: removed MANAGE of registered_model *",
        "mlops-steps: DENY of registered_model *",
        "set the password of user 'reader'",
    ]
    assert clients["reader"].ask("GET", "registered-models/get", name=MODEL).status_code == 401
    list(make_logins(stack.mlflow_url, admin, logins))
    assert clients["reader"].ask("GET", "registered-models/get", name="never").status_code == 404
    with pytest.raises(LoginsError, match="is an administrator of MLflow"):
        list(make_logins(stack.mlflow_url, admin, {"steps": admin}))
    with pytest.raises(LoginsError, match="has no workspaces, and a team is to have 'ads': start it with"):
        list(make_logins(stack.mlflow_url, admin, {"steps": Login("ads-steps", "a-long-password", "ads")}))
    with pytest.raises(LoginsError, match=r"does not take this user and password .* MLFLOW_TRACKING_USERNAME"):
        list(make_logins(stack.mlflow_url, logins["release"], logins))


@pytest.mark.server
def test_passwords_are_for_their_owner_only(stack: Stack) -> None:
    """Broken: another user of the machine reads them."""
    stack.environment()
    files = list((stack.root / "keys").glob("mlflow_*"))
    assert len(files) == 5
    assert {file.stat().st_mode & 0o077 for file in files} == {0}


LOOKS = """
from mlops.tracking.connection import LoginError, connect
from mlops.tracking.run import open_run, reopen_run

def refused(ask):
    try:
        ask()
    except LoginError as error:
        assert not error.retryable
        print(error)

uri = {uri!r}
run = open_run(uri, experiment="events", run_key="key", name="n", params={{}}, tags={{}}, spool={spool!r})
refused(lambda: run.wait_until_open(60))
refused(run.check_login)
run.close()
refused(lambda: reopen_run(connect(uri), {run!r}))
"""


@pytest.mark.server
@pytest.mark.parametrize("password", ["", "wrong"], ids=["without a login", "with a wrong one"])
def test_a_refused_login_ends_at_once_and_names_the_setting(
    password: str, stack: Stack, released: Released, tmp_path: Path
) -> None:
    """Broken: a training runs for hours and is tried again, where no metric of it can be stored."""
    program = LOOKS.format(uri=stack.mlflow_url, spool=str(tmp_path), run=released.run).replace(
        f"spool={str(tmp_path)!r}", f"spool=__import__('pathlib').Path({str(tmp_path)!r})"
    )
    environment = {**os.environ, "PYTHONPATH": python_path(REPOSITORY)}
    if password:
        environment |= {"MLFLOW_TRACKING_USERNAME": "steps", "MLFLOW_TRACKING_PASSWORD": password}
    began = time.monotonic()
    command = [str(REPOSITORY / ".venv/training/bin/python"), "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 3, said
    assert all(("set [mlops] steps_login" in line and "401" in line) or "set [mlops]" in line for line in said)
    assert time.monotonic() - began < 45, "it waits for nothing"
