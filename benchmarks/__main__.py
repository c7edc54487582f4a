"""``python -m benchmarks [--only GROUP]``: run the benchmarks, print their tables, write ``build/bench.json``."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.record import store, table

GROUPS = {
    "pipeline": "benchmarks.pipeline",
    "data": "benchmarks.data.group",
    "training": "benchmarks.training.group",
    "kubernetes": "benchmarks.kubernetes.group",
    "lifecycle": "benchmarks.lifecycle.group",
    "learners": "benchmarks.learners.group",
    "experiments": "benchmarks.experiments",
    "fleet": "benchmarks.fleet",
}
"""A group's module has ``measure(home: Path, scratch: Path) -> list[Record]``."""

HOME = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", choices=sorted(GROUPS), help="one group; the records of the others stay")
    only = parser.parse_args(arguments).only
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    # A benchmark that is told to end stops the servers it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Without byte code on disk every process would spend its first seconds compiling.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    build = HOME / "build"
    build.mkdir(exist_ok=True)
    for group in [only] if only else GROUPS:
        with tempfile.TemporaryDirectory(prefix=f"bench-{group}-", dir=build) as folder:
            # Whoever imports Airflow here must not read or make the user's own.
            os.environ["AIRFLOW_HOME"] = str(Path(folder, "airflow"))
            records = importlib.import_module(GROUPS[group]).measure(HOME, Path(folder))
        store(build / "bench.json", group, records)
        console.print(table(group, records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
