"""``mlops models``, as its process, with a real MLflow server whose artifacts are gone."""

from __future__ import annotations

import hashlib
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
from warm import run_warm

from mlops.contract.step import python_path
from mlops.signing.keys import make_key, public_file
from mlops.store import Store

CHECKOUT = Path(__file__).parents[3]
ME = pwd.getpwuid(os.getuid()).pw_name
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_key(tmp_path / "vera.pem", person=True)
    return tmp_path / "vera.pem"


@pytest.fixture
def mlops(store: Store, server: Server, key: Path) -> Run:
    paths = python_path(CHECKOUT)
    places = {
        "PYTHONPATH": paths,
        "MLOPS_HOME": str(CHECKOUT),
        "MLOPS_STORE": store.uri,
        "MLFLOW_TRACKING_URI": server.uri,
        "USER": "vera",
        "LOGNAME": "vera",  # anybody can say that
        "COLUMNS": "180",
    }

    def run(*arguments: str, word: str = "models") -> subprocess.CompletedProcess[str]:
        signs = arguments[0] in ("promote", "archive", "rollback", "adopt", "sign")
        by = [f"--key={key}"] if signs and "--key" not in arguments else []
        command = [sys.executable, "-m", "mlops.commands", word, *arguments, *by]
        return run_warm(command, env={**os.environ, **places}, timeout=60)

    return run


@pytest.fixture
def client(server: Server) -> Iterator[MlflowClient]:
    """Of a server with three versions of a model with artifacts, and then without artifacts."""
    client = MlflowClient(tracking_uri=server.uri)
    client.create_registered_model("ranker")
    for _ in range(3):
        run = client.create_run("0")
        client.log_text(run.info.run_id, "weights", "model/weights.pt")
        client.create_model_version("ranker", f"{run.info.artifact_uri}/model", run_id=run.info.run_id)
    shutil.rmtree(server.folder / "artifacts")
    yield client
    for model in client.search_registered_models():
        client.delete_registered_model(model.name)


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


@pytest.mark.server
def test_what_a_person_does_is_signed_and_can_be_checked(
    mlops: Run, client: MlflowClient, store: Store, key: Path, tmp_path: Path
) -> None:
    """Broken: a promotion or a rollback by hand could be denied, changed, or hidden."""
    trusted = f"--trusted={public_file(key).read_text().strip()}"
    for version in ("1", "2", "3"):
        assert mlops("promote", "ranker", version, "--why", f"number {version}").returncode == 0
    assert mlops("rollback", "ranker", "--why", "complaints").returncode == 0
    whole = mlops("verify", trusted, "--json", word="audit")
    assert (whole.returncode, json.loads(whole.stdout)) == (
        0, [{"model": "ranker", "entries": 4, "anchored": None, "findings": []}],
    )  # fmt: skip
    assert "Airflow was not asked" in mlops("verify", "ranker", trusted, word="audit").stdout

    seal = Path(store.uri.removeprefix("file://"), "models/ranker/seals/000000000002.json")
    seal.unlink()
    unsigned = mlops("verify", trusted, word="audit")
    assert unsigned.returncode == 1
    assert "unsigned" in unsigned.stdout
    signed = mlops("sign", "ranker", "2", "--why", "the night's task was lost", word="audit")
    assert f"entry 2 (promote of version 2 by {ME}@" in signed.stdout
    assert mlops("verify", trusted, word="audit").returncode == 0

    # Who holds another key signs nothing that counts.
    make_key(tmp_path / "otto.pem")
    refused = mlops("promote", "ranker", "3", "--why", "mine", "--key", str(tmp_path / "otto.pem"), trusted)
    assert (refused.returncode, "otto.pem signs would not be trusted" in refused.stderr) == (2, True)
    assert mlops("promote", "ranker", "3", "--why", "mine", "--key", str(tmp_path / "otto.pem")).returncode == 0
    forged = mlops("verify", trusted, word="audit")
    assert forged.returncode == 1
    assert "forged" in forged.stdout
    # Entries that were cut off with all their traces are missed by who knows of the newest one.
    for path in seal.parents[1].glob("*/000000000005*"):
        path.unlink()
    client.set_registered_model_alias("ranker", "champion", "2")
    digest = hashlib.sha256(store.get("models/ranker/audit/000000000004.json")).hexdigest()
    known = {"ranker": {"number": 4, "sha256": digest}}
    assert mlops("verify", trusted, f"--anchors={json.dumps(known)}", word="audit").returncode == 0
    for path in seal.parents[1].glob("*/000000000004*"):
        path.unlink()
    cut = mlops("verify", trusted, f"--anchors={json.dumps(known)}", word="audit")
    assert cut.returncode == 1
    assert "000000000004.json was cut off" in " ".join(cut.stdout.split())
    # The aliases tell as well, where nobody knows of it.
    moved = mlops("verify", trusted, word="audit")
    assert (moved.returncode, "champion 2, and by the trail champion 3" in " ".join(moved.stdout.split())) == (1, True)


@pytest.mark.server
def test_the_check_of_a_model_that_is_not_there_fails(mlops: Run, client: MlflowClient, key: Path) -> None:
    """Broken: a nightly check of a mistyped name would say for ever that nothing was changed."""
    trusted = f"--trusted={public_file(key).read_text().strip()}"
    mistyped = mlops("verify", "rankr", trusted, word="audit")
    assert (mistyped.returncode, mistyped.stdout) == (2, "")
    assert "there is no model 'rankr'" in mistyped.stderr
    assert "there are ranker" in mistyped.stderr
    assert mlops("verify", "ranker", trusted, word="audit").returncode == 0, "no version was ever promoted"


@pytest.mark.server
def test_without_a_key_nothing_is_moved(mlops: Run, client: MlflowClient, tmp_path: Path) -> None:
    """Broken: an entry that nobody answers for, or a version in production without one."""
    refused = mlops("promote", "ranker", "1", "--why", "x", "--key", str(tmp_path / "none.pem"))
    assert (refused.returncode, "none.pem cannot be read" in refused.stderr) == (2, True)
    assert client.get_registered_model("ranker").aliases == {}


@pytest.mark.server
def test_one_model_does_not_silence_the_check_of_others(
    mlops: Run, client: MlflowClient, store: Store, key: Path
) -> None:
    """Broken: who may write one object in the store hides every other finding, also from a nightly check."""
    trusted = f"--trusted={public_file(key).read_text().strip()}"
    assert mlops("promote", "ranker", "1", "--why", "the first").returncode == 0
    client.set_registered_model_alias("ranker", "champion", "2")
    store.put("models/x", b"")
    store.put("models/audit/audit", b"")
    for name in ("a", "z"):
        store.put(f"models/{name}/audit/000000000001.json", b"[" * 200_000)
        store.put(f"models/{name}/applied/000000000001", b"\x1b[2J")
        store.put(f"models/{name}/seals/000000000001.json", json.dumps({"signatures": "\ud800"}).encode())
    checked = mlops("verify", trusted, word="audit")
    assert (checked.returncode, checked.stderr) == (1, "")
    said = " ".join(checked.stdout.split())
    assert "champion 2, and by the trail champion 1" in said
    assert "z 1 1 forged its signature" in said
    assert "\x1b" not in checked.stdout
    rows = json.loads(mlops("verify", trusted, "--json", word="audit").stdout)
    assert [row["model"] for row in rows if row["findings"]] == ["a", "ranker", "z"]


@pytest.mark.server
def test_what_airflow_knows_wrongly_is_a_finding_of_its_model(
    mlops: Run, client: MlflowClient, store: Store, key: Path
) -> None:
    """Broken: who edits one variable of Airflow ends the check of all models and teams."""
    trusted = f"--trusted={public_file(key).read_text().strip()}"
    assert mlops("promote", "ranker", "1", "--why", "the first").returncode == 0
    known = {"a": {"flaw": "the variable of a"}, "ranker": {"number": 1, "sha256": "0" * 64, "flaw": "that of ranker"}}
    checked = mlops("verify", trusted, "--json", f"--anchors={json.dumps(known)}", word="audit")
    assert (checked.returncode, checked.stderr) == (1, "")
    found = {row["model"]: [each["what"] for each in row["findings"]] for row in json.loads(checked.stdout)}
    assert found["a"] == ["the variable of a"]
    assert found["ranker"][0] == "that of ranker"
    assert "is not what the anchor knows" in found["ranker"][1]


@pytest.mark.server
def test_a_model_that_was_deleted_is_named(mlops: Run, client: MlflowClient, store: Store, key: Path) -> None:
    """Broken: who deletes the model in MLflow takes it out of production, and the check of the trail says nothing."""
    trusted = f"--trusted={public_file(key).read_text().strip()}"
    assert mlops("promote", "ranker", "1", "--why", "the first").returncode == 0
    client.delete_registered_model("ranker")
    checked = mlops("verify", trusted, word="audit")
    assert checked.returncode == 1
    assert "MLflow has no model ranker, and by the trail it has champion 1" in " ".join(checked.stdout.split())
    client.create_registered_model("ranker")
    checked = mlops("verify", trusted, word="audit")
    assert "the aliases are none, and by the trail champion 1" in " ".join(checked.stdout.split())


@pytest.mark.server
def test_another_finding_does_not_hide_a_moved_alias(mlops: Run, client: MlflowClient, store: Store, key: Path) -> None:
    """Broken: who moves an alias hides it by breaking any entry of the trail."""
    trusted = f"--trusted={public_file(key).read_text().strip()}"
    for version in ("1", "2"):
        assert mlops("promote", "ranker", version, "--why", f"number {version}").returncode == 0
    client.set_registered_model_alias("ranker", "champion", "1")
    store.put("models/ranker/audit/000000000003.json", b"{}")
    (row,) = json.loads(mlops("verify", trusted, "--json", word="audit").stdout)
    assert [(found["entry"], found["kind"]) for found in row["findings"]] == [
        (3, "unsigned"), (3, "changed"), (2, "moved"),
    ]  # fmt: skip


@pytest.mark.server
def test_a_history_prints_no_control_characters(mlops: Run, client: MlflowClient, store: Store) -> None:
    """Broken: a reason that was typed into a form rewrites what a person sees of the trail."""
    assert mlops("promote", "ranker", "1", "--why", "the first").returncode == 0
    place = Path(store.uri.removeprefix("file://"), "models/ranker")
    entry = json.loads((place / "audit/000000000001.json").read_text())
    (place / "audit/000000000001.json").write_text(json.dumps({**entry, "why": "good\x1b[1A\x1b[2Kbad\u202e"}))
    (place / "applied/000000000001").unlink()
    shown = mlops("history", "ranker").stdout
    assert "good\\x1b[1A\\x1b[2Kbad\\u202e" in shown
    assert not {"\x1b", "\u202e"} & {*shown}
    assert not {"\x1b", "\u202e"} & {*mlops("history", "ranker", "--json").stdout}
