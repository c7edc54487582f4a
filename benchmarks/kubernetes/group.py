"""The pod launcher beside the provider's KubernetesPodOperator, on the stand-in cluster of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.record import Record, compare
from mlops.contract.step import python_path


def measure(home: Path, scratch: Path) -> list[Record]:
    path = os.pathsep.join(map(str, (python_path(home), home / "plugins", home / "tests")))
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
