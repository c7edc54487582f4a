"""``mlops doctor`` in projects that lack something: what is broken is named with what to do, and hides nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import services
from project import REPOSITORY, make_project
from terminal import Terminal

from mlops.signing.keys import make_key, public_file
from mlops_provider.local.ports import free_port

Findings = Mapping[str, list[tuple[str, str, str]]]


@pytest.fixture
def nowhere() -> str:
    """Address where nothing answers."""
    return f"http://127.0.0.1:{free_port()}"


def findings(terminal: Terminal, *arguments: str, **environment: str) -> tuple[int, Findings]:
    """Return the exit code and, by subject, states, sentences and what to do."""
    argv, places = terminal.command("doctor", "--json", *arguments)
    done = subprocess.run(argv, env={**places, **environment}, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, list[tuple[str, str, str]]] = {}
    for each in json.loads(done.stdout):
        found.setdefault(each["subject"], []).append((each["state"], each["found"], each["fix"]))
    return done.returncode, found


def test_of_a_project_without_anything_all_is_said_at_once(tmp_path: Path, nowhere: str) -> None:
    home = tmp_path / "home"
    (home / "dags").mkdir(parents=True)
    (home / "dags/wrong.pipeline.yaml").write_text("schedule: daily\n")
    code, found = findings(Terminal(home, tmp_path / "store", nowhere), "--airflow-url", nowhere)
    assert code == 1
    states = {subject: [state for state, _, _ in each] for subject, each in found.items()}
    assert states.pop("machine") in (["ok"], ["warning"])
    assert states == {
        "pipelines": ["broken"],
        "airflow runtime": ["ok"],
        "training runtime": ["broken"],
        "validation runtime": ["broken"],
        "store": ["ok"],
        "MLflow": ["broken"],
        "Airflow": ["warning"],
        "release key": ["warning"],
    }
    assert found["pipelines"][0][2] == f"see mlops lint {home}/dags/wrong.pipeline.yaml"
    assert found["training runtime"][0][1:] == (
        f"there is no interpreter at {home}/.venv/training/bin/python", "make venv, or set [mlops] training_python",
    )  # fmt: skip
    assert f"{nowhere} does not answer" in found["MLflow"][0][1]
    assert [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()] == [], "it leaves nothing behind"


def test_a_pipeline_s_file_that_nothing_can_be_made_of_hides_nothing_else(tmp_path: Path, nowhere: str) -> None:
    """Broken: the doctor ends with a stack trace at the first file whose YAML is odd."""
    home = tmp_path / "home"
    (home / "dags").mkdir(parents=True)
    (home / "dags/odd.pipeline.yaml").write_text("? [a]\n: 1\n")
    (home / "dags/wrong.pipeline.yaml").write_text("schedule: daily\n")
    code, found = findings(Terminal(home, tmp_path / "store", nowhere), "--airflow-url", nowhere)
    (odd, wrong) = found["pipelines"]
    assert (code, odd[0], odd[2]) == (1, "broken", f"see mlops lint {home}/dags/odd.pipeline.yaml")
    assert odd[1].startswith("odd.pipeline.yaml:1:1: no pipeline can be made of it: TypeError(")
    assert (wrong[0], wrong[1][:26]) == ("broken", "wrong.pipeline.yaml:1:1: t")
    assert "store" in found


@pytest.mark.server
def test_packages_that_are_not_those_of_the_lock_file_are_named(tmp_path: Path, nowhere: str, tracking: str) -> None:
    home = make_project(tmp_path / "home")
    key = tmp_path / "release.pem"
    make_key(key)
    make_key(tmp_path / "vera.pem", person=True)
    with public_file(key).open("a") as lines:
        lines.write(public_file(tmp_path / "vera.pem").read_text())
    terminal = Terminal(home, tmp_path / "store", tracking)
    code, found = findings(terminal, "--airflow-url", nowhere, AIRFLOW__MLOPS__RELEASE_KEY=str(key))
    assert code == 0, found
    assert [each[0] for each in found["training runtime"]] == ["ok"], found
    assert found["training runtime"][0][1].endswith("packages as in training/requirements.txt")
    assert found["release key"] == [("ok", f"{key} is trusted; keys that sign approvals: 1, that people have: 1", "")]
    assert "to whoever asks" in found["MLflow"][0][1]
    (home / "training").unlink()
    (home / "training").mkdir()
    for each in (REPOSITORY / "training").iterdir():
        if each.name != "requirements.txt":
            (home / "training" / each.name).symlink_to(each)
    (home / "training/requirements.txt").write_text(
        "polars==0.1.2 \\\n    --hash=sha256:00\n# a note\nleft-pad==1.0\nfor-another==1.0 ; python_version < '3'\n"
    )
    key.chmod(0o644)
    code, found = findings(terminal, "--airflow-url", nowhere, AIRFLOW__MLOPS__RELEASE_KEY=str(key))
    assert code == 1
    state, said, _ = found["training runtime"][0]
    assert state == "warning"
    assert "not as in training/requirements.txt: polars " in said
    assert said.endswith(" instead of 0.1.2, left-pad is missing instead of 1.0")
    assert found["release key"][0][0] == "broken"
    assert str(key) in found["release key"][0][1]


def test_a_store_that_cannot_be_written_is_broken(tmp_path: Path, nowhere: str) -> None:
    (tmp_path / "home/dags").mkdir(parents=True)
    (tmp_path / "file").write_text("no folder")
    terminal, place = Terminal(tmp_path / "home", tmp_path / "store", nowhere), f"file://{tmp_path}/file/store"
    _, found = findings(terminal, "--airflow-url", nowhere, AIRFLOW__MLOPS__STORE=place)
    assert found["store"][0][0] == "broken"
    assert found["store"][0][1].startswith(f"file://{tmp_path}/file/store: ")


@pytest.mark.server
def test_a_bucket_is_asked_as_the_steps_ask_it(tmp_path: Path, nowhere: str) -> None:
    (tmp_path / "home/dags").mkdir(parents=True)
    terminal = Terminal(tmp_path / "home", tmp_path / "store", nowhere)
    with services.s3_server() as server:
        for uri, state, said in (
            ("s3://bucket/pipelines", "ok", "s3://bucket/pipelines is read and written"),
            ("s3://nobodys", "broken", "s3://nobodys: "),
        ):
            _, found = findings(terminal, "--airflow-url", nowhere, **server, AIRFLOW__MLOPS__STORE=uri)
            assert found["store"][0][0] == state, found
            assert found["store"][0][1].startswith(said)


@pytest.mark.server
def test_where_steps_are_pods_the_cluster_is_asked(tmp_path: Path, nowhere: str) -> None:
    (tmp_path / "home/dags").mkdir(parents=True)
    terminal = Terminal(tmp_path / "home", tmp_path / "store", nowhere)
    settings = {
        "AIRFLOW__MLOPS__LAUNCHER": "pod",
        "AIRFLOW__MLOPS__TRAINING_IMAGE": "training:1",
        "AIRFLOW__MLOPS__KUBERNETES_CONNECTION": "cluster",
        "AIRFLOW_CONN_CLUSTER": "kubernetes://",
        "KUBECONFIG": str(tmp_path / "none"),
    }
    code, found = findings(terminal, "--airflow-url", nowhere, **settings)
    assert code == 1
    assert "training runtime" not in found, "it is in the image"
    (unreachable, image) = found["Kubernetes"]
    assert (unreachable[0], unreachable[1][:19]) == ("broken", "namespace default: ")
    assert image == ("broken", "there is no image of the validation runtime", "set [mlops] validation_image")


def test_where_a_pipeline_asks_for_spark_java_is_looked_for(tmp_path: Path, nowhere: str) -> None:
    home = make_project(tmp_path / "home")
    path = home / "dags/events.pipeline.yaml"
    path.write_text(path.read_text().replace("\n  window: 7\n", "\n  window: 7\n  engine: spark\n"))
    terminal, nothing = Terminal(home, tmp_path / "store", nowhere), str(tmp_path / "nothing")
    _, found = findings(terminal, "--airflow-url", nowhere, PATH=nothing, JAVA_HOME="")
    assert [(state, said) for state, said, _ in found["Spark"]] == [
        ("broken", "there is no `java`, and events asks for engine: spark")
    ]
    _, found = findings(terminal, "--airflow-url", nowhere, PATH=nothing, JAVA_HOME=nothing)
    assert "Spark" not in found, "Spark starts it from there"
