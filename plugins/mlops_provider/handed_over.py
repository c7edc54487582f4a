"""The words of the command line that a runtime answers, with what only the Airflow side knows."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import httpx
from airflow.sdk.configuration import conf
from rich.console import Console

from mlops.client import Client
from mlops.contract.section import NAME_PATTERN
from mlops.contract.step import STEPS_VARIABLES, TRACKING_VARIABLES, VALIDATION_PYTHON_VARIABLE, WORKSPACE_VARIABLE
from mlops.signing.aws import AwsAwayError, AwsRefusedError
from mlops.signing.keys import is_in_service, load_public_keys
from mlops.signing.seals import ANCHOR
from mlops_provider.anchors import AnchorError, InAirflow, anchor_of, note_newest
from mlops_provider.connections import login_environment, login_of, store_environment, store_of
from mlops_provider.deployment import Deployment, tenant_of_name
from mlops_provider.launchers.process import runtime_environment
from mlops_provider.local.client import AirflowClient
from mlops_provider.local.stack import StackError, stack_settings
from mlops_provider.locked_anchors import LockedAnchors
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import SUFFIX, load_pipeline, pipeline_files

CHECKOUT = Path(__file__).resolve().parents[2]
AIRFLOW_URL = "http://127.0.0.1:8080"
PASSWORD_VARIABLE = "MLOPS_AIRFLOW_PASSWORD"  # noqa: S105
HANDED_OVER: Mapping[str, tuple[str, str]] = {
    "audit": ("training", "whether the audit trails are what was written, and who answers for each entry"),
    "checkpoints": ("training", "list, verify and restore the checkpoints of trainings; export weights"),
    "datasets": ("training", "list, show, compare, verify and deprecate snapshots; collect garbage"),
    "diff": ("training", "what differs between two trainings: data, code, environment, parameters, metrics"),
    "features": ("training", "read the online feature store"),
    "init": ("training", "write a first recipe for a table, which passes lint and trains"),
    "models": ("training", "show, promote and roll back model versions; their audit trail"),
    "reproduce": ("training", "make a model version again from its snapshot, code and seed, and compare the bits"),
    "runs": ("training", "list what was tried out by mlops run, side by side; remove it"),
    "schema": ("validation", "propose changes of a schema"),
    "store": ("training", "read everything that committed refs name; say what is damaged; make it again"),
}
"""First words that ``mlops.commands`` answers: the runtime, and what for."""

ASKING_MLFLOW = frozenset({"audit", "diff", "models", "reproduce", "store"})
"""First words of the training runtime that read or write MLflow."""

OWN_LOGIN = (*TRACKING_VARIABLES, "MLFLOW_TRACKING_TOKEN")
"""Variables by which a person says who they are at MLflow."""

RUNNING_RECIPES = frozenset({"reproduce", "store"})
"""Commands that also run code of recipes, which gets the login of the steps."""

MAKING_ENTRIES = frozenset({"sign", "promote", "archive", "rollback", "retire", "adopt"})
"""Second words of ``audit`` and ``models`` that sign an entry of an audit trail."""

SIGNING = MAKING_ENTRIES | {"verify"}
"""Commands that sign, and those that check signatures."""


def hand_over(options: argparse.Namespace, console: Console) -> int:
    """Become the process that answers: its input, output and exit code are ours. Or, after it, tell Airflow."""
    deployment = deployment_of(options, options.team)
    pipeline = _pipeline_of(options.rest, deployment.home) if options.word == "schema" else None
    if options.team is None and pipeline is not None and pipeline.team is not None:
        deployment = deployment_of(options, pipeline.team)
    runtime, _ = HANDED_OVER[options.word]
    python = python_of(deployment, runtime)
    command = [str(python), "-m", "mlops.commands", options.word, *_arguments(options, deployment, pipeline)]
    environment = runtime_environment(deployment, os.environ) | store_environment(deployment)
    environment |= _logins_for(options.word, deployment, os.environ)
    environment[VALIDATION_PYTHON_VARIABLE] = str(deployment.pythons["validation"])
    if options.word not in ("audit", "models") or not {*options.rest[:1]} & MAKING_ENTRIES or options.without_airflow:
        os.execve(python, command, environment)
    with tempfile.TemporaryDirectory(prefix="mlops-") as folder:
        signed = Path(folder, "entry.json")
        code = subprocess.run([*command, f"--signed={signed}"], env=environment, check=False).returncode
        return (_note(signed, options, deployment, console) or code) if signed.exists() else code


def _note(signed: Path, options: argparse.Namespace, deployment: Deployment, console: Console) -> int:
    """
    Have Airflow, and the bucket of anchors, know the entry that a person has just made as the newest one.

    :param signed: file with model, number and digest of the entry
    :return: exit code: 1 where the trail is not the one that they know
    """
    entry = json.loads(signed.read_text())
    model, number = entry["model"], entry["number"]
    later = (
        "It is with the next transition that a task makes; an end of the trail that is cut off before, with all its "
    )
    later += "traces, is not seen."
    found = []
    try:
        found.append(note_newest(InAirflow(airflow_of(options)), store_of(deployment), model, number, entry["sha256"]))
    except AnchorError as error:
        found.append(str(error))
    except httpx.HTTPError as error:
        console.print(
            f"entry {number} is signed, but Airflow was not told of it: {error}. {later} Name Airflow by "
            f"--airflow-url, and a user who may edit variables by --user (password from {PASSWORD_VARIABLE}); "
            "--without-airflow leaves it out",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    if deployment.anchor_bucket is not None:
        try:
            bucket = LockedAnchors(deployment.anchor_bucket)
            found.append(note_newest(bucket, store_of(deployment), model, number, entry["sha256"]))
        except (AwsAwayError, AwsRefusedError) as error:
            said = f"entry {number} is signed, but is not in the bucket of anchors: {error}. {later}"
            console.print(said, style="yellow", markup=False, soft_wrap=True)
    notes = [note for note in found if note is not None]
    for note in notes:
        console.print(note, style="red", markup=False, soft_wrap=True)
    return int(bool(notes))


def _logins_for(word: str, deployment: Deployment, environment: Mapping[str, str]) -> dict[str, str]:
    """The deployment's logins at MLflow, after a person's own; code of a recipe gets that of the steps."""
    if word not in ASKING_MLFLOW:
        return {}
    logins = {name: environment[name] for name in OWN_LOGIN if environment.get(name)}
    if not logins.keys() & {TRACKING_VARIABLES[0], "MLFLOW_TRACKING_TOKEN"}:
        logins = login_environment(login_of("release", deployment), TRACKING_VARIABLES)
    if deployment.workspace is not None:
        logins[WORKSPACE_VARIABLE] = deployment.workspace
    if word in RUNNING_RECIPES:
        logins |= login_environment(login_of("steps", deployment), STEPS_VARIABLES)
    return logins


def deployment_of(options: argparse.Namespace, team: str | None) -> Deployment:
    if team is not None and options.store is not None:
        raise StackError(
            "--store is for the deployment's own area, and a team's store is in the teams' file: leave it out"
        )
    find_stack(options)
    return Deployment.load(team)


def find_stack(options: argparse.Namespace) -> None:
    """Have the settings of the local Airflow where nobody has named another one."""
    if options.home is not None:
        os.environ["AIRFLOW__MLOPS__HOME"] = str(options.home.resolve())
    if options.store is not None:
        os.environ["AIRFLOW__MLOPS__STORE"] = options.store
    local = Path(os.environ.get("AIRFLOW__MLOPS__HOME", CHECKOUT)) / ".local"
    # `.venv/bin/mlops` names the folder of the local Airflow where nobody named one.
    if os.environ.get("AIRFLOW_HOME", str(local / "airflow")) == str(local / "airflow"):
        # The Airflow that `make up` started last, whatever its ports.
        for name, value in stack_settings(local).items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("AIRFLOW__CORE__DAGS_FOLDER", str(local.parent / "dags"))


def python_of(deployment: Deployment, runtime: str) -> Path:
    python = deployment.pythons[runtime]
    if not python.exists():
        raise StackError(
            f"the {runtime} runtime has no interpreter at {python}: run `make venv`, or set [mlops] {runtime}_python "
            "in Airflow's configuration"
        )
    return python


def _arguments(options: argparse.Namespace, deployment: Deployment, pipeline: Pipeline | None) -> list[str]:
    """The runtime's arguments, with what only this side knows."""
    given: list[str] = options.rest
    match options.word:
        case "schema" if pipeline is not None and not _says(given, "--schema"):
            return [*given, "--schema", pipeline.validate_.schema_path]
        case "audit" | "models":
            return [*given, *_keys_of(given, deployment), *_anchors(options, deployment)]
        case _:
            return given


def _pipeline_of(given: Sequence[str], home: Path) -> Pipeline | None:
    """The pipeline that ``schema propose`` is asked about, where there is a YAML of it."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("words", nargs="*")
    for option in ("--snapshot", "--schema", "--label"):
        parser.add_argument(option)
    try:
        _, *named = parser.parse_known_intermixed_args(given)[0].words or [""]
    except argparse.ArgumentError:  # the command says what is wrong with it
        return None
    wanted = [f"{name}{SUFFIX}" for name in named[:1] if re.fullmatch(NAME_PATTERN, name)]
    return next((load_pipeline(path) for path in pipeline_files(home / "dags") if path.name in wanted), None)


def _keys_of(given: Sequence[str], deployment: Deployment) -> list[str]:
    """The key that signs what a person does, and those that are trusted."""
    if not {*given[:1]} & SIGNING:
        return []
    file = deployment.public_keys_file
    trusted = load_public_keys(file) if file is not None and file.exists() else []
    own = deployment.release_key
    has_own = own is not None and (is_in_service(own) or Path(own).exists())
    key = [f"--key={own}"] if has_own and given[0] != "verify" and not _says(given, "--key") else []
    return [*key, *(f"--trusted={public}" for public in trusted)]


def _anchors(options: argparse.Namespace, deployment: Deployment) -> list[str]:
    """
    The newest entry of each model's audit trail that Airflow and the bucket of anchors know; its ``flaw`` where Airflow
    knows something else.
    """
    if options.word != "audit" or options.rest[:1] != ["verify"]:
        return []
    known = {} if options.without_airflow else dict(_anchors_in_airflow(options))
    if deployment.anchor_bucket is not None:
        for model, anchor in LockedAnchors(deployment.anchor_bucket).all().items():
            in_airflow = known.get(model, {})
            # Of two with one number the bucket's counts, which nobody can change.
            if in_airflow.get("number", 0) <= anchor["number"]:
                known[model] = {**in_airflow, **anchor}
    elif options.without_airflow:
        return []
    anchors = {model: anchor for model, anchor in known.items() if tenant_of_name(model) == options.team}
    return [f"--anchors={json.dumps(anchors)}"]


def _anchors_in_airflow(options: argparse.Namespace) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        found = airflow_of(options).every("/variables", "variables", variable_key_pattern=f"{ANCHOR}%")
    except httpx.HTTPError as error:
        raise StackError(
            f"Airflow, which knows the newest entry of each trail, cannot be asked: {error}. Name it by --airflow-url, "
            f"and yourself by --user (password from {PASSWORD_VARIABLE}); make up starts the local one; "
            "--without-airflow leaves it out"
        ) from error
    for variable in found:
        if not variable["key"].startswith(ANCHOR):  # in Airflow's pattern _ is any character
            continue
        model = variable["key"].removeprefix(ANCHOR)
        try:
            anchor = anchor_of(model, variable["value"])
        except AnchorError as error:  # of one model: the others are checked all the same
            anchor = {"flaw": str(error)}
        yield model, anchor


def _says(given: Sequence[str], option: str) -> bool:
    return any(argument.split("=")[0] == option for argument in given)


def aside() -> TextIO:
    """
    Have all that this process says, logs of libraries too, go to standard error.

    :return: standard output
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def print_json(document: object, out: TextIO) -> None:
    """Write a document, and close what it is written to."""
    with out:
        out.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def airflow_url_of(options: argparse.Namespace) -> str:
    url: str = options.airflow_url or conf.get("api", "base_url", fallback=AIRFLOW_URL)
    return url.rstrip("/")


def airflow_of(options: argparse.Namespace) -> AirflowClient:
    return AirflowClient(airflow_url_of(options), _login_of(options))


def client_of(options: argparse.Namespace) -> Client:
    """Return the client of the pipelines' own API, which Airflow serves."""
    user, password = _login_of(options) or (None, None)
    return Client(airflow_url_of(options), user, password)


def _login_of(options: argparse.Namespace) -> tuple[str, str] | None:
    """User name and password; None where everybody is admin."""
    return (options.user, os.environ.get(PASSWORD_VARIABLE, "")) if options.user else None
