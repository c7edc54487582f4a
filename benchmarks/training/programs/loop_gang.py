"""``torchrun -m benchmarks.training.programs.loop_gang WORKLOAD SCRATCH``: one workload, by each contender in turn."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.rounds import in_rotation
from benchmarks.training.programs.contenders import BASELINES, Contender, Task
from benchmarks.training.programs.ours import Ours
from benchmarks.training.programs.workloads import WORKLOADS, Stopwatch, Workload

MOST_DIFFERENT = 1e-3
"""Of a weight. Sums in another order are allowed for; another order of the data, or another rate, is not."""


def timed(contender: Contender, task: Task, reference: list[nn.Module]) -> float:
    """Steps per second of one training that ends where the first one ended."""
    watch = Stopwatch(task.workload)
    trained = contender(task, watch)
    reference[:] = reference or [trained]
    for (name, found), expected in zip(trained.state_dict().items(), reference[0].state_dict().values(), strict=True):
        difference = (found - expected).abs().max().item()
        if difference > MOST_DIFFERENT:
            raise RuntimeError(f"{contender} trained another model: {name} differs by {difference:.2g}")
    return watch.steps_per_second


def run(workload: Workload, scratch: Path) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as folder, Ours(workload, Path(folder)) as ours:
        task = ours.task()
        contenders: dict[str, Contender] = {**BASELINES, **ours.contenders()}
        reference: list[nn.Module] = []
        ways: dict[str, Callable[[], float]] = {
            name: partial(timed, contender, task, reference) for name, contender in contenders.items()
        }
        results = in_rotation(ways, workload.rounds)
        if ours.leads:
            (scratch / f"{workload.name}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    logging.getLogger("lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)
    run(WORKLOADS[sys.argv[1]], Path(sys.argv[2]))
