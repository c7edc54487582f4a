"""
Processes that are forked from one which has imported their libraries: the wire, and the side that asks.

``mlops/fork_server.py`` answers. The airflow runtime asks too, so this is standard library only.

A connection is an owner: what was forked for it is killed when the connection ends. A request is the length of a JSON
document in 8 bytes, sent together with three descriptors (output, errors, status), and the document. On ``status``, a
socket of its own, the answer is the child's process id, later its exit code; nothing at all where no child was started.

A *warm runtime* is such a server that all launchers of one deployment share. It listens in a private folder, under a
name made of all that its children have from its start: see :class:`WarmRuntime`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlops.contract.refs import digest_of

logger = logging.getLogger(__name__)

PROTOCOL = 1
"""Part of a warm runtime's name: raise it where a request or an answer changes."""
READ_AT_START = (
    "ARROW_", "ATEN_", "BLIS_", "CUBLAS_", "CUDA_", "CUDNN_", "GLIBC_", "GOMP_", "HOME", "JE_", "KMP_", "LANG", "LC_",
    "LD_", "MALLOC_", "MKL_", "MLFLOW_CONFIGURE_LOGGING", "MLFLOW_LOGGING_LEVEL", "MPL", "NUMEXPR_", "NVIDIA_", "OMP_",
    "OPENBLAS_", "PATH", "PYTHON", "PYTORCH_", "SQLALCHEMY_", "TMPDIR", "TORCH", "TRITON_", "TZ", "XDG_",
)  # fmt: skip
"""Begin the names of variables that are read when a process starts or imports its libraries, not when they are used."""
READY = b"ready"
"""In the lock file of a warm runtime that has imported its libraries."""

_LENGTH = struct.Struct(">Q")
_CREDENTIALS = struct.Struct("3i")
"""``struct ucred``: process, user, group."""
_ANSWER_SECONDS = 20.0
"""For a warm runtime to fork; without an answer the process is started otherwise."""
_RETRY_SECONDS = 300.0
"""A warm runtime that could not start is not started again for so long."""
_STATUS_LINES = (
    "Umask:", "Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:",
    "Seccomp:", "SigBlk:", "SigIgn:", "Cpus_allowed:", "Mems_allowed:",
)  # fmt: skip
"""Lines of /proc/PID/status that are compared, see proc(5): mask, user, groups, rights, signals, cores."""
_ORPHAN = "import os, sys; os.fork() and os._exit(0); os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
"""Nobody's child: whoever ends the process tree of a task, or its session, does not find it."""


class NotForkedError(RuntimeError):
    """No process was started: the program has not run."""


class NotWarmError(RuntimeError):
    """There is no warm runtime that could be asked; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One process to be forked."""

    program: Sequence[str]
    """As after ``python``: ``-m module argument...``, ``-c code argument...`` or ``script.py argument...``."""
    environment: Mapping[str, str]
    """The whole of it."""
    folder: str
    """To work in."""


class Forked:
    """
    A forked process: leader of a session of its own.

    :param seconds: to wait for the server's answer; None: without end
    :ivar pid: of the process
    :raises NotForkedError: where there is none
    """

    def __init__(self, status: socket.socket, seconds: float | None) -> None:
        self._status = status
        self._lock = threading.RLock()  # a signal handler may ask while it waits
        self._code: int | None = None
        status.settimeout(seconds)
        try:
            said = status.recv(32)
        except TimeoutError:
            status.close()  # a process that it forks later finds nobody waiting, and ends
            raise NotForkedError(f"the process that others are forked from does not answer for {seconds:g} s") from None
        if not said:
            raise NotForkedError("the process that others are forked from has ended: its own error is above")
        status.settimeout(None)
        self.pid = int(said)

    def fileno(self) -> int:
        """Can be read from when the process has ended."""
        return self._status.fileno()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that killed it."""
        return self.wait(0)

    def wait(self, seconds: float | None = None) -> int | None:
        """
        Wait for its end.

        :param seconds: at most; None: without end
        :return: its exit code; None where it still runs
        """
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        while self._code is None:
            if not poll.poll(None if seconds is None else seconds * 1000):
                break
            # Somebody else may have read it since.
            with self._lock, contextlib.suppress(BlockingIOError):
                said = self._status.recv(32, socket.MSG_DONTWAIT)
                if self._code is None:
                    # Without a server there is no child either.
                    self._code = int(said) if said else -signal.SIGKILL
        return self._code


def server_command(python: str, *arguments: str) -> list[str]:
    """argv of a server; the last word is room for its children's own command lines, where ``ps`` looks for them."""
    return [python, "-m", "mlops.fork_server", *arguments, " " * 500]


def fork(
    requests: socket.socket, request: Request, output: int, errors: int | None = None, seconds: float | None = None
) -> Forked:
    """
    Ask the server at the other end of ``requests``; one thread at a time.

    :param seconds: to wait for its answer; None: without end
    :param output: descriptor for stdout; the caller keeps its own
    :param errors: descriptor for stderr; None: where the output goes
    :raises NotForkedError: if the server ends before it has forked
    """
    body = json.dumps(
        {"program": [*request.program], "environment": {**request.environment}, "folder": request.folder}
    ).encode()
    ours, status = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with status, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        # A server that has ended has no other end of `status`: reading the pid says so.
        outputs = [output, output if errors is None else errors]
        socket.send_fds(requests, [_LENGTH.pack(len(body))], [*outputs, status.fileno()])
        requests.sendall(body)
    return Forked(ours, seconds)


def receive(requests: socket.socket) -> tuple[Request, list[int]] | None:
    """
    The server's side of :func:`fork`.

    :return: the request and its descriptors; None where the owner has ended
    """
    head, descriptors, _, _ = socket.recv_fds(requests, _LENGTH.size, 3)
    body = bytearray()
    if len(head) == _LENGTH.size and len(descriptors) == 3:
        (length,) = _LENGTH.unpack(head)
        while len(body) < length and (part := requests.recv(length - len(body))):
            body += part
        if len(body) == length:
            return Request(**json.loads(body)), descriptors
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process id and user id of the other end, as the kernel knows them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(raw)
    return process, user


@contextmanager
def private_folder() -> Iterator[int]:
    """
    A descriptor of the folder of this user's warm runtimes.

    :raises NotWarmError: where others could put something there
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    path = Path(runtime, "mlops") if runtime else Path(tempfile.gettempdir(), f"mlops-{os.geteuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise NotWarmError(f"{path} is not a folder of this user's: {error}") from error
    try:
        found = os.fstat(folder)
        mode = stat.S_IMODE(found.st_mode)
        if (found.st_uid, mode) != (os.geteuid(), 0o700):
            raise NotWarmError(
                f"{path} belongs to user {found.st_uid} with mode {mode:o}, and must belong to user {os.geteuid()} "
                "with mode 700: remove it, or set XDG_RUNTIME_DIR to another folder"
            )
        yield folder
    finally:
        os.close(folder)


def address(folder: int, name: str) -> str:
    """A socket's own path may be longer than the 108 bytes that an address has."""
    return f"/proc/self/fd/{folder}/{name}"


class WarmConnection:
    """
    An owner's connection to a warm runtime. What it forks is killed when the connection is closed, or its process ends.

    :ivar pid: of the warm runtime
    """

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self.pid, user = peer(requests)
        if user != os.geteuid():
            raise NotWarmError(f"the warm runtime belongs to user {user}, not to user {os.geteuid()}")

    def fork(self, request: Request, output: int, errors: int | None = None) -> Forked:
        """:raises NotForkedError: where the warm runtime has ended or must be replaced: start the process otherwise"""
        return fork(self._requests, request, output, errors, _ANSWER_SECONDS)

    def close(self) -> None:
        self._requests.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmRuntime:
    """
    The warm runtime of a step: what its process must have from its start.

    Limits, mask, niceness, rights, control group and namespaces are those of the calling process, and part of the name:
    a launcher that has others gets another warm runtime.
    """

    python: str
    """Interpreter."""
    module: str
    """Imports what its children need."""
    home: str
    """The deployment's folder, which it starts in."""
    environment: Mapping[str, str]
    """Environment of the step. The warm runtime has only those variables of it that are read at a start."""
    idle_seconds: float
    """It ends when nobody was connected for so long."""

    def connect(self) -> WarmConnection:
        """
        Connect to it, or have it start for those who come later.

        :raises NotWarmError: where it is not there yet, or cannot be
        """
        if sys.platform != "linux":
            raise NotWarmError(f"there are no warm runtimes on {sys.platform}")
        try:
            with private_folder() as folder:
                return self._connect(folder, self._name())
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotWarmError(f"no warm runtime can be had: {error}") from error

    def _connect(self, folder: int, name: str) -> WarmConnection:
        requests = socket.socket(socket.AF_UNIX)
        try:
            requests.connect(address(folder, name))
            return WarmConnection(requests)
        except (FileNotFoundError, ConnectionRefusedError):
            requests.close()
            raise NotWarmError(self._start(folder, name)) from None
        except BaseException:
            requests.close()
            raise

    def _start(self, folder: int, name: str) -> str:
        """:return: what keeps it from being there now"""
        lock = os.open(f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return "the warm runtime is importing its libraries, or ending"
            said, age = os.pread(lock, len(READY), 0), time.time() - os.fstat(lock).st_mtime
            if said not in (b"", READY) and age < _RETRY_SECONDS:
                log = f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}.log"
                return f"the warm runtime could not start {age:.0f} s ago, and says why in {log}"
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"begun", 0)
            self._spawn(folder, name, lock)
        finally:
            os.close(lock)
        return "the warm runtime is being started"

    def _spawn(self, folder: int, name: str, lock: int) -> None:
        log = os.open(f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
        places = [str(folder), str(lock), name, str(self.idle_seconds)]
        server = server_command(self.python, "warm", *places, self.module)
        try:
            subprocess.run(
                [self.python, "-ISc", _ORPHAN, *server],
                env=self._own_environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(folder, lock),
                check=True,
            )
        finally:
            os.close(log)

    def _own_environment(self) -> dict[str, str]:
        return {name: value for name, value in self.environment.items() if name.startswith(READ_AT_START)}

    def _name(self) -> str:
        facts = {
            "protocol": PROTOCOL,
            "python": self.python,
            "module": self.module,
            "environment": self._own_environment(),
            "idle_seconds": self.idle_seconds,
            "process": _standing(),
        }
        return f"{_deployment(self.home)}-{digest_of(facts)[:16]}"


def end_all(home: str) -> list[int]:
    """
    Have the warm runtimes of a deployment end as soon as they have no child.

    :return: their process ids
    """
    ended = []
    with private_folder() as folder:
        for name in os.listdir(folder):
            if not name.startswith(f"{_deployment(home)}-"):
                continue
            with socket.socket(socket.AF_UNIX) as visit:
                if "." not in name:
                    with contextlib.suppress(ConnectionRefusedError):  # it was killed
                        visit.connect(address(folder, name))
                        ended.append(peer(visit)[0])
                # One whose files are gone ends; the visitor's leaving has it look. One that still imports looks itself.
                with contextlib.suppress(FileNotFoundError):  # it has just ended by itself
                    os.unlink(name, dir_fd=folder)
    return ended


def _deployment(home: str) -> str:
    return digest_of({"home": home})[:12]


def _standing() -> dict[str, Any]:
    """What a process inherits and cannot, or should not, change later."""
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    limits = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    namespaces = Path("/proc/self/ns")
    return {
        "status": [line for line in lines if line.startswith(_STATUS_LINES)],
        "limits": {name: [*resource.getrlimit(getattr(resource, name))] for name in limits},
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "oom_score": Path("/proc/self/oom_score_adj").read_text(),
        "group": Path("/proc/self/cgroup").read_text(),
        "namespaces": {each.name: os.readlink(each) for each in sorted(namespaces.iterdir())},
    }
