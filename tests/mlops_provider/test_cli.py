"""``mlops``, as its process: what it answers itself, and what it hands over to a runtime."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlops.signing.keys import make_key
from mlops_provider.cli import main
from mlops_provider.local.ports import free_port
from mlops_provider.local.stack import MIGRATED, Stack, StackError, stack_settings

CHECKOUT = Path(__file__).parents[2]
PIPELINE = CHECKOUT / "dags/flight_ranking.pipeline.yaml"

HandedOver = Callable[..., tuple[list[str], dict[str, str]]]


class ExecutedError(Exception):
    """The process became another one."""


Mlops = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def mlops(tmp_path: Path) -> Mlops:
    """The command in a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = f"{CHECKOUT / 'plugins'}:{CHECKOUT / 'training'}"
        places = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "PYTHONPATH": path}
        command = [sys.executable, "-m", "mlops_provider.cli", *arguments]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=120, env={**os.environ, **places}
        )

    return run


def test_the_runtime_answers_and_its_exit_code_is_passed_on(mlops: Mlops, tmp_path: Path) -> None:
    """With the real interpreter of this checkout, and a store that is empty yet."""
    store = f"file://{tmp_path}/store"
    done = mlops("datasets", "list", "--store", store)
    assert (done.returncode, done.stdout) == (0, "no snapshots yet\n")
    lost = mlops("datasets", "--store", store, "show", "flights@2013-02-07")
    assert lost.returncode == 2
    assert lost.stderr == f"mlops datasets: there is no dataset 'flights' in {store}: it holds no dataset at all\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for runtime in ("training", "validation"):
        python = tmp_path / f"home/.venv/{runtime}/bin/python"
        python.parent.mkdir(parents=True)
        python.touch()
    return tmp_path / "home"


@pytest.fixture
def handed_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> HandedOver:
    """What a command line would become: argv and environment."""
    became: list[tuple[list[str], dict[str, str]]] = []

    def execve(path: Path, arguments: list[str], environment: dict[str, str]) -> None:
        assert str(path) == arguments[0]
        became.append((arguments, environment))
        raise ExecutedError

    def run(*arguments: str, **variables: str) -> tuple[list[str], dict[str, str]]:
        for name, value in {"AIRFLOW__MLOPS__HOME": str(home), "AIRFLOW__MLOPS__STORE": "", **variables}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ExecutedError):
            main(list(arguments))
        return became.pop()

    monkeypatch.setattr(os, "execve", execve)
    return run


def test_arguments_pass_through_as_they_are(handed_over: HandedOver, home: Path) -> None:
    arguments = ["features", "get", "flights", "--entity", "origin=EWR", "--entity", "flight=15 45", "--json", "-h"]
    argv, environment = handed_over(*arguments, "--home", str(home))
    assert argv == [str(home / ".venv/training/bin/python"), "-m", "mlops.commands", *arguments]
    assert environment["MLOPS_HOME"] == str(home)


def test_the_runtime_gets_the_places_but_no_secrets_of_airflow(handed_over: HandedOver, home: Path) -> None:
    _, environment = handed_over(
        "datasets",
        "list",
        AIRFLOW__MLOPS__STORE="s3://bucket/prefix",
        AIRFLOW__API__SECRET_KEY="s3cret",
        AWS_REGION="eu-west-1",
    )
    places = {"MLOPS_HOME": str(home), "MLOPS_STORE": "s3://bucket/prefix", "AWS_REGION": "eu-west-1"}
    assert places.items() <= environment.items()
    assert "s3cret" not in environment.values()


def test_commands_speak_to_the_airflow_that_was_started_last(
    handed_over: HandedOver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: after `make up MLFLOW_PORT=5001` they would look at another MLflow, that of port 5000."""
    stack = Stack(home=home, root=home / ".local", airflow_port=8081, mlflow_port=5001)
    exports = (f"export {name}={value!r}\n" for name, value in stack.environment().items())
    (home / ".local/environment").write_text("".join(exports))
    monkeypatch.delenv("AIRFLOW_HOME", raising=False)
    monkeypatch.setenv("AIRFLOW__MLOPS__TRACKING_URI", "put back after the test")
    monkeypatch.delenv("AIRFLOW__MLOPS__TRACKING_URI")
    _, environment = handed_over("models", "list", "--home", str(home))
    assert environment["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5001"
    # As `.venv/bin/mlops` does; a version is promoted with the key that `make up` made.
    make_key(stack.root / "keys/release.pem")
    local = {"AIRFLOW_HOME": str(home / ".local/airflow")}
    promote = "models", "promote", "m", "1", "--why", "x", "--home", str(home), "--without-airflow"
    arguments, environment = handed_over(*promote, **local)
    assert environment["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5001"
    assert f"--key={stack.root}/keys/release.pem" in arguments
    _, environment = handed_over("models", "list", "--home", str(home), AIRFLOW__MLOPS__TRACKING_URI="http://mlflow")
    assert environment["MLFLOW_TRACKING_URI"] == "http://mlflow"


MAKES = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/called"
touch "$AIRFLOW_HOME/airflow.db"
exit ${FAILS:-0}
"""


def test_a_database_is_made_until_it_is_whole(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: after a first `make up` that was interrupted, or a newer Airflow, each later one fails for a table."""
    stack = Stack(home=home, root=home / ".local")
    for folder in (home / ".venv/airflow/bin", stack.root / "airflow", stack.root / "logs"):
        folder.mkdir(parents=True)
    python, called = home / ".venv/airflow/bin/python", home / ".venv/airflow/bin/called"
    python.write_text(MAKES)
    python.chmod(0o755)
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(StackError, match="airflow db migrate failed"):
        list(stack._migrate())
    monkeypatch.delenv("FAILS")
    for _ in range(2):
        list(stack._migrate())
    assert called.read_text() == "-P -m airflow db migrate\n" * 2
    (stack.root / MIGRATED).write_text("3.0.0")
    list(stack._migrate())
    assert len(called.read_text().splitlines()) == 3


def test_a_shell_has_the_variables_of_the_stack(home: Path) -> None:
    """Broken: `source .local/environment` would run what is in a value, or change it."""
    value = 'it\'s "$HOME" `false` \\n\nsecond line'
    stack = Stack(home=home, root=home / ".local", settings={"AIRFLOW__MLOPS__SAID": value})
    next(iter(stack.start()))  # it says first what it is about to start
    shell = [". .local/environment", 'printf %s "$AIRFLOW__MLOPS__SAID"']
    said = subprocess.run(["sh", "-c", "; ".join(shell)], cwd=home, check=True, capture_output=True, text=True)
    assert said.stdout == value
    assert stack_settings(stack.root)["AIRFLOW__MLOPS__SAID"] == value


def test_a_variable_that_is_no_anchor_is_told_as_one(
    handed_over: HandedOver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: one variable that somebody has edited ends `mlops audit verify` for all models and teams."""
    good = {"number": 3, "sha256": "ab" * 32}
    values = {
        "mlops_audit.good": json.dumps(good), "mlops_audit.text": "x", "mlops_audit.list": "[]",
        "mlops_audit.empty": "{}", "mlops_audit.far": json.dumps({**good, "number": 10**12}),
        "mlops_audit.masked": None, "mlops-audit.other": "not ours",
    }  # fmt: skip
    variables = [{"key": key, "value": value} for key, value in values.items()]
    airflow = SimpleNamespace(every=lambda *_, **__: variables)
    monkeypatch.setattr("mlops_provider.handed_over.airflow_of", lambda _: airflow)
    argv, _ = handed_over("audit", "verify", "--home", str(home))
    (given,) = [argument.removeprefix("--anchors=") for argument in argv if argument.startswith("--anchors=")]
    anchors = json.loads(given)
    assert anchors.pop("good") == good
    assert set(anchors) == {"text", "list", "empty", "far", "masked"}
    assert all(list(anchor) == ["flaw"] for anchor in anchors.values())
    assert anchors["text"]["flaw"].startswith("Airflow's variable 'mlops_audit.text' is 'x', not the number and")


SIGNS = """#!/bin/sh
for argument; do
    case $argument in --signed=*) echo '{"model": "m", "number": 3, "sha256": "0"}' > "${argument#--signed=}" ;; esac
done
"""


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [(SIGNS, 0, "entry 3 is signed, but Airflow was not told of it"), ("#!/bin/sh\nexit 2\n", 2, "")],
    ids=["signed", "refused"],
)
def test_airflow_is_told_of_what_was_signed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: str, code: int, said: str
) -> None:
    """Broken: who is told nothing believes that Airflow knows, or takes a refusal for done."""
    monkeypatch.setenv("AIRFLOW__MLOPS__HOME", str(home))
    python = home / ".venv/training/bin/python"
    python.write_text(program)
    python.chmod(0o755)
    nobody = f"http://127.0.0.1:{free_port()}"
    assert main(["models", "promote", "m", "1", "--why", "x", "--airflow-url", nobody]) == code
    assert capsys.readouterr().out.startswith(said)


def test_commands_have_the_login_that_they_need(handed_over: HandedOver, home: Path) -> None:
    """Broken: `mlops models` is refused by the MLflow of `make up`, or code of a recipe gets the rights to release."""
    stack = Stack(home=home, root=home / ".local", mlflow_login=True)
    settings = {name: value for name, value in stack.environment().items() if "LOGIN" in name or "CONN_MLFLOW" in name}
    password = {name: (home / f".local/keys/mlflow_{name}").read_text() for name in ("release", "steps")}

    def login(word: str, **variables: str) -> dict[str, str]:
        _, environment = handed_over(word, "list", **settings, **variables)
        return {
            name: value for name, value in environment.items() if name.endswith(("_USERNAME", "_PASSWORD", "_TOKEN"))
        }

    released = {"MLFLOW_TRACKING_USERNAME": "release", "MLFLOW_TRACKING_PASSWORD": password["release"]}
    steps = {"MLOPS_STEPS_USERNAME": "steps", "MLOPS_STEPS_PASSWORD": password["steps"]}
    assert login("datasets") == {}
    assert login("models") == login("audit") == login("diff") == released
    assert login("reproduce") == login("store") == released | steps
    own = {"MLFLOW_TRACKING_USERNAME": "vera", "MLFLOW_TRACKING_PASSWORD": "hers"}
    assert login("models", **own) == own, "a person's own goes before"


def test_the_schema_of_a_pipeline_is_found_in_its_yaml(
    handed_over: HandedOver, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "dags").mkdir()
    (home / "dags" / PIPELINE.name).write_text(PIPELINE.read_text())

    argv, _ = handed_over("schema", "propose", "flight_ranking")
    assert argv[0] == str(home / ".venv/validation/bin/python")
    assert argv[5:] == ["flight_ranking", "--schema", "include/flight_ranking/schema.pbtxt"]
    hidden = home / "dags/.old/hidden.pipeline.yaml"
    hidden.parent.mkdir()
    hidden.write_text(PIPELINE.read_text())
    for rest in (["flight_ranking", "--schema=x.pbtxt"], ["from_python"], ["hidden"]):
        argv, _ = handed_over("schema", "propose", *rest)
        assert argv[5:] == rest

    (home / "dags" / PIPELINE.name).write_text(PIPELINE.read_text().replace("epochs: 3", "epochs: -1"))
    assert main(["schema", "propose", "flight_ranking"]) == 1
    assert "train.epochs must be >= 0, got -1" in capsys.readouterr().out


def test_the_schema_of_a_team_s_pipeline_is_proposed_from_the_team_s_store(handed_over: HandedOver, home: Path) -> None:
    """Broken: it is proposed from data of the deployment's own area, or that area's credentials are sent there."""
    (home / "teams.yaml").write_text(
        "teams:\n  search: {dags: [search], names: search_, store: s3://search-data/mlops, "
        "store_connection: search_store, tracking_uri: http://search, approvers: [admin]}\n"
    )
    text = PIPELINE.read_text().replace("pipeline: flight_ranking", "pipeline: search_ranking\nteam: search")
    (home / "dags/search").mkdir(parents=True)
    (home / "dags/search/search_ranking.pipeline.yaml").write_text(
        text.replace("registered_model: flight_ranking", "registered_model: search_ranking")
    )
    argv, environment = handed_over(
        "schema", "propose", "search_ranking", "--label", "rank",
        AIRFLOW__MLOPS__TEAMS_FILE=str(home / "teams.yaml"), AIRFLOW__MLOPS__STORE="s3://own/mlops",
        AIRFLOW__CORE__DAGS_FOLDER=str(home / "dags"), AWS_ACCESS_KEY_ID="own", AWS_SECRET_ACCESS_KEY="own",
        AIRFLOW_CONN_SEARCH_STORE='{"conn_type": "aws", "login": "search", "password": "theirs"}',
    )  # fmt: skip
    schema = "include/flight_ranking/schema.pbtxt"
    assert argv[4:] == ["propose", "search_ranking", "--label", "rank", "--schema", schema]
    assert environment["MLOPS_STORE"] == "s3://search-data/mlops"
    assert (environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]) == ("search", "theirs")


def test_a_label_that_is_called_as_a_pipeline_is_none(handed_over: HandedOver, home: Path) -> None:
    """Broken: the other pipeline's schema would be proposed, from the store of its team."""
    text = PIPELINE.read_text().replace("pipeline: flight_ranking", "pipeline: rank")
    text = text.replace("schema_path: include/flight_ranking", "schema_path: include/rank")
    (home / "dags").mkdir()
    (home / "dags/rank.pipeline.yaml").write_text(text)
    (home / "dags/flight_ranking.pipeline.yaml").write_text(PIPELINE.read_text())
    argv, _ = handed_over("schema", "propose", "--label", "rank", "flight_ranking", "--write")
    schema = "include/flight_ranking/schema.pbtxt"
    assert argv[4:] == ["propose", "--label", "rank", "flight_ranking", "--write", "--schema", schema]
    for unfinished in ([], ["propose"], ["propose", "--label"], ["--help"]):
        assert handed_over("schema", *unfinished)[0][4:] == unfinished, "the command says what it lacks"


def test_a_runtime_that_is_not_there_is_named_with_the_fix(
    handed_over: HandedOver, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = home / ".venv/training/bin/python"
    handed_over("datasets", "list")
    python.unlink()
    assert main(["datasets", "list"]) == 1
    assert f"no interpreter at {python}: run `make venv`" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["lint", "--jsn"], ["up", "now"], ["dataset", "list"], []])
def test_what_no_command_knows_is_a_mistake(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: mlops" in capsys.readouterr().err


def test_lint_tells_sound_pipelines_from_broken_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / PIPELINE.name
    broken.write_text(PIPELINE.read_text().replace("epochs: 3", "epochs: -1"))
    assert main(["lint", str(PIPELINE)]) == 0
    assert main(["lint", str(PIPELINE), str(broken)]) == 1
    assert "train.epochs must be >= 0, got -1" in capsys.readouterr().out


def project_of_one(folder: Path) -> Path:
    """A project with the pipeline of :data:`PIPELINE` and its recipe."""
    home = folder / "project"
    for part in ("dags", "include/flight_ranking"):
        shutil.copytree(CHECKOUT / part, home / part)
    for other in ("stdlib_lm", "flight_arrival", "digits"):
        (home / f"dags/{other}.pipeline.yaml").unlink()
    return home


def test_lint_names_imports_of_what_may_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: a recipe would rely on a module that the next release moves, and hear of it on the night after."""
    home = project_of_one(tmp_path)
    assert main(["lint", "--home", str(home)]) == 0
    features = home / "include/flight_ranking/features.py"
    features.write_text(
        "from mlops.features.feature_set import FeatureSet\nfrom mlops import store, Hash\n"
        "import mlops.data.engine.engines\n"
    )
    capsys.readouterr()
    assert main(["lint", "--home", str(home)]) == 1
    internal = "is internal and may change"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (f"{features}:1:1: mlops.features.feature_set {internal}; write: from mlops import FeatureSet")
    assert lines[1].startswith(f"{features}:2:1: mlops.store {internal}; of mlops a recipe may import BadConfigError, ")
    assert lines[2].startswith(
        f"{features}:3:1: mlops.data.engine.engines {internal}; of mlops a recipe may import BadConfigError, "
    )
    assert len(lines) == 3, "the pipeline is not called ok"


def test_lint_names_code_that_no_run_key_covers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: a changed helper beside the recipe would change nothing that was made with the old one."""
    home = project_of_one(tmp_path)
    dataset = home / "include/flight_ranking/dataset.py"
    dataset.write_text(f"from ..common.helpers import K\n{dataset.read_text()}")
    assert main(["lint", "--home", str(home)]) == 1
    assert f"{dataset}:1: imports ..common.helpers, which is outside of " in capsys.readouterr().out


def test_lint_takes_folders(mlops: Mlops, tmp_path: Path) -> None:
    """Their pipelines, and those of the folders in them: a user has them by team."""
    folder = tmp_path / "dags/team"
    folder.mkdir(parents=True)
    shutil.copy(PIPELINE, folder)
    done = mlops("lint", str(tmp_path / "dags"))
    assert (done.returncode, done.stdout) == (0, f"{folder / PIPELINE.name}: ok\n")
    (folder / "flight.pipeline.yaml").write_text("pipeline: flight\n")
    done = mlops("lint", "--json", str(tmp_path / "dags"))
    broken, sound = json.loads(done.stdout)
    assert (done.returncode, sound) == (1, {"file": str(folder / PIPELINE.name), "mistakes": [], "done": []})
    assert "flight.pipeline.yaml:1:1: the key 'ingest' is missing" in broken["mistakes"]
    (tmp_path / "empty").mkdir()
    done = mlops("lint", str(tmp_path / "empty"))
    assert done.returncode == 1
    assert "empty: there is no *.pipeline.yaml in this folder, nor below it" in done.stdout


def test_lint_names_a_file_that_cannot_be_read_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: one link to nowhere hides what is wrong with all files after it."""
    shutil.copy(PIPELINE, tmp_path)
    (tmp_path / "a.pipeline.yaml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "b.pipeline.yaml").mkdir()
    (tmp_path / "c.pipeline.yaml").write_text("? [a]\n: 1\n")
    (tmp_path / ".#d.pipeline.yaml").symlink_to("ana@laptop.1234:1")
    assert main(["lint", str(tmp_path)]) == 1
    gone, folder, odd, sound = capsys.readouterr().out.splitlines()
    assert gone.startswith("a.pipeline.yaml:1:1: it cannot be read (No such file or directory): put a file there")
    assert folder.startswith("b.pipeline.yaml:1:1: it cannot be read (Is a directory): put a file there")
    assert odd.startswith("c.pipeline.yaml:1:1: no pipeline can be made of it: TypeError(")
    assert sound == f"{tmp_path / PIPELINE.name}: ok"


VISITS = """
pipeline: visits
start_date: 2024-01-01
ingest:
  sources: {visits: {path: data/visits.csv, event_time: at}}
  event_time: at
  window: 7
  split: {validation: 2, test: 2}
validate: {schema_path: include/visits/schema.pbtxt, unique: [[visit]]}
features: {feature_set: "include.visits.features:FEATURES"}
train: {learner: lightgbm, objective: binary, metric: auc}
evaluate: {registered_model: visits, metric: auc, slices: [shop]}
register: {registered_model: visits}
"""
FEATURES = """
from mlops import FeatureSet, Passthrough, Vocabulary

FEATURES = FeatureSet(
    label="bought",
    order_by=("visit",),
    transforms=[Passthrough("spent"), Vocabulary("shop", encoding="id")],
)
"""


def test_lint_with_data_says_all_mistakes_and_where(mlops: Mlops, tmp_path: Path) -> None:
    """With the real training runtime. Each would be the end of a run of its own."""
    home = tmp_path / "project"
    for folder in ("dags", "data", "include/visits"):
        (home / folder).mkdir(parents=True)
    for name in (".venv", "training"):
        (home / name).symlink_to(CHECKOUT / name)
    rows = [f"2024-01-{1 + n // 30:02}T10:00:00Z,{n},{'ns'[n % 2]},{n % 31},{n % 3 // 2}" for n in range(300)]
    (home / "data/visits.csv").write_text("at,visit,shop,spent,bought\n" + "".join(f"{row}\n" for row in rows))
    pipeline, features = home / "dags/visits.pipeline.yaml", home / "include/visits/features.py"
    pipeline.write_text(VISITS)
    features.write_text(FEATURES)
    arguments = ["lint", "--home", str(home), "--store", f"file://{tmp_path}/store", "--with-data", str(home / "dags")]
    done = mlops(*arguments)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == f"{pipeline}: ok"
    assert said[-1] == f"{pipeline}: an epoch of lightgbm"

    pipeline.write_text(VISITS.replace("[[visit]]", "[[visti]]").replace("slices: [shop]", "slices: [sohp]"))
    features.write_text(FEATURES.replace('"bought"', '"buoght"').replace('("visit",)', '("vist",)'))
    done = mlops(*arguments)
    assert done.returncode == 1
    mistakes = [line for line in done.stdout.splitlines() if "did you mean" in line]
    assert [line.partition(": ")[0] for line in mistakes] == [
        f"visits.pipeline.yaml:{place}" for place in ("9:64", "12:60", "10:25", "10:25")
    ]
    assert mistakes[2].endswith("features.py:5: FeatureSet.label: there is no column 'buoght'; did you mean 'bought'?")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mlops dat", {"datasets"}),
        ("mlops run flight_", {"flight_arrival", "flight_ranking"}),
        ("mlops spin train --pd", {"--pdb"}),
        ("mlops spin tr", {"train"}),
    ],
)
def test_a_shell_completes_commands_options_and_pipelines(
    line: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlops: Mlops
) -> None:
    """As the function does that ``register-python-argcomplete mlops`` gives to a shell."""
    found = tmp_path / "found"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    for name, value in {**asked, "_ARGCOMPLETE_STDOUT_FILENAME": str(found)}.items():
        monkeypatch.setenv(name, value)
    done = mlops()
    assert done.returncode == 0, done.stderr
    assert {each.strip() for each in found.read_text().split("\x0b")} == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9/auth/token cannot be reached: "),
        ("http://airflow.example:port", "Invalid port: 'port'"),
    ],
)
def test_an_airflow_that_does_not_answer_is_named(url: str, message: str, mlops: Mlops) -> None:
    done = mlops("why", "events", "--airflow-url", url)
    assert done.returncode == 1
    assert message in done.stdout
    assert "Traceback" not in done.stderr
