"""The command line: ``mlops up | down | demo | lint``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import httpx
from rich.console import Console

from mlops_provider.local.demo import run_demo
from mlops_provider.local.stack import Stack, StackError
from mlops_provider.spec import SpecError
from mlops_provider.spec_file import SUFFIX, load_pipeline


def main(arguments: list[str] | None = None) -> int:
    """:return: the process's exit code"""
    options = _parser().parse_args(arguments)
    # A log file has no width of its own; rich would cut it at 80.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    try:
        return int(options.run(options, console))
    except (StackError, TimeoutError, httpx.HTTPError) as error:
        console.print(f"[red]{error}[/red]")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mlops", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    checkout = Path(__file__).resolve().parents[2]

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--home", type=Path, default=checkout, help="project folder (default: %(default)s)")
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
    return parser


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


if __name__ == "__main__":
    sys.exit(main())
