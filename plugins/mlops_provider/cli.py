"""The command line: ``mlops up | down | demo | lint | gc``; the other words are answered by a runtime."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import httpx
from rich.console import Console
from rich.table import Table

from mlops_provider.deployment import Deployment
from mlops_provider.launchers.process import runtime_environment
from mlops_provider.local.client import AirflowClient
from mlops_provider.local.demo import run_demo
from mlops_provider.local.stack import Stack, StackError, stack_settings
from mlops_provider.section import SpecError
from mlops_provider.spec_file import SUFFIX, load_pipeline

CHECKOUT = Path(__file__).resolve().parents[2]
PASSWORD_VARIABLE = "MLOPS_AIRFLOW_PASSWORD"
HANDED_OVER: Mapping[str, tuple[str, str]] = {
    "checkpoints": ("training", "list, verify and restore the checkpoints of trainings; export weights"),
    "datasets": ("training", "list, show, compare, verify and deprecate snapshots; collect garbage"),
    "diff": ("training", "what differs between two trainings: data, code, environment, parameters, metrics"),
    "features": ("training", "read the online feature store"),
    "models": ("training", "show, promote and roll back model versions; their audit trail"),
    "reproduce": ("training", "make a model version again from its snapshot, code and seed, and compare the bits"),
    "schema": ("validation", "propose changes of a schema"),
}
"""First words that ``training.commands`` answers: the runtime, and what for."""


def main(arguments: list[str] | None = None) -> int:
    """:return: the process's exit code"""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.run is not _hand_over:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    # A log file has no width of its own; rich would cut it at 80.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    try:
        return int(options.run(options, console))
    except (StackError, SpecError, TimeoutError, httpx.HTTPError) as error:
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
    lint.add_argument("files", nargs="*", type=Path, help=f"default: every *{SUFFIX} in dags/")
    gc = command("gc", _gc, "list the Kubernetes Jobs that no task follows any more, and remove them")
    gc.add_argument("--delete", action="store_true", help="remove them; without it they are only listed")
    gc.add_argument("--airflow-url", default="http://127.0.0.1:8080", help="(default: %(default)s)")
    gc.add_argument("--user", help=f"of Airflow; the password is read from {PASSWORD_VARIABLE}")
    for word, (_, text) in HANDED_OVER.items():
        # All but the places is the runtime's to parse, --help too.
        sub = commands.add_parser(word, help=text, add_help=False, allow_abbrev=False)
        sub.set_defaults(run=_hand_over, word=word)
        sub.add_argument("--home", type=Path)
        sub.add_argument("--store")
    return parser


def _gc(options: argparse.Namespace, console: Console) -> int:
    # What it needs of Kubernetes takes seconds to import.
    from mlops_provider.launchers.kubernetes.manifests import deployment_id
    from mlops_provider.strays import find_strays, remove_strays

    deployment = Deployment.load()
    login = (options.user, os.environ.get(PASSWORD_VARIABLE, "")) if options.user else None
    where = deployment.kubernetes_connection, deployment.kubernetes_namespace
    strays = find_strays(*where, deployment_id(deployment.store), AirflowClient(options.airflow_url, login))
    table = Table("job", "created", "task", "why")
    for stray in strays:
        table.add_row(stray.job, stray.created, stray.task, stray.why)
    if not strays:
        console.print(f"no strays in namespace {deployment.kubernetes_namespace}")
        return 0
    console.print(table)
    if options.delete:
        remove_strays(*where, strays)
        console.print(f"removed {len(strays)}")
    else:
        console.print("to remove them: mlops gc --delete")
    return 0


def _stack(options: argparse.Namespace) -> Stack:
    return Stack(
        home=options.home,
        root=options.home / ".local",
        airflow_port=options.airflow_port,
        mlflow_port=options.mlflow_port,
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
    console.print(f"Airflow  {stack.airflow_url}\nMLflow   {stack.mlflow_url}\nstop with: make down")
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
    for path in options.files or sorted((options.home / "dags").glob("*" + SUFFIX)):
        try:
            load_pipeline(path)
            console.print(f"{path}: ok")
        except (SpecError, OSError) as error:
            console.print(str(error), markup=False)
            broken += 1
    return 1 if broken else 0


def _hand_over(options: argparse.Namespace, console: Console) -> NoReturn:
    """Become the process that answers: its input, output and exit code are ours."""
    if options.home is not None:
        os.environ["AIRFLOW__MLOPS__HOME"] = str(options.home.resolve())
    if options.store is not None:
        os.environ["AIRFLOW__MLOPS__STORE"] = options.store
    if "AIRFLOW_HOME" not in os.environ:
        # The Airflow that `make up` started last, whatever its ports.
        home = Path(os.environ.get("AIRFLOW__MLOPS__HOME", CHECKOUT))
        for name, value in stack_settings(home / ".local").items():
            os.environ.setdefault(name, value)
    deployment = Deployment.load()
    runtime, _ = HANDED_OVER[options.word]
    python = deployment.pythons[runtime]
    if not python.exists():
        raise StackError(
            f"the {runtime} runtime has no interpreter at {python}: run `make venv`, or set [mlops] {runtime}_python "
            "in Airflow's configuration"
        )
    command = [str(python), "-m", "training.commands", options.word, *_with_schema(options, deployment.home)]
    os.execve(python, command, runtime_environment(deployment, os.environ))


def _with_schema(options: argparse.Namespace, home: Path) -> list[str]:
    """The runtime's arguments; to ``schema propose PIPELINE`` where that pipeline's YAML keeps its schema."""
    given: list[str] = options.rest
    if options.word != "schema" or any(argument.split("=")[0] == "--schema" for argument in given):
        return given
    for argument in given:
        path = home / "dags" / f"{argument}{SUFFIX}"
        if path.is_file():
            return [*given, "--schema", load_pipeline(path).validate_.schema_path]
    return given


if __name__ == "__main__":
    sys.exit(main())
