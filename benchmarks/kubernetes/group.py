"""The pod launcher beside the provider's KubernetesPodOperator, on the stand-in cluster of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.record import Record, compare
from mlops_provider.step import python_path


def measure(home: Path, scratch: Path) -> list[Record]:
    path = f"{python_path(home)}{os.pathsep}{home / 'tests'}"
    made = []
    for program in ("launching", "recovery"):
        finished = subprocess.run(
            [sys.executable, "-m", f"benchmarks.kubernetes.programs.{program}", home, scratch],
            cwd=home,
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        made += [compare(**arguments) for arguments in json.loads(finished.stdout.splitlines()[-1])]
    return made
