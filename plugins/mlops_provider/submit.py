"""``mlops submit``, ``logs`` and ``cancel``: experiments that a running Airflow does."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from mlops.client import Client, Run, RunSummary
from mlops.client.following import CUTS, Looks
from mlops.contract.extensions import recipe_folders
from mlops.contract.rest import FINISHED
from mlops.contract.section import SpecError, leaves
from mlops.contract.settings import not_replaced
from mlops_provider.experiments.asked import file_of
from mlops_provider.experiments.request import changes_of
from mlops_provider.handed_over import aside, client_of, find_stack, print_json
from mlops_provider.section_file import read_document, value_of
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import SUFFIX


def submit(options: argparse.Namespace, console: Console) -> int:
    """
    Have Airflow try a pipeline out.

    :return: exit code: 1 where it was followed to its end, and failed
    """
    out = aside() if options.json else None
    path = Path(options.pipeline)
    if path.name.endswith(SUFFIX) and not path.is_file():
        raise SpecError(f"{path}: there is no such file; give the pipeline's name for what Airflow has")
    find_stack(options)
    settings = {".".join(keys): _json(".".join(keys), text) for keys, text in changes_of(options.set).items()}
    with client_of(options) as client:
        run: RunSummary | Run = client.submit(
            path.name.removesuffix(SUFFIX),
            spec=read_document(Pipeline, path, "a pipeline") if path.name.endswith(SUFFIX) else None,
            settings=settings,
            as_of=options.as_of,
            dataset=options.dataset,
            until=options.until,
            seeds=options.seeds,
            sample=None if options.sample is None else _number(options.sample),
            name=options.name,
            priority=options.priority,
            recipes=_recipes(options, settings) if options.code else (),
        )
        console.print(f"run {run.id} is {run.state}: {run.airflow}", markup=False, soft_wrap=True)
        if options.follow:
            run = _follow(client, run.id, console)
        else:
            console.print(f"how it goes: mlops logs --follow {run.id}", markup=False, soft_wrap=True)
    if out is not None:
        print_json(run.model_dump(mode="json"), out)
    return int(run.state == "failed")


def _recipes(options: argparse.Namespace, settings: Mapping[str, Any]) -> list[Path]:
    """
    Return the folders of the code that the pipeline runs.

    :param settings: that are asked for
    :raises SpecError: where it runs none
    """
    # Not checked here: Airflow may have teams and packages that this machine has not.
    own = read_document(Pipeline, file_of(options.pipeline, options.home / "dags"), "a pipeline")
    named = {".".join(map(str, keys)): value for keys, value in leaves(own)}
    found = recipe_folders({**not_replaced(named, settings), **settings})
    if not found:
        raise SpecError(f"--code: {options.pipeline} runs no code of a recipe; leave it out")
    return [options.home / each for each in found]


def logs(options: argparse.Namespace, console: Console) -> int:
    """
    Print what a run has written.

    :return: exit code: 1 where it was followed to its end, and failed
    """
    find_stack(options)
    with client_of(options) as client:
        if options.follow:
            return int(_follow(client, options.run_id, console).state == "failed")
        console.print(client.logs(options.run_id, task=options.task), end="", markup=False, soft_wrap=True)
    return 0


def cancel(options: argparse.Namespace, console: Console) -> int:
    out = aside() if options.json else None
    find_stack(options)
    with client_of(options) as client:
        run = client.cancel(options.run_id)
    console.print(f"{options.run_id} is being ended; what it has committed stays", markup=False, soft_wrap=True)
    if out is not None:
        print_json(run.model_dump(mode="json"), out)
    return 0


def _json(name: str, text: str) -> Any:
    given = f"--set {name}={text}"
    value = value_of(text, given)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise SpecError(f"{given}: JSON, which Airflow keeps, has no such value; write a text or a number") from None
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"--sample {text}: write a share such as 0.1") from None


def _follow(client: Client, run_id: str, console: Console) -> Run:
    """Print an experiment's log as it comes; its last state."""

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    shown: dict[int, int] = {}
    looks = Looks(run_id, has_answered=True)
    try:
        while True:
            try:
                run = client.run(run_id)
                if run.kind == "night":
                    raise SpecError(f"{run_id} is a night, of several tasks: see mlops why, or mlops logs --task TASK")
                if _say_new(client, run, shown, say):
                    looks.has_news()
                if run.state in FINISHED:
                    break
                pause = looks.pause()
            except CUTS as error:
                pause = looks.pause(error)
            time.sleep(pause)
    except KeyboardInterrupt:
        say(f"it goes on in Airflow; to end it: mlops cancel {run_id}")
        raise
    if run.failure is not None:
        console.print(run.failure, style="red", markup=False, soft_wrap=True)
    return run


def _say_new(client: Client, run: Run, shown: dict[int, int], say: Callable[[str], None]) -> bool:
    """
    Print the lines that were not shown yet, of each try.

    :param shown: how many were, by try
    """
    number = max((task.try_number for task in run.tasks), default=0)
    any_new = False
    for each in range(max(shown, default=1), number + 1):
        lines = client.logs(run, try_number=each).splitlines()[shown.get(each, 0) :]
        if each > 1 and each not in shown:
            say(f"try {each}")
        for line in lines:
            say(line)
        shown[each] = shown.get(each, 0) + len(lines)
        any_new = any_new or bool(lines)
    return any_new
