"""
Nodes that meet, and then show each other that they live: our rendezvous beside torch's c10d rendezvous.

Real agents' rendezvous at one real store, many of them as threads of a few processes, for hundreds of machines are not
at hand. All share this machine's cores, so that what is seen is the work of all nodes together; with a core each they
wait for the store only.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from benchmarks.rounds import OURS, records
from mlops.elastic.rendezvous import LAST_CALL_SECONDS, LOOPBACK, Meeting, Rendezvous

FEW: Final = 64
MANY: Final = 256
PROCESSES: Final = 4
KEEP_ALIVE_SECONDS: Final = 6.0
WATCHED_SECONDS: Final = 12.0
JOIN_SECONDS: Final = 240.0
ROUNDS: Final = 2


def ours(port: int, nodes: int, run: str) -> RendezvousHandler:
    # As meet() does, but for what the kernel is told of the process's connections: here are those of hundreds of nodes.
    meeting = Meeting(
        run_id=run,
        endpoint=f"{LOOPBACK}:{port}",
        host_store=False,
        min_nodes=nodes,
        max_nodes=nodes,
        local_addr=LOOPBACK,
        join_seconds=JOIN_SECONDS,
        keep_alive_seconds=KEEP_ALIVE_SECONDS,
    )
    _, store = create_backend(RendezvousParameters("c10d", meeting.endpoint, run, nodes, nodes, is_host=False))
    return Rendezvous(meeting, store)


def theirs(port: int, nodes: int, run: str) -> RendezvousHandler:
    endpoint = f"{LOOPBACK}:{port}"
    backend, store = create_backend(
        RendezvousParameters("c10d", endpoint, run, nodes, nodes, local_addr=LOOPBACK, is_host=False)
    )
    timeout = RendezvousTimeout(
        join=timedelta(seconds=JOIN_SECONDS), last_call=timedelta(seconds=LAST_CALL_SECONDS),
        heartbeat=timedelta(seconds=KEEP_ALIVE_SECONDS),
    )  # fmt: skip
    interval: Any = KEEP_ALIVE_SECONDS / 4
    handler: RendezvousHandler = DynamicRendezvousHandler.from_backend(
        run, store, backend, nodes, nodes, LOOPBACK, timeout, keep_alive_interval=interval, keep_alive_max_attempt=4
    )
    return handler


MAKERS: Final[dict[str, Callable[[int, int, str], RendezvousHandler]]] = {OURS: ours, "torch": theirs}


def take_part(name: str, port: int, nodes: int, begin: Barrier, told: Connection) -> None:
    """A process's share of the nodes; tells when its last one was in, and the processor's time of what followed."""
    mine = range(nodes // PROCESSES)
    with ThreadPoolExecutor(len(mine)) as pool:
        handlers = list(pool.map(lambda _: MAKERS[name](port, nodes, f"{name}-{nodes}"), mine))
        begin.wait()
        sizes = {info.world_size for info in pool.map(lambda handler: handler.next_rendezvous(), handlers)}
    assert sizes == {nodes}, sizes
    met = time.time()
    before = time.process_time()
    until = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < until:  # as agents do
        for handler in handlers:
            handler.num_nodes_waiting()
        time.sleep(1.0)
    told.send((met, time.process_time() - before))
    begin.wait()  # a node that leaves is work for the others
    os._exit(0)


def measure(name: str, nodes: int) -> tuple[float, float]:
    """
    :return: seconds until the last node was in, and processor seconds a second of all nodes from then on
    """
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    # Not forked: the store has threads.
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(PROCESSES + 1, timeout=2 * JOIN_SECONDS)
    processes, ends = [], []
    for _ in range(PROCESSES):
        end, told = context.Pipe(duplex=False)
        process = context.Process(target=take_part, args=(name, store.port, nodes, begin, told))
        process.start()
        told.close()
        processes.append(process)
        ends.append(end)
    begin.wait()
    begun = time.time()
    found = [end.recv() for end in ends]
    begin.wait()
    for process in processes:
        process.join()
    return max(met for met, _ in found) - begun, sum(spent for _, spent in found) / WATCHED_SECONDS


def main() -> list[dict[str, Any]]:
    made = []
    for nodes, names in ((FEW, [OURS, "torch"]), (MANY, [OURS])):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name in names:
                found[name].append(measure(name, nodes))
        for number, (what, unit) in enumerate((("meet", "s"), ("alive", "CPU s/s"))):
            values = {name: [one[number] for one in found[name]] for name in names}
            baselines: dict[str, tuple[str, float]] = {"torch": ("torch's c10d rendezvous", 1.0)}
            if nodes == MANY:  # torch's takes too long to be measured each time
                values["bound"] = [JOIN_SECONDS if unit == "s" else 1.0] * ROUNDS
                baselines = {"bound": ("at most", 1.0)}
            title = f"training.rendezvous_{what}_{nodes}"
            made += records(title, values, unit=unit, baselines=baselines, better="lower")
    return made


if __name__ == "__main__":
    print(json.dumps(main()), file=sys.stdout)
