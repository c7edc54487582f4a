"""
Learners beside torch, each beside its library called by hand.

The measurement needs the training runtime. It is a program, ``python -m benchmarks.learners.programs.trees HOME
SCRATCH``, whose last line of output is JSON: a list of the arguments of :func:`benchmarks.record.compare`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.record import Record, compare
from mlops.contract.step import python_path


def measure(home: Path, scratch: Path) -> list[Record]:
    finished = subprocess.run(
        [home / ".venv/training/bin/python", "-m", "benchmarks.learners.programs.trees", home, scratch],
        cwd=scratch,
        env=os.environ | {"PYTHONPATH": f"{python_path(home)}:{home}/plugins", "MLOPS_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [compare(**arguments) for arguments in json.loads(finished.stdout.splitlines()[-1])]
