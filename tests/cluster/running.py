"""A cluster for the time of a ``with`` block, in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.config import Configuration, Image, Node

ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Mounts and processes of the cluster's own: they end with it."""


MOUNTS = ("unshare", "--mount", "--uts", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt")


def can_run() -> bool:
    """Whether this machine lets us make namespaces and mounts: root on Linux, where no container forbids it."""
    return (
        shutil.which("unshare") is not None and subprocess.run(MOUNTS, check=False, capture_output=True).returncode == 0
    )


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    kubeconfig: Path
    port: int
    folder: Path

    @property
    def server(self) -> str:
        """The API's address; it wants the bearer token ``test``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What the cluster's process itself wrote."""
        return self.folder / "cluster.log"


@contextmanager
def running_cluster(
    folder: Path, *, images: Mapping[str, Image], nodes: Sequence[Node] = (Node(name="node-0"),), **options: Any
) -> Iterator[Cluster]:
    """
    Start a cluster, and stop it with all its pods.

    :param folder: a folder of the test's own, made if it is missing
    :param images: the images that can be pulled, by name
    :param nodes: the nodes that are there from the start
    :param options: the further fields of ``Configuration``
    :raises RuntimeError: it does not start, or it failed meanwhile
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "configuration.json"
    Configuration(images=images, nodes=nodes, **options).write(file)
    command = ["setpriv", "--pdeathsig=KILL", *ISOLATED, sys.executable, "-m", "cluster", str(folder), str(file)]
    command.append("--stop-with-stdin")
    with (folder / "cluster.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=Path(__file__).parents[1]
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        word, _, port = process.stdout.readline().decode().strip().partition(" ")
        if word != "ready":
            raise RuntimeError("the cluster did not start")
        yield Cluster(folder / "kubeconfig", int(port), folder)
        process.stdin.close()
        if process.wait(timeout=30) != 0:
            raise RuntimeError("the cluster failed")
    except BaseException as error:
        if text := (folder / "cluster.log").read_text():
            error.add_note(f"The cluster's log ends: {text[-4000:]}")
        raise
    finally:
        process.kill()  # and with it all that is left in its namespaces
        process.wait()
        process.stdin.close()
        process.stdout.close()
