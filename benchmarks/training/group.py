"""
The training runtime beside plain baselines and other libraries, run in turn in the same process or minute.

The measurements need torch and the libraries of ``benchmarks/peers``, which lie in a folder of their own beside the
training runtime. They are programs, ``python -m benchmarks.training.programs.<module> HOME SCRATCH``, whose last line
of output is JSON: a list of the arguments of :func:`benchmarks.record.compare`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.record import Record, compare
from benchmarks.training import peers, restart
from mlops.contract.step import python_path

PROGRAMS = ("loop", "loader", "groups", "checkpoints", "tracking", "goodput", "talk", "index", "rendezvous")


def measure(home: Path, scratch: Path) -> list[Record]:
    records = [record for program in PROGRAMS for record in run(program, home, scratch)]
    records += restart.measure(home, scratch, environment(home))
    return records + peers.measure(home, scratch, environment(home))


def run(program: str, home: Path, scratch: Path) -> list[Record]:
    """One program's records."""
    folder = scratch / program
    folder.mkdir()
    finished = subprocess.run(
        [home / ".venv/training/bin/python", "-m", f"benchmarks.training.programs.{program}", home, folder],
        cwd=home,
        env=environment(home),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [compare(**arguments) for arguments in json.loads(finished.stdout.splitlines()[-1])]


def environment(home: Path) -> dict[str, str]:
    """Of a process that imports the training runtime and the peers: the runtime's own versions come first."""
    site = home / ".venv/training/lib/python3.11/site-packages"
    path = os.pathsep.join(map(str, (python_path(home), home / "plugins", site, home / ".venv/peers")))
    # One thread for each process, as torchrun sets it: two gangs' threads would get in each other's way.
    return os.environ | {"PYTHONPATH": path, "MLOPS_HOME": str(home), "OMP_NUM_THREADS": "1"}
