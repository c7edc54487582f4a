"""
From the sources to the features: each beside a plain baseline, run in turn in the same process or minute.

Most measurements need Polars and the training runtime. Those modules are programs of that runtime,
``python -m benchmarks.data.programs.<module> HOME SCRATCH``, whose last line of output is JSON: a list of the
arguments of :func:`benchmarks.record.compare`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.data import validation
from benchmarks.record import Record, compare
from mlops.contract.step import python_path

PROGRAMS = {
    "ingest": "training",
    "joins": "training",
    "features": "training",
    "drift": "validation",
    "newest_day": "validation",
}
"""Module and runtime."""


def measure(home: Path, scratch: Path) -> list[Record]:
    records = [record for program in PROGRAMS for record in run(program, home, scratch)]
    return records + validation.measure(home, scratch)


def run(program: str, home: Path, scratch: Path) -> list[Record]:
    """One program's records."""
    folder = scratch / program
    folder.mkdir()
    finished = subprocess.run(
        [home / ".venv" / PROGRAMS[program] / "bin/python", "-m", f"benchmarks.data.programs.{program}", home, folder],
        cwd=home,
        env=os.environ | {"PYTHONPATH": python_path(home), "MLOPS_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [compare(**arguments) for arguments in json.loads(finished.stdout.splitlines()[-1])]
