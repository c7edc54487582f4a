"""CPU time to read DAG files: generated pipelines beside as many trivial DAGs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.record import Record, compare
from mlops.contract.step import python_path

PIPELINE = "flight_ranking"
REPETITIONS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One reading of a DAG file that has many DAGs."""

    name: str
    count: int
    process: str
    """Whose fork reads it; see :mod:`benchmarks.parse_pass`."""
    baseline: str
    target: float
    dag_id: str | None = None
    """Only this one is wanted, as in a task's process."""


PASSES = (
    Pass(name="parse_1", count=1, process="fresh", baseline="1 trivial DAG", target=10),
    Pass(name="parse_200", count=200, process="fresh", baseline="200 trivial DAGs", target=4),
    Pass(
        name="parse_200_in_dag_processor",
        count=200,
        process="dag-processor",
        baseline="200 trivial DAGs",
        target=3,
    ),
    Pass(
        name="parse_for_a_task",
        count=200,
        process="scheduler",
        dag_id="dag_100",
        baseline="a task of one of 200 trivial DAGs",
        target=1,
    ),
)


def measure_parsing(home: Path, scratch: Path) -> list[Record]:
    """Each pass and its baseline in turn, in processes of their own."""
    trivial = write_trivial(home, scratch / "trivial")
    files = {count: write_pipelines(home, scratch / f"pipelines_{count}", count) for count in {p.count for p in PASSES}}
    records = []
    for each in PASSES:
        ours, theirs = [], []
        for _ in range(REPETITIONS):
            ours.append(parse_seconds(home, scratch, files[each.count], each))
            theirs.append(parse_seconds(home, scratch, trivial, each))
        records.append(
            compare(
                f"pipeline.{each.name}",
                unit="CPU s",
                ours=median(ours),
                baseline=each.baseline,
                baseline_value=median(theirs),
                target=each.target,
            )
        )
    return records


def write_pipelines(home: Path, folder: Path, count: int) -> Path:
    """
    Lay out a DAGs folder with as many pipelines, each the ranking pipeline under another name.

    :return: its one DAG file
    """
    folder.mkdir(parents=True)
    text = (home / f"dags/{PIPELINE}.pipeline.yaml").read_text()
    for number in range(count):
        name = f"dag_{number:03}"
        (folder / f"{name}.pipeline.yaml").write_text(text.replace(f"pipeline: {PIPELINE}", f"pipeline: {name}", 1))
    return Path(shutil.copy(home / "dags/pipelines.py", folder))


def write_trivial(home: Path, folder: Path) -> Path:
    """:return: the DAG file; how many DAGs it has is said when it is read"""
    folder.mkdir(parents=True)
    return Path(shutil.copy(home / "benchmarks/dags/trivial.py", folder))


def parse_seconds(home: Path, scratch: Path, file: Path, what: Pass) -> float:
    """CPU seconds of one pass over the file, in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment = inherited | {
        "AIRFLOW_HOME": str(scratch / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins"),
        "PYTHONPATH": f"{python_path(home)}{os.pathsep}{home / 'plugins'}",
        "NUM_DAGS": str(what.count),
    }
    command = [sys.executable, "-m", "benchmarks.parse_pass", str(file), what.process]
    command += [what.dag_id] if what.dag_id else []
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"reading {file} failed: {done.stderr[-2000:]}")
    seconds, found = done.stdout.split()[-2:]
    wanted = what.count
    if file.name == "pipelines.py":
        # It leaves out the DAGs that the task is not of; else each pipeline has a second one, for experiments.
        wanted = 1 if what.dag_id else 2 * what.count
    if int(found) != wanted:
        raise RuntimeError(f"{file} gave {found} DAGs, expected {wanted}")
    return float(seconds)
