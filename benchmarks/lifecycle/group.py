"""
From a checkpoint to production: whether the gate keeps luck out, and lets real improvements in.

The measurement needs the training runtime. It is a program, ``python -m benchmarks.lifecycle.programs.gate HOME``,
whose last line of output is JSON: a list of the arguments of :func:`benchmarks.record.compare`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.record import Record, compare
from mlops.contract.step import python_path


def measure(home: Path, scratch: Path) -> list[Record]:
    path = python_path(home)
    finished = subprocess.run(
        [home / ".venv/training/bin/python", "-m", "benchmarks.lifecycle.programs.gate", home],
        cwd=scratch,
        # Trainings this small only wait for a second thread.
        env=os.environ | {"PYTHONPATH": path, "MLOPS_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [compare(**arguments) for arguments in json.loads(finished.stdout.splitlines()[-1])]
