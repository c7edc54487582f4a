"""The command line: ``mlops up | down | demo | lint | gc | keys | logins``; a runtime answers the other words."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from airflow.sdk.configuration import conf
from rich.console import Console
from rich.table import Table

from mlops.contract.sections.base import NAME_PATTERN, SpecError
from mlops.contract.step import STEPS_VARIABLES, TRACKING_VARIABLES, VALIDATION_PYTHON_VARIABLE, WORKSPACE_VARIABLE
from mlops.signing.aws import AwsAwayError, AwsRefusedError
from mlops.signing.keys import (
    KeyServiceAwayError,
    UnusableKeyError,
    is_in_service,
    key_id,
    load_key,
    load_public_keys,
    make_key,
)
from mlops.signing.seals import ANCHOR
from mlops_provider.anchors import InAirflow, note_newest
from mlops_provider.connections import login_environment, login_of, store_environment, store_of
from mlops_provider.deployment import LOGINS, Deployment, all_teams, tenant_of_name
from mlops_provider.exceptions import StepFailedError
from mlops_provider.launchers.process import runtime_environment
from mlops_provider.local.client import AirflowClient
from mlops_provider.local.demo import run_demo
from mlops_provider.local.stack import ADMIN, Stack, StackError, stack_settings
from mlops_provider.locked_anchors import LockedAnchors
from mlops_provider.logins import Login, LoginsError, make_logins
from mlops_provider.recipe_imports import internal_imports
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import SUFFIX, load_pipeline

CHECKOUT = Path(__file__).resolve().parents[2]
PASSWORD_VARIABLE = "MLOPS_AIRFLOW_PASSWORD"  # noqa: S105
HANDED_OVER: Mapping[str, tuple[str, str]] = {
    "audit": ("training", "whether the audit trails are what was written, and who answers for each entry"),
    "checkpoints": ("training", "list, verify and restore the checkpoints of trainings; export weights"),
    "datasets": ("training", "list, show, compare, verify and deprecate snapshots; collect garbage"),
    "diff": ("training", "what differs between two trainings: data, code, environment, parameters, metrics"),
    "features": ("training", "read the online feature store"),
    "models": ("training", "show, promote and roll back model versions; their audit trail"),
    "reproduce": ("training", "make a model version again from its snapshot, code and seed, and compare the bits"),
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

OF_A_TEAM = "one of the teams that share the deployment (default: the deployment's own area)"

AIRFLOW_URL = "http://127.0.0.1:8080"

MAKING_ENTRIES = frozenset({"sign", "promote", "archive", "rollback", "adopt"})
"""Second words of ``audit`` and ``models`` that sign an entry of an audit trail."""

SIGNING = MAKING_ENTRIES | {"verify"}
"""Commands that sign, and those that check signatures."""


USERS_ERRORS = (
    StackError, SpecError, UnusableKeyError, KeyServiceAwayError, AwsAwayError, AwsRefusedError, LoginsError,
    StepFailedError, TimeoutError, httpx.HTTPError,
)  # fmt: skip
"""Whose message says what to do; of all others people see where they come from."""


def main(arguments: list[str] | None = None) -> int:
    """:return: the process's exit code"""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.run is not _hand_over:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    # Airflow has logs printed, and boto3 says where it found credentials: a pipe would read it.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    # A log file has no width of its own; rich would cut it at 80.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    try:
        return int(options.run(options, console))
    except USERS_ERRORS as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mlops", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--home", type=Path, default=CHECKOUT, help="project folder (default: %(default)s)")
        return sub

    for name, run, text in (
        ("up", _up, "start Airflow and MLflow on this machine"),
        ("down", _down, "stop them"),
        ("demo", _demo, "run three nights of the flight_ranking pipeline and report"),
    ):
        sub = command(name, run, text)
        sub.add_argument("--airflow-port", type=int, default=8080)
        sub.add_argument("--mlflow-port", type=int, default=5000)
    lint = command("lint", _lint, "check pipeline files")
    lint.add_argument("files", nargs="*", type=Path, help=f"default: every *{SUFFIX} below dags/")
    lint.add_argument(
        "--with-data",
        action="store_true",
        help="also train some steps on the newest features, and look whether a resume would change the model",
    )
    lint.add_argument("--store", help="that holds the features (default: the deployment's)")
    keys = command("keys", _keys, "make a key that signs release decisions, and show the public half of one")
    keys.add_argument("action", choices=("new", "show"))
    keys.add_argument(
        "key",
        help="a file with the private key, whose public half is FILE.pub; for show also awskms: and the id, ARN or "
        "alias of a key in AWS KMS",
    )
    command(
        "logins", _logins, "make the users of MLflow's own login, for whom [mlops] names connections, and their rights"
    )
    gc = command("gc", _gc, "list the Kubernetes Jobs that no task follows any more, and remove them")
    gc.add_argument("--team", help=OF_A_TEAM)
    gc.add_argument("--delete", action="store_true", help="remove them; without it they are only listed")
    _add_airflow(gc)
    for word, (_, text) in HANDED_OVER.items():
        # All but the places is the runtime's to parse, --help too.
        sub = commands.add_parser(word, help=text, add_help=False, allow_abbrev=False)
        sub.set_defaults(run=_hand_over, word=word)
        sub.add_argument("--home", type=Path)
        sub.add_argument("--store")
        sub.add_argument("--team", help=OF_A_TEAM)
        if word in ("audit", "models"):
            _add_airflow(sub)
            sub.add_argument("--without-airflow", action="store_true")
    return parser


def _add_airflow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--airflow-url", help=f"(default: [api] base_url, or {AIRFLOW_URL})")
    parser.add_argument("--user", help=f"of Airflow; the password is read from {PASSWORD_VARIABLE}")


def _airflow(options: argparse.Namespace) -> AirflowClient:
    login = (options.user, os.environ.get(PASSWORD_VARIABLE, "")) if options.user else None
    return AirflowClient(options.airflow_url or conf.get("api", "base_url", fallback=AIRFLOW_URL), login)


def _keys(options: argparse.Namespace, console: Console) -> int:
    if options.action == "new":
        if is_in_service(options.key):
            raise UnusableKeyError(
                f"{options.key}: make the key in its service, of the kind ECC_NIST_P256 for signing, and then see "
                "`mlops keys show`"
            )
        if (file := Path(options.key)).exists():
            raise UnusableKeyError(f"{file} exists already: a lost key cannot be made again, so none is replaced")
        make_key(file)
    public = load_key(options.key).public
    console.print(f"{public}  # key {key_id(public)}", markup=False, soft_wrap=True)
    return 0


def _logins(options: argparse.Namespace, console: Console) -> int:
    admin = Login(os.environ.get(TRACKING_VARIABLES[0], ""), os.environ.get(TRACKING_VARIABLES[1], ""))
    found = [Deployment.load(team) for team in (None, *all_teams())]
    if not any(deployment.logins for deployment in found):
        options_of = ", ".join(f"{purpose}_login" for purpose in LOGINS)
        raise LoginsError(f"[mlops] names no connection with a user of MLflow: set {options_of}")
    for deployment in found:
        if deployment.tracking_uri != found[0].tracking_uri:
            console.print(f"left out {deployment.tracking_uri} of team {deployment.tenant.name}: it has another MLflow")
            continue
        asked = {purpose: login_of(purpose, deployment) for purpose in deployment.logins}
        logins = {purpose: login for purpose, login in asked.items() if login is not None}
        for done in make_logins(deployment.tracking_uri, admin, logins):
            console.print(done, markup=False)
    return 0


def _gc(options: argparse.Namespace, console: Console) -> int:
    # What it needs of Kubernetes takes seconds to import.
    from mlops_provider.launchers.kubernetes.manifests import deployment_id
    from mlops_provider.orphans import find_orphans, remove_orphans

    deployment = Deployment.load(options.team)
    where = deployment.kubernetes_connection, deployment.kubernetes_namespace
    orphans = find_orphans(*where, deployment_id(deployment.store), _airflow(options))
    table = Table("job", "created", "task", "why")
    for orphan in orphans:
        table.add_row(orphan.job, orphan.created, orphan.task, orphan.why)
    if not orphans:
        console.print(f"no orphaned Jobs in namespace {deployment.kubernetes_namespace}")
        return 0
    console.print(table)
    if options.delete:
        remove_orphans(*where, orphans)
        console.print(f"removed {len(orphans)}")
    else:
        console.print("to remove them: mlops gc --delete")
    return 0


def _stack(options: argparse.Namespace) -> Stack:
    return Stack(
        home=options.home,
        root=options.home / ".local",
        airflow_port=options.airflow_port,
        mlflow_port=options.mlflow_port,
        mlflow_login=True,
    )


def _start(stack: Stack, console: Console) -> None:
    with console.status("starting") as status:
        for sentence in stack.start():
            status.update(sentence)
            if not console.is_terminal:
                console.print(sentence)


def _up(options: argparse.Namespace, console: Console) -> int:
    stack = _stack(options)
    _start(stack, console)
    console.print(f"Airflow  {stack.airflow_url}\nMLflow   {stack.mlflow_url}", soft_wrap=True)
    console.print(f"         log in as {ADMIN}, with the password in {stack.mlflow_password_file}", soft_wrap=True)
    console.print("stop with: make down")
    return 0


def _down(options: argparse.Namespace, console: Console) -> int:
    _stack(options).stop()
    console.print("stopped")
    return 0


def _demo(options: argparse.Namespace, console: Console) -> int:
    stack = _stack(options)
    _start(stack, console)
    return run_demo(stack, console)


def _lint(options: argparse.Namespace, console: Console) -> int:
    broken = 0
    _find_stack(options)
    for path in options.files or sorted((options.home / "dags").rglob("*" + SUFFIX)):
        try:
            pipeline = load_pipeline(path)
        except (SpecError, OSError) as error:
            console.print(str(error), markup=False)
            broken += 1
            continue
        found = [each for folder in pipeline.recipes() for each in internal_imports(options.home / folder)]
        for sentence in found or [f"{path}: ok"]:
            console.print(sentence, markup=False, soft_wrap=True)
        broken += bool(found)
        if options.with_data:
            broken += not _sound_with_data(options, pipeline)
    return 1 if broken else 0


def _sound_with_data(options: argparse.Namespace, pipeline: Pipeline) -> bool:
    """Let the training runtime try it out; it says what it finds."""
    deployment = _deployment(options, pipeline.team)
    section = json.dumps(pipeline.train.model_dump(mode="json"))
    command = [str(_python(deployment, "training")), "-m", "mlops.commands", "lint", pipeline.pipeline, section]
    sys.stdout.flush()
    environment = runtime_environment(deployment, os.environ) | store_environment(deployment)
    return subprocess.run(command, env=environment, check=False).returncode == 0


def _hand_over(options: argparse.Namespace, console: Console) -> int:
    """Become the process that answers: its input, output and exit code are ours. Or, after it, tell Airflow."""
    deployment = _deployment(options, options.team)
    runtime, _ = HANDED_OVER[options.word]
    python = _python(deployment, runtime)
    command = [str(python), "-m", "mlops.commands", options.word, *_arguments(options, deployment)]
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
        found.append(note_newest(InAirflow(_airflow(options)), store_of(deployment), model, number, entry["sha256"]))
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


def _deployment(options: argparse.Namespace, team: str | None) -> Deployment:
    if team is not None and options.store is not None:
        raise StackError(
            "--store is for the deployment's own area, and a team's store is in the teams' file: leave it out"
        )
    _find_stack(options)
    return Deployment.load(team)


def _find_stack(options: argparse.Namespace) -> None:
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


def _python(deployment: Deployment, runtime: str) -> Path:
    python = deployment.pythons[runtime]
    if not python.exists():
        raise StackError(
            f"the {runtime} runtime has no interpreter at {python}: run `make venv`, or set [mlops] {runtime}_python "
            "in Airflow's configuration"
        )
    return python


def _arguments(options: argparse.Namespace, deployment: Deployment) -> list[str]:
    """The runtime's arguments, with what only this side knows."""
    given: list[str] = options.rest
    match options.word:
        case "schema":
            return [*given, *_schema_of(given, deployment.home)]
        case "audit" | "models":
            return [*given, *_keys_of(given, deployment), *_anchors(options, deployment)]
        case _:
            return given


def _schema_of(given: Sequence[str], home: Path) -> list[str]:
    """To ``schema propose PIPELINE`` where that pipeline's YAML keeps its schema."""
    for argument in () if _says(given, "--schema") else given:
        for path in (home / "dags").rglob(f"{argument}{SUFFIX}") if re.fullmatch(NAME_PATTERN, argument) else ():
            return ["--schema", load_pipeline(path).validate_.schema_path]
    return []


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
    """The newest entry of each model's audit trail that Airflow and the bucket of anchors know."""
    if options.word != "audit" or options.rest[:1] != ["verify"]:
        return []
    known = {} if options.without_airflow else dict(_anchors_in_airflow(options))
    if deployment.anchor_bucket is not None:
        for model, anchor in LockedAnchors(deployment.anchor_bucket).all().items():
            # Of two with one number the bucket's counts, which nobody can change.
            if model not in known or known[model]["number"] <= anchor["number"]:
                known[model] = anchor
    elif options.without_airflow:
        return []
    anchors = {model: anchor for model, anchor in known.items() if tenant_of_name(model) == options.team}
    return [f"--anchors={json.dumps(anchors)}"]


def _anchors_in_airflow(options: argparse.Namespace) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        found = _airflow(options).every("/variables", "variables", variable_key_pattern=f"{ANCHOR}%")
    except httpx.HTTPError as error:
        raise StackError(
            f"Airflow, which knows the newest entry of each trail, cannot be asked: {error}. Name it by --airflow-url, "
            f"and yourself by --user (password from {PASSWORD_VARIABLE}); make up starts the local one; "
            "--without-airflow leaves it out"
        ) from error
    for variable in found:
        yield variable["key"].removeprefix(ANCHOR), json.loads(variable["value"])


def _says(given: Sequence[str], option: str) -> bool:
    return any(argument.split("=")[0] == option for argument in given)


if __name__ == "__main__":
    sys.exit(main())
