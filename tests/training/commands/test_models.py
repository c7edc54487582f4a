"""``mlops models``, as its process, with a real MLflow server whose artifacts are gone."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tracking_server import Server

from training.store import Store

CHECKOUT = Path(__file__).parents[3]
ME = pwd.getpwuid(os.getuid()).pw_name
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def mlops(store: Store, server: Server) -> Run:
    paths = f"{CHECKOUT}:{CHECKOUT / 'plugins'}"
    places = {
        "PYTHONPATH": paths,
        "MLOPS_HOME": str(CHECKOUT),
        "MLOPS_STORE": store.uri,
        "MLFLOW_TRACKING_URI": server.uri,
        "USER": "vera",
        "LOGNAME": "vera",  # anybody can say that
        "COLUMNS": "180",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "training.commands", "models", *arguments]
        return subprocess.run(
            command, check=False, env={**os.environ, **places}, capture_output=True, text=True, timeout=60
        )

    return run


@pytest.fixture
def client(server: Server, tmp_path: Path) -> MlflowClient:
    """Of a server with three versions of a model with artifacts, and then without artifacts."""
    client = MlflowClient(tracking_uri=server.uri)
    client.create_registered_model("ranker")
    for _ in range(3):
        run = client.create_run("0")
        client.log_text(run.info.run_id, "weights", "model/weights.pt")
        client.create_model_version("ranker", f"{run.info.artifact_uri}/model", run_id=run.info.run_id)
    shutil.rmtree(tmp_path / "artifacts")
    return client


@pytest.mark.server
def test_promoted_and_rolled_back_without_any_artifact(mlops: Run, client: MlflowClient) -> None:
    """Broken: the one who is on call could not take a bad model back while the artifact store is away."""
    for version in ("1", "2"):
        done = mlops("promote", "ranker", version, "--why", "the meeting of Monday")
        assert done.returncode == 0, done.stderr
    done = mlops("rollback", "ranker", "--why", "complaints [today]")
    assert done.returncode == 0, done.stderr
    assert "ranker: champion 1; archived: version 2; entry 3" in done.stdout
    assert client.get_registered_model("ranker").aliases == {"champion": "1"}

    history = mlops("history", "ranker", "--json")
    document = json.loads(history.stdout)
    assert (history.returncode, document["problem"]) == (0, None)
    newest = document["entries"][0]
    assert (
        newest.items()
        >= {
            "action": "rollback",
            "version": "1",
            "to_stage": "production",
            "former_champion": "2",
            "why": "complaints [today]",
        }.items()
    )
    assert newest["who"].startswith(f"{ME}@")
    table = mlops("history", "ranker").stdout
    assert "complaints [today]" in table
    assert "3 entries, none changed or missing" in table
    assert [row["stage"] for row in json.loads(mlops("show", "ranker", "--json").stdout)] == [
        "",
        "archived",
        "production",
    ]
    listed = json.loads(mlops("list", "--json").stdout)
    assert listed[0]["aliases"] == {"champion": "1"}
    assert listed[0]["last"]["number"] == 3
    assert f"rollback to 1 by {ME}@" in mlops("list").stdout
    assert "production" in mlops("show", "ranker").stdout


@pytest.mark.server
def test_moved_by_hand_it_says_how_to_go_on(mlops: Run, client: MlflowClient) -> None:
    mlops("promote", "ranker", "1", "--why", "first")
    client.set_registered_model_alias("ranker", "champion", "3")
    refused = mlops("promote", "ranker", "2", "--why", "second")
    assert refused.returncode == 2
    assert "by the audit trail the aliases are champion 1" in mlops("list").stdout
    assert "'champion' is version 3, and should be version 1" in refused.stderr
    assert mlops("adopt", "ranker", "--why", "an emergency on Sunday").returncode == 0
    done = mlops("promote", "ranker", "2", "--why", "second")
    assert done.returncode == 0, done.stderr
    assert "ranker: champion 3; archived: version 2;" in mlops("rollback", "ranker", "--why", "back").stdout


@pytest.mark.server
def test_two_who_take_back_the_same_champion_take_back_one(mlops: Run, client: MlflowClient) -> None:
    """Broken: where two people see the same alarm, a model of the week before last would be in production."""
    for version in ("1", "2", "3"):
        mlops("promote", "ranker", version, "--why", "better")
    with ThreadPoolExecutor(2) as pool:
        take_back = ("rollback", "ranker", "--champion", "3", "--why")
        done = list(pool.map(lambda why: mlops(*take_back, why), ("vera's", "otto's")))
    assert [each.returncode for each in done] == [0, 0]
    assert client.get_registered_model("ranker").aliases == {"champion": "2"}
    assert len(json.loads(mlops("history", "ranker", "--json").stdout)["entries"]) == 4
    assert "ranker: nothing to do; champion 2" in mlops("archive", "ranker", "3", "--why", "it is already").stdout


@pytest.mark.server
def test_a_trail_that_was_tampered_with_is_exit_code_1(mlops: Run, client: MlflowClient, store: Store) -> None:
    mlops("promote", "ranker", "1", "--why", "first")
    mlops("promote", "ranker", "2", "--why", "second")
    key = "models/ranker/audit/000000000001.json"
    store.put(key, store.get(key).replace(b"first", b"other"))
    history = mlops("history", "ranker")
    assert history.returncode == 1
    assert f"{key} in" in history.stderr
    assert "was changed after it was written" in history.stderr
    store.put("models/ranker/audit/000000000002.json", b"[]")
    listed = mlops("list")
    assert listed.returncode == 1
    assert "is damaged" in listed.stdout


@pytest.mark.server
def test_mistakes_get_a_sentence(mlops: Run, client: MlflowClient) -> None:
    unknown = mlops("promote", "ranker", "9", "--why", "a typo")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "model 'ranker' has no version 9; it has 3, 2, 1" in unknown.stderr
    assert "there is no model 'ranger'" in mlops("show", "ranger").stderr
    assert "--why" in mlops("rollback", "ranker").stderr
    assert "argument --why: it is empty" in mlops("rollback", "ranker", "--why", " \n").stderr
    assert "has no version 9; it has 3, 2, 1" in mlops("archive", "ranker", "9", "--why", "a typo").stderr
    assert "no former champion" in mlops("rollback", "ranker", "--why", "x").stderr
