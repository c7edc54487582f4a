"""
Functions that every process of a step needs for its operating system and its deployment: paths, limits, its parent.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from mlops.contract.step import HOME_VARIABLE, PARENT_VARIABLE, RESULT_PATH_VARIABLE, STORE_VARIABLE, BadConfigError

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_OWN_FILES = 256
"""Descriptors that a training process needs beside its connections: for libraries, logs, data shards, heartbeats."""
_PLENTY_OF_FILES = 65_536
"""
Open files up to which the limit is raised if no more are needed: some programs walk through all possible descriptors.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSettings:
    """Locations that this process works with; everything that is read from the environment."""

    home: Path
    """Project folder, which holds ``include/``."""
    store: str
    """URI of the object store."""
    tracking_uri: str
    """Address of the MLflow server."""
    result_path: Path
    rank: int
    """Rank within the torchrun process group; 0 without torchrun."""

    @classmethod
    def from_environment(cls) -> ProcessSettings:
        """
        Read the deployment from the environment variables that the launcher sets.

        :raises BadConfigError: naming the variable that is not set
        """
        required = {name: os.environ.get(name) for name in (HOME_VARIABLE, STORE_VARIABLE, RESULT_PATH_VARIABLE)}
        for name, value in required.items():
            if not value:
                raise BadConfigError(f"the environment variable {name} is not set; the launcher sets it")
        return cls(
            home=Path(os.environ[HOME_VARIABLE]),
            store=os.environ[STORE_VARIABLE],
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", ""),
            result_path=Path(os.environ[RESULT_PATH_VARIABLE]),
            rank=int(os.environ.get("RANK", "0")),
        )


def memory_limit() -> int:
    """
    Return the bytes of memory that this process should make do with.

    That is the memory of the machine or the limit of its container; ``MLOPS_MEMORY_BYTES`` lowers it where other steps
    run beside this one.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    container = Path("/sys/fs/cgroup/memory.max")
    if container.exists() and (allowed := container.read_text().strip()) != "max":
        limits.append(int(allowed))
    if wanted := os.environ.get("MLOPS_MEMORY_BYTES"):
        limits.append(int(wanted))
    return min(limits)


def open_files_of(world_size: int) -> int:
    """
    Return the number of descriptors that one process of a training of ``world_size`` processes may need.

    gloo opens a connection to each peer in each of the two groups that span all ranks, and the process that holds the
    store has two from each rank and two from each agent (measured with torch 2.13 at 2 to 16 ranks).
    """
    return _OWN_FILES + 4 * world_size


def allow_open_files(needed: int, why: str) -> None:
    """
    Raise this process's limit of open files, and that of the processes which it will start.

    The soft limit is 1,024 on most systems, of which a training of 300 ranks runs out while it connects.

    :param why: begins the message, e.g. ``a training of 1024 processes``
    :raises BadConfigError: where the hard limit, which this process may not raise, is lower than what is needed
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if allowed < needed:
        raise BadConfigError(
            f"{why} needs {needed} open files in one process, and the system allows {allowed} (ulimit -Hn): raise the "
            "hard limit (LimitNOFILE of the service or of containerd, --ulimit nofile of docker, "
            "/etc/security/limits.conf), or start fewer processes (train.nodes, train.processes)"
        )
    if (wanted := min(allowed, max(needed, _PLENTY_OF_FILES))) > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def lock_file(name: str) -> Path:
    """Return a lock file of this release: beside the package in a checkout, within it in an installed wheel."""
    package = Path(__file__).parent
    beside = package.with_name(name)
    return beside if beside.is_file() else package / name


def memory_free() -> int:
    """
    Return the bytes of memory that are free on the machine and in this container, without taking any from a process.
    """
    import psutil

    free: list[int] = [psutil.virtual_memory().available]
    used = Path("/sys/fs/cgroup/memory.current")
    if used.exists():
        free.append(memory_limit() - int(used.read_text()))
    return min(free)


def die_with_parent() -> None:
    """
    Have the kernel kill this process when its parent ends, however it ends.

    Without it, killing Airflow or torchrun by SIGKILL would leave the step running beside its own retry.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have ended before the call: then this process already belongs to another one.
    if orphaned(parent, os.environ.get(PARENT_VARIABLE), under_torchrun="TORCHELASTIC_RUN_ID" in os.environ):
        os._exit(143)


def orphaned(parent: int, launcher: str | None, *, under_torchrun: bool) -> bool:
    """
    Return True if the parent is no longer the process that started this one.

    :param launcher: process id of the launcher, or of the warm runtime that forked the step; None in a container, where
        the rightful parent may well be process 1
    """
    if launcher is None:
        return False
    return parent == 1 if under_torchrun else parent != int(launcher)
