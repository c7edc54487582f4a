"""``docs/your-own-csv.md``, done as it stands: its files are written, its commands run, its runs triggered."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from live_airflow import LiveAirflow
from project import REPOSITORY
from turns import on_turn

from mlops_provider.local.stack import stack_settings

PAGE = REPOSITORY / "docs/your-own-csv.md"
PIPELINE = "tumours"
RUN_SECONDS = 300
READ = """.venv/training/bin/python -c "
import sys, polars
found = polars.read_parquet(sys.argv[1])
print(found.height, found['probability'].null_count())
" """
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
            assert state == "success", airflow.states(run_id, PIPELINE)
            assert airflow.aliases(PIPELINE)["champion"] == "1"
            said = airflow.client.log(PIPELINE, run_id, "validate", 1)
        else:
            outputs.append(run(text, airflow))
            if "schema propose" in text:
                named = text.strip().replace("tumours", "tumours --schema include/tumours/schema.pbtxt")
                assert named.replace("target", "LABEL") in said, "the log of the first run names the command"
    _, proposed, lint, history, schema, _ = outputs
    assert "the label, learnt as binary" in proposed
    assert "an epoch of lightgbm" in lint
    assert "champion" in history
    assert "no value" not in schema
    assert "target" in schema
    assert trigger()[1] == "success"
    assert airflow.aliases(PIPELINE)["champion"] == "1", "the same rows make no better model"
    asked = airflow.trigger(1, "new_tumours")
    assert airflow.client.wait("new_tumours", asked, RUN_SECONDS) == "success", airflow.states(asked, "new_tumours")
    ref = airflow.client.xcom("new_tumours", asked, "predict")
    assert (ref["model"], ref["model_version"], ref["num_rows"]) == (PIPELINE, "1", 19)
    rows = run(f'{READ} "{home}/data/answers/2023-12-31.parquet"', airflow).split()
    assert rows == ["19", "0"], "each of them has a probability"


@on_turn(1, 2)
@pytest.mark.timeout(900)
def test_images_are_learnt_by_a_net_of_the_recipe(airflow: LiveAirflow) -> None:
    """``dags/digits.pipeline.yaml`` as it stands: columns of bytes, ten classes, no time, and no key."""
    for folder in ("include/digits", "data/digits"):
        shutil.copytree(REPOSITORY / folder, airflow.home / folder, dirs_exist_ok=True)
    shutil.copy(REPOSITORY / "dags/digits.pipeline.yaml", airflow.home / "dags")
    run_id = airflow.trigger(1, "digits")
    assert airflow.client.wait("digits", run_id, RUN_SECONDS) == "success", airflow.states(run_id, "digits")
    metrics = airflow.client.xcom("digits", run_id, "evaluate")["metrics"]
    assert metrics["candidate.top_k_accuracy@2"] > metrics["candidate.accuracy"] > 0.9
    assert airflow.aliases("digits")["champion"] == "1"
