"""
The talk of all ranks, once a second: a reduction along a tree beside a gather of every rank's numbers.

Real ranks, as many processes as are named, on this machine's few cores; the quickest of 200 talks counts, for others
wait for a core. With more ranks than cores what is seen is still the time of all ranks' work, not a message's way. For
1,024 ranks the time is computed: a message passes ``2 log2(ranks)`` times from one rank to the next, each as long as
seen between two ranks; a gather, round a ring, ``ranks - 1`` times.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed

from benchmarks.rounds import OURS, records
from mlops.contract.sections.train import Parallel
from mlops.trainer.parallel import Ranks
from mlops_provider.local.ports import free_port

WORLD_SIZES: Final = (2, 8)
MANY: Final = 1024
BOUND_MILLISECONDS: Final = 5.0
REPEATS: Final = 200
ROUNDS: Final = 3
NUMBERS: Final = [1 << 60, 3, 1, 0, 12345]


def talk(ranks: Ranks) -> object:
    return ranks.reduce(sums=NUMBERS[:1], largest=NUMBERS[1:])


def gather(ranks: Ranks) -> object:
    return ranks.gather(NUMBERS)


def rank(number: int, world_size: int, port: int, told: int) -> None:
    """One rank's process; the first writes the milliseconds of each way and round."""
    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, world_size, number == 0, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=number, world_size=world_size)
    group = distributed.new_group(backend="gloo")
    ranks = Ranks(rank=number, world_size=world_size, parallel=Parallel(dp_replicate=world_size), cpu_group=group)
    found: dict[str, list[float]] = {"talk": [], "gather": []}
    for _ in range(ROUNDS):
        for work in (talk, gather):
            found[work.__name__].append(1000 * timed(work, ranks))
    if number == 0:
        os.write(told, json.dumps(found).encode())
    distributed.barrier()


def timed(work: Callable[[Ranks], object], ranks: Ranks) -> float:
    distributed.barrier()
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work(ranks)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def measure(world_size: int) -> dict[str, list[float]]:
    reading, told = os.pipe()
    port = free_port()
    processes = []
    for number in range(world_size):
        if (process := os.fork()) == 0:
            try:
                rank(number, world_size, port, told)
            finally:
                os._exit(0)
        processes.append(process)
    os.close(told)
    for process in processes:
        os.waitpid(process, 0)
    found: dict[str, list[float]] = json.loads(os.read(reading, 1 << 16))
    return found


def main() -> list[dict[str, Any]]:
    made = []
    for world_size in WORLD_SIZES:
        found = measure(world_size)
        values = {OURS: found["talk"], "gather": found["gather"]}
        name = f"training.talk_{world_size}"
        made += records(name, values, unit="ms", baselines={"gather": ("all_gather", 1.0)}, better="lower")
        if world_size == WORLD_SIZES[0]:
            # Up and down: two hops between two ranks.
            hops = 2 * math.ceil(math.log2(MANY))
            values = {
                OURS: [hops * each / 2 for each in found["talk"]],
                "gather": [(MANY - 1) * each for each in found["gather"]],
                "bound": [BOUND_MILLISECONDS] * ROUNDS,
            }
            baselines = {"bound": ("at most", 1.0), "gather": ("all_gather round a ring", 0.1)}
            made += records(f"training.talk_{MANY}_computed", values, unit="ms", baselines=baselines, better="lower")
    return made


if __name__ == "__main__":
    print(json.dumps(main()))
