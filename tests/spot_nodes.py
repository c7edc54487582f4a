"""Nodes that come and go: real agents of one gang, each with its workers in sessions of their own."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mlops.contract.step import GRACE_VARIABLE, StepInput, read_result
from mlops_provider import processes
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import step_argv, threads
from mlops_provider.launchers.process import step_environment

NOTICE_SECONDS = 2.0
KEEP_ALIVE_SECONDS = 3
RENDEZVOUS = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@contextmanager
def rendezvous(python: Path) -> Iterator[str]:
    """Endpoint of a store that outlives all nodes."""
    with subprocess.Popen(
        [python, "-c", RENDEZVOUS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as store:
        assert store.stdout is not None
        try:
            yield f"127.0.0.1:{store.stdout.readline().strip()}"
        finally:
            store.kill()


@dataclass(kw_only=True)
class Nodes:
    """As many as there are just now. Which one is taken, and whether it is told before, is up to ``chance``."""

    place: Deployment
    work: StepInput
    endpoint: str
    most: int
    folder: Path
    """For their logs and results."""
    environment: Mapping[str, str]
    chance: random.Random
    started: int = 0
    killed: int = 0
    told: int = 0
    """Taken after a notice."""
    seconds: float = 0.0
    """With at least one node."""
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _since: float = 0.0

    def become(self, number: int) -> None:
        """Have as many nodes. One that is taken is killed with all it started, one in two after a notice."""
        if self._running:
            self.seconds += time.monotonic() - self._since
        self._since = time.monotonic()
        while len(self._running) > number:
            self._take(self.chance.choice(sorted(self._running)))
        while len(self._running) < number:
            self._give()

    def ended(self) -> list[str]:
        """What those that ended by themselves have to say."""
        return [
            f"{name} ended with {node.returncode}: {self.result(name)}\n{self.log(name)}"
            for name, node in self._running.items()
            if node.poll() is not None
        ]

    def wait(self, timeout_seconds: float) -> None:
        """Until all have ended by themselves."""
        deadline = time.monotonic() + timeout_seconds
        for name, node in self._running.items():
            try:
                node.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} does not end:\n{self.log(name)}") from None

    def result(self, name: str) -> object:
        return read_result(self.folder / f"{name}.json")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def logs(self) -> list[str]:
        """Of those that run."""
        return [f"{name}:\n{self.log(name)}" for name in self._running]

    def _give(self) -> None:
        self.started += 1
        name = f"node-{self.started:02}"
        document = self.folder / "input.json"
        document.write_text(self.work.dump())
        options = [f"--rdzv-endpoint={self.endpoint}", "--no-host-store", "--local-addr=127.0.0.1"]
        options += [f"--keep-alive-seconds={KEEP_ALIVE_SECONDS}", f"--node-name={name}"]
        argv = step_argv(
            str(self.place.pythons["training"]),
            str(document),
            1,
            nodes=f"1:{self.most}",
            max_restarts=self.work.config["max_restarts"],
            hang_seconds=self.work.config["hang_seconds"],
        )
        program = argv.index("mlops.steps.torchrun") + 1
        environment = step_environment(self.place, self.folder / f"{name}.json", os.environ) | threads(1, "1:4")
        with (self.folder / f"{name}.log").open("w") as log:
            self._running[name] = subprocess.Popen(
                [*argv[:program], *options, *argv[program:]],
                cwd=self.place.home,
                env={**environment, GRACE_VARIABLE: str(NOTICE_SECONDS), **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _take(self, name: str) -> None:
        node = self._running.pop(name)
        if self.chance.random() < 0.5:
            self.told += 1
            node.terminate()
            time.sleep(NOTICE_SECONDS)
        else:
            self.killed += 1
        processes.kill(processes.tree(node.pid))
        node.wait()
