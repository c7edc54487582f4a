"""The command line ``mlops``: what Airflow's side answers itself. All else is handed over to a runtime."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NoReturn

import argcomplete
import httpx
from rich.console import Console

from mlops.client import ClientError, UnreachableError
from mlops.contract.section import SpecError
from mlops.signing.aws import AwsAwayError, AwsRefusedError
from mlops.signing.keys import KeyServiceAwayError, UnusableKeyError
from mlops_provider.deployment import project_home
from mlops_provider.exceptions import StepFailedError, StepRetryableError
from mlops_provider.experiments.arguments import (
    add_arguments,
    add_spin_arguments,
    add_submit_arguments,
    add_submitted_arguments,
)
from mlops_provider.handed_over import (
    AIRFLOW_URL,
    CHECKOUT,
    HANDED_OVER,
    PASSWORD_VARIABLE,
    airflow_of,
    airflow_url_of,
    aside,
    deployment_of,
    find_stack,
    hand_over,
    print_json,
)
from mlops_provider.local.demo import run_demo
from mlops_provider.local.stack import ADMIN, Stack, StackError
from mlops_provider.logins import LoginsError
from mlops_provider.operations import gc, keys, logins
from mlops_provider.processes import leave
from mlops_provider.spec_file import SUFFIX

OF_A_TEAM = "one of the teams that share the deployment (default: the deployment's own area)"

STATES = {"ok": "green", "warning": "yellow", "broken": "red"}
"""Colours of what ``doctor`` finds."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
USERS_ERRORS = (
    StackError, SpecError, UnusableKeyError, KeyServiceAwayError, AwsAwayError, AwsRefusedError, LoginsError,
    StepFailedError, StepRetryableError, TimeoutError, ClientError, httpx.HTTPError, httpx.InvalidURL,
)  # fmt: skip
"""Whose message says what to do; of all others people see where they come from."""


def main(arguments: list[str] | None = None) -> int:
    """:return: the process's exit code"""
    parser = _parser()
    argcomplete.autocomplete(parser)  # where it is a shell that asks
    options, rest = parser.parse_known_args(arguments)
    if rest and options.run is not hand_over:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    # Airflow has logs printed, and boto3 says where it found credentials: a pipe would read it.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    # A log file has no width of its own; rich would cut it at 80.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    try:
        return int(options.run(options, console))
    except (httpx.TransportError, UnreachableError) as error:
        said = f"{error.request.url} cannot be reached: {error}" if isinstance(error, httpx.HTTPError) else str(error)
        said += "; mlops up starts an Airflow, --airflow-url names another"
        console.print(said, style="red", markup=False, soft_wrap=True)
        return 1
    except USERS_ERRORS as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mlops", description="Training pipelines of Airflow, in a terminal.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    configured = project_home()

    def command(
        name: str, run: object, text: str, home: Path | None = None, *, as_json: bool = False
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run, store=None)
        sub.add_argument("--home", type=Path, default=home or configured, help="project folder (default: %(default)s)")
        if as_json:
            sub.add_argument("--json", action="store_true", help="print one JSON document, the rest aside")
        return sub

    for name, run, text in (
        ("up", _up, "start Airflow and MLflow on this machine"),
        ("down", _down, "stop them"),
        ("demo", _demo, "run three nights of the flight_ranking pipeline and report"),
    ):
        sub = command(name, run, text, CHECKOUT)
        sub.add_argument("--airflow-port", type=int, default=8080)
        sub.add_argument("--mlflow-port", type=int, default=5000)
    text = "try a pipeline out in this terminal: its steps up to the evaluation"
    add_arguments(command("run", _run, text, as_json=True))
    text = "try one step out, again and again, on what an earlier run has made"
    add_spin_arguments(command("spin", _spin, text, as_json=True))
    text = "have a running Airflow try a pipeline out, by the code that is deployed there or yours"
    submit = command("submit", _submit, text, as_json=True)
    add_submit_arguments(submit)
    _add_airflow(submit)
    text = "list what Airflow was asked to try out, and how it goes"
    submitted = command("submitted", _submitted, text, as_json=True)
    add_submitted_arguments(submitted)
    _add_airflow(submitted)
    tonight = command("tonight", _tonight, "how all pipelines stand, those that need a person first")
    either = tonight.add_mutually_exclusive_group()
    either.add_argument("--watch", action="store_true", help="show it anew every few seconds, until Ctrl-C")
    either.add_argument("--json", action="store_true", help="print one JSON document")
    _add_airflow(tonight)
    for word, run, text in (
        ("metrics", _metrics, "the curves of an experiment or a night in Airflow"),
        ("logs", _logs, "what an experiment or a night in Airflow has written"),
        ("cancel", _cancel, "end an experiment or a night in Airflow"),
    ):
        sub = command(word, run, text, as_json=word != "logs")
        sub.add_argument("run_id", metavar="RUN", help="its id, as mlops submit prints it: DAG@RUN")
        _add_airflow(sub)
        if word != "cancel":
            sub.add_argument("--follow", action="store_true", help="print it as it comes, and wait for the end")
        if word == "logs":
            sub.add_argument("--task", help="of a night")
        if word == "metrics":
            sub.add_argument("--metric", action="append", default=[], help="only this one; may be given several times")
    why = command("why", _why, "why a run of Airflow failed, waits, or put nothing into production", as_json=True)
    why.add_argument("dag", metavar="DAG", help="its id, or that of a run, DAG@RUN")
    why.add_argument("run_id", metavar="RUN", nargs="?", help="the run's id (default: the newest)")
    _add_airflow(why)
    text = "have a run of the pipeline judge what mlops run has trained"
    register = command("register", _register, text, as_json=True)
    register.add_argument("training", help="its place, or the last part of it, as mlops runs list shows it")
    register.add_argument("--team", help=OF_A_TEAM)
    _add_airflow(register)
    text = "what is installed, reachable and writable, and how to fix what is not"
    doctor = command("doctor", _doctor, text, as_json=True)
    doctor.add_argument("--team", help=OF_A_TEAM)
    _add_airflow(doctor)
    lint = command("lint", _lint, "check pipeline files", as_json=True)
    lint.add_argument("files", nargs="*", type=Path, help=f"files, or folders of *{SUFFIX} (default: dags/)")
    lint.add_argument(
        "--with-data",
        action="store_true",
        help="also try it out on some rows of the newest snapshot or of the sources: imports, columns, features, some "
        "steps of the training, and whether a resume would change the model",
    )
    lint.add_argument("--store", help="that may hold a snapshot (default: the deployment's)")
    sub = command("keys", keys, "make a key that signs release decisions, and show the public half of one")
    sub.add_argument("action", choices=("new", "show"))
    sub.add_argument(
        "key",
        help="a file with the private key, whose public half is FILE.pub; for show also awskms: and the id, ARN or "
        "alias of a key in AWS KMS",
    )
    sub.add_argument(
        "--person",
        action="store_true",
        help="a person has the key, who signs entries of audit trails (mlops models promote ...) and nothing else: "
        "print the line of [mlops] release_public_keys that says so",
    )
    command(
        "logins", logins, "make the users of MLflow's own login, for whom [mlops] names connections, and their rights"
    )
    text = "list the Kubernetes Jobs that no task follows any more, and remove them"
    sub = command("gc", gc, text, as_json=True)
    sub.add_argument("--team", help=OF_A_TEAM)
    sub.add_argument("--delete", action="store_true", help="remove them; without it they are only listed")
    _add_airflow(sub)
    for word, (_, text) in HANDED_OVER.items():
        # All but the places is the runtime's to parse, --help too.
        sub = commands.add_parser(word, help=text, add_help=False, allow_abbrev=False)
        sub.set_defaults(run=hand_over, word=word)
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


def _run(options: argparse.Namespace, console: Console) -> int:
    # It builds the DAG, for which most of Airflow's SDK is imported.
    from mlops_provider.experiments.run import run

    return run(options, console)


def _spin(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.experiments.spin import spin

    return spin(options, console)


def _submit(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.submit import submit

    return submit(options, console)


def _submitted(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.submitted import submitted

    return submitted(options, console)


def _tonight(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.tonight import tonight

    return tonight(options, console)


def _logs(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.submit import logs

    return logs(options, console)


def _metrics(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.watch import metrics

    return metrics(options, console)


def _cancel(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.submit import cancel

    return cancel(options, console)


def _why(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.why import explain

    find_stack(options)
    out = aside() if options.json else None
    dag, at, run = options.dag.partition("@")  # as the other commands name a run
    found = explain(airflow_of(options), dag, options.run_id or (run if at else None))
    if out is not None:
        print_json(asdict(found), out)
        return 0
    console.print(f"{found.dag_id}, run {found.run_id}: {found.state}", style="bold", markup=False, soft_wrap=True)
    for sentence in found.sentences:
        console.print(sentence, markup=False, soft_wrap=True)
    return 0


def _register(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.adoption import adopt

    out = aside() if options.json else None
    adoption, said = adopt(deployment_of(options, options.team), airflow_of(options), options.training)
    console.print(said, markup=False, soft_wrap=True)
    if out is not None:
        print_json(asdict(adoption), out)
    return 0


def _doctor(options: argparse.Namespace, console: Console) -> int:
    """:return: exit code: 1 where something is broken"""
    from mlops_provider.doctor import examine

    out = aside() if options.json else None
    deployment = deployment_of(options, options.team)
    found = []
    for each in examine(deployment, airflow_url_of(options), partial(airflow_of, options)):
        found.append(each)
        if out is None:
            console.print(f"[{STATES[each.state]}]{each.state:8}[/] [bold]{each.subject:19}[/]", end="")
            console.print(each.found, markup=False, soft_wrap=True)
            if each.fix:
                console.print(f"{'':28}{each.fix}", style="dim", markup=False, soft_wrap=True)
    if out is not None:
        print_json([asdict(each) for each in found], out)
    return int(any(each.state == "broken" for each in found))


def _lint(options: argparse.Namespace, console: Console) -> int:
    from mlops_provider.linting import lint

    return lint(options, console)


def command() -> NoReturn:
    """Run as a program."""
    leave(main())


if __name__ == "__main__":
    command()
