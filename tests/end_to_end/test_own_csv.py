"""``docs/your-own-csv.md``, done as it stands: its files are written, its commands run, its runs triggered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from live_airflow import LiveAirflow
from project import REPOSITORY
from turns import on_turn

from mlops_provider.local.stack import stack_settings
from mlops_provider.operators.base import FAILURE_KEY

PAGE = REPOSITORY / "docs/your-own-csv.md"
PIPELINE = "tumours"
RUN_SECONDS = 300
FILE = re.compile(r"# (?P<path>\S+)\n(?P<text>.*)", re.DOTALL)


def blocks() -> Iterator[tuple[str, str]]:
    """Language and text of the page's blocks, up to the chapter about other tables."""
    steps, _, _ = PAGE.read_text().partition("## A table with a time")
    for block in re.finditer(r"```(\w+)\n(.*?)```", steps, re.DOTALL):
        yield block[1], block[2]


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[[], LiveAirflow]) -> LiveAirflow:
    return new_airflow()


def run(command: str, airflow: LiveAirflow) -> str:
    """Run a command of the page in the project, with the settings of its Airflow."""
    home = airflow.home
    if command.startswith("mlops "):
        command = f"{sys.executable} -m mlops_provider.cli {command.removeprefix('mlops ').strip()} --home {home}"
    settings = stack_settings(airflow.stack.root)
    settings |= {"PYTHONPATH": f"{REPOSITORY}/plugins:{REPOSITORY}/training", "COLUMNS": "140"}
    done = subprocess.run(
        command, shell=True, cwd=home, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@on_turn(1, 2)
@pytest.mark.timeout(900)
def test_the_page_leads_to_a_model_in_production(airflow: LiveAirflow) -> None:
    """Broken: the first hour of a new user would end with an error, and be the last."""
    home, number = airflow.home, 0
    outputs = []

    def trigger() -> tuple[str, str]:
        nonlocal number
        number += 1
        run_id = airflow.trigger(number, PIPELINE)
        return run_id, airflow.client.wait(PIPELINE, run_id, RUN_SECONDS)

    for language, text in blocks():
        if language != "sh":
            file = FILE.fullmatch(text)
            assert file is not None, f"the first line of a file's block names it: {text}"
            (home / file["path"]).parent.mkdir(parents=True, exist_ok=True)
            (home / file["path"]).write_text(text)
        elif text.startswith("make up"):  # it runs already
            run_id, state = trigger()
            assert state == "failed"
            said = airflow.client.xcom(PIPELINE, run_id, "validate", FAILURE_KEY)["message"]
        else:
            outputs.append(run(text, airflow))
            if "schema propose" in text:
                assert text.strip() in said.replace("--schema include/tumours/schema.pbtxt ", "").replace(
                    "LABEL", "target"
                ), "the message of the first run names the command"
                run_id, state = trigger()
                assert state == "success", airflow.states(run_id, PIPELINE)
    _, lint, _, history = outputs
    assert "an epoch of lightgbm" in lint
    assert "champion" in history
    assert airflow.aliases(PIPELINE)["champion"] == "1"
    assert trigger()[1] == "success"
    assert airflow.aliases(PIPELINE)["champion"] == "1", "the same rows make no better model"
