"""``mlops submit``, ``logs`` and ``cancel``: experiments that a running Airflow does."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any, Final
from urllib.parse import quote

import httpx
import tenacity
from rich.console import Console

from mlops.contract.section import SpecError
from mlops_provider.experiments.request import changes_of
from mlops_provider.handed_over import airflow_of, aside, find_stack, print_json
from mlops_provider.local.client import FINISHED, AirflowClient
from mlops_provider.section_file import value_of
from mlops_provider.spec_file import SUFFIX

_LOOK_SECONDS: Final = 1.0
_MOST_LOOK_SECONDS: Final = 10.0
"""Between two looks at a run that has nothing new to say."""


def submit(options: argparse.Namespace, console: Console) -> int:
    """
    Have Airflow try a pipeline out.

    :return: exit code: 1 where it was followed to its end, and failed
    """
    out = aside() if options.json else None
    find_stack(options)
    airflow = airflow_of(options)
    run = _asked(airflow, _body(options))
    console.print(f"run {run['id']} is {run['state']}: {airflow.url}{run['airflow']}", markup=False, soft_wrap=True)
    if options.follow:
        run = _follow(airflow, run["id"], console)
    else:
        console.print(f"how it goes: mlops logs --follow {run['id']}", markup=False, soft_wrap=True)
    if out is not None:
        print_json(run, out)
    return int(run["state"] == "failed")


def logs(options: argparse.Namespace, console: Console) -> int:
    """
    Print what a run has written.

    :return: exit code: 1 where it was followed to its end, and failed
    """
    find_stack(options)
    airflow = airflow_of(options)
    if options.follow:
        return int(_follow(airflow, options.run_id, console)["state"] == "failed")
    params = {} if options.task is None else {"task": options.task}
    text = _answer(airflow, "GET", f"{_place(options.run_id)}/logs", params=params).text
    console.print(text, end="", markup=False, soft_wrap=True)
    return 0


def cancel(options: argparse.Namespace, console: Console) -> int:
    find_stack(options)
    airflow_of(options).mlops("DELETE", _place(options.run_id))
    console.print(f"{options.run_id} is being ended; what it has committed stays", markup=False, soft_wrap=True)
    return 0


def _body(options: argparse.Namespace) -> dict[str, Any]:
    given = {
        "as_of": options.as_of, "until": options.until, "seeds": options.seeds, "name": options.name,
        "sample": None if options.sample is None else _number(options.sample),
    }  # fmt: skip
    return {
        "pipeline": options.pipeline.rpartition("/")[2].removesuffix(SUFFIX),
        "settings": {".".join(keys): _json(".".join(keys), text) for keys, text in changes_of(options.set).items()},
        **{name: value for name, value in given.items() if value is not None},
    }


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


def _asked(airflow: AirflowClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask once, however often the connection breaks."""
    found: dict[str, Any] = _answer(
        airflow, "POST", "/runs", json=body, headers={"Idempotency-Key": token_hex(16)}
    ).json()
    return found


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.TransportError),
    stop=tenacity.stop_after_attempt(5),
    wait=tenacity.wait_exponential_jitter(max=30),
    reraise=True,
)
def _answer(airflow: AirflowClient, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """Ask what may be asked again."""
    return airflow.mlops(method, path, **kwargs)


def _place(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='@')}"


def _follow(airflow: AirflowClient, run_id: str, console: Console) -> dict[str, Any]:
    """Print an experiment's log as it comes; its last state."""

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    shown: dict[int, int] = {}
    pause = _LOOK_SECONDS
    try:
        while True:
            run: dict[str, Any] = _answer(airflow, "GET", _place(run_id)).json()
            if run["kind"] == "night":
                raise SpecError(f"{run_id} is a night, of several tasks: see mlops why, or mlops logs --task TASK")
            said = _say_new(airflow, run, shown, say)
            if run["state"] in FINISHED:
                break
            pause = _LOOK_SECONDS if said else min(pause * 1.5, _MOST_LOOK_SECONDS)
            time.sleep(pause)
    except KeyboardInterrupt:
        say(f"it goes on in Airflow; to end it: mlops cancel {run_id}")
        raise
    if run["failure"] is not None:
        console.print(run["failure"], style="red", markup=False, soft_wrap=True)
    return run


def _say_new(airflow: AirflowClient, run: Mapping[str, Any], shown: dict[int, int], say: Callable[[str], None]) -> bool:
    """
    Print the lines that were not shown yet, of each try.

    :param shown: how many were, by try
    """
    number = max((task["try_number"] for task in run["tasks"]), default=0)
    any_new = False
    for each in range(max(shown, default=1), number + 1):
        text = _answer(airflow, "GET", f"{_place(run['id'])}/logs", params={"try_number": each}).text
        lines = text.splitlines()[shown.get(each, 0) :]
        if each > 1 and each not in shown:
            say(f"try {each}")
        for line in lines:
            say(line)
        shown[each] = shown.get(each, 0) + len(lines)
        any_new = any_new or bool(lines)
    return any_new
