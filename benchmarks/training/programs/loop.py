"""
Steps per second of our loop beside a bare one, Lightning Fabric, Lightning Trainer and Accelerate; and of its exact
mode beside the plain one.

The contenders of a workload run in turn in one gang of processes; see ``loop_gang.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rounds import records
from benchmarks.training.programs.workloads import WORKLOADS, Workload

BASELINES = {
    # Ahead of the three, within a percent of the first.
    "bare": ("a bare DDP loop, same model, data and seed", 0.99),
    "fabric": ("Lightning Fabric", 1.0),
    "lightning": ("Lightning Trainer", 1.0),
    "accelerate": ("Accelerate", 1.0),
}
EXACT = {"plain": ("ours, plain DDP", 0.9)}
PEERS = {"plain": ("ours, with peers: 0", 0.98)}


def gang(workload: Workload, scratch: Path) -> None:
    """Run a workload's contenders; rank 0 leaves ``<workload>.json``, each contender's steps per second by round."""
    run_gang(["benchmarks.training.programs.loop_gang", workload.name, str(scratch)], workload.processes)


def run_gang(module: Sequence[str], processes: int) -> None:
    """``python -m`` in as many processes, by torchrun; a gang of one is one process, as the train step starts it."""
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    command = [sys.executable, "-m", *(torchrun if processes > 1 else []), *module]
    # The last line of this program's output is its result.
    subprocess.run(command, check=True, stdout=sys.stderr)


def main(scratch: Path) -> list[dict[str, Any]]:
    made = []
    for workload in WORKLOADS.values():
        gang(workload, scratch)
        results = json.loads((scratch / f"{workload.name}.json").read_text())
        made += records(f"training.loop_{workload.name}", results, unit="steps/s", baselines=BASELINES)
        if "exact" in results:
            exact = {"ours": results["exact"], "plain": results["ours"]}
            made += records(f"training.exact_{workload.name}", exact, unit="steps/s", baselines=EXACT)
        if "peers" in results:
            peers = {"ours": results["peers"], "plain": results["ours"]}
            made += records(f"training.peers_{workload.name}", peers, unit="steps/s", baselines=PEERS)
    return made


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[2]))))
