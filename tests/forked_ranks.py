"""
Gangs whose ranks are forked from one process that has torch imported: the product's own way to start a node's workers,
without the seconds that an agent and each rank take to import it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mlops.elastic.workers import Worker, end, prepare
from mlops_provider.local.ports import free_port

TESTS = Path(__file__).parent


def run_ranks(program: Path, num_ranks: int, *arguments: str, timeout: float) -> None:
    """
    Run ``python PROGRAM ARGUMENT...`` in so many processes, of one thread each, as torchrun would; one is no gang.

    :param timeout: seconds
    :raises AssertionError: with the ranks' last lines, where one fails or does not end in time
    """
    # Read when the process that is forked starts, and imports torch.
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{TESTS}"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        prepare()
    environment = {**os.environ, **settings}
    if num_ranks > 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_ranks)}
    workers = []
    try:
        for rank in range(num_ranks):
            seat = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if num_ranks > 1 else {}
            words = [str(program), *arguments]
            workers.append(Worker(rank=rank, program=words, environment=environment | seat, prefix=f"{rank}: "))
        deadline = time.monotonic() + timeout
        # One that fails leaves the others waiting for it.
        while (codes := [worker.exit_code for worker in workers]).count(0) < num_ranks:
            failed = [code for code in codes if code not in {None, 0}]
            assert not failed, _last_lines(workers)
            assert time.monotonic() < deadline, _last_lines(workers)
            time.sleep(0.02)
    finally:
        end(workers, signal.SIGKILL, 20)


def _last_lines(workers: list[Worker]) -> str:
    time.sleep(0.5)  # the last of them are on their way
    parts = [f"rank {each.rank}, exit code {each.exit_code}:\n" + "\n".join(each.tail) for each in workers]
    return "\n".join(parts)
