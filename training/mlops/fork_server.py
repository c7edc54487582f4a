"""
A process that imports modules once, and from which processes that need them are forked in hundredths of a second.

It has one thread and no open handles but its sockets, so that a fork is safe: what it imports may start no thread.
Unlike multiprocessing's fork server it sees each child end at once, reports it on a socket that a caller can wait on,
and kills all children when it or their owner ends, however that happens.

It serves one owner (:class:`ForkServer`), or as a warm runtime all launchers of a deployment
(``mlops/contract/warm.py``, where the wire is).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from mlops.contract.warm import READY, Forked, Request, address, fork, peer, receive, server_command
from mlops.forked_process import become, set_title
from mlops.process import die_with_parent, lock_file

_LOOK_SECONDS = 5.0
"""Most seconds between two checks whether a warm runtime is still wanted."""
_REQUEST_SECONDS = 10.0
"""Seconds in which an owner must send the whole of a request, so that it does not hold up the others."""


class ForkServer:
    """
    The owner's side of a fork server. It may be used by several threads.

    :param modules: modules that the server imports before it forks
    :param environment: environment variables of the server while it imports; a child has the ones it is given
    :param copy: fork the server from this process, which has imported the modules and has one thread
    """

    def __init__(
        self, modules: Sequence[str], environment: Mapping[str, str] | None = None, *, copy: bool = False
    ) -> None:
        self._modules, self._environment = tuple(modules), environment
        self._lock = threading.Lock()
        self._start(copy=copy)

    def _start(self, *, copy: bool = False) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs:
            if copy:
                self.pid = _fork_server(self._requests, theirs)
                return
            command = server_command(sys.executable, "owner", str(theirs.fileno()), *self._modules)
            environment = os.environ if self._environment is None else self._environment
            inherit = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), theirs.fileno())]
            # It is waited for by its pid, as a forked one is.
            self.pid = os.posix_spawn(sys.executable, command, environment, file_actions=inherit)

    def _ended(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def fork(
        self, program: Sequence[str], environment: Mapping[str, str], output: int, errors: int | None = None
    ) -> Forked:
        """
        Fork a process that runs a program.

        :param program: arguments as after ``python``: ``-m module argument...``, ``-c code argument...`` or ``script.py
            argument...``
        :param environment: all environment variables of the process
        :param output: descriptor for stdout; the caller keeps its own
        :param errors: descriptor for stderr; None: the same as ``output``
        :raises NotForkedError: if the server ends before it has forked
        """
        request = Request(program=program, environment=environment, folder=os.getcwd())
        with self._lock:
            if self._ended():
                self._start()
            return fork(self._requests, request, output, errors)


def _fork_server(ours: socket.socket, theirs: socket.socket) -> int:
    # This process has imported all that is needed: its copy is as good as a new one, and costs nothing.
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    ours.close()
    try:
        die_with_parent()
        _Server(owner=theirs).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


@dataclass(eq=False)
class _Owner:
    requests: socket.socket
    children: set[_Child] = field(default_factory=set)


@dataclass(eq=False)
class _Child:
    pid: int
    descriptor: int
    """Descriptor that becomes readable when the child has ended."""
    status: socket.socket
    owner: _Owner


class _Server:
    """
    The process that forks children for its owners, and reports the end of each.

    :param owner: socket of the only owner; the server ends when it does
    :param warm: source of new owners, which also decides when the server stops
    """

    def __init__(self, *, owner: socket.socket | None = None, warm: _Warm | None = None) -> None:
        self._selector = selectors.DefaultSelector()
        self._owners: set[_Owner] = set()
        self._children: set[_Child] = set()
        self._warm = warm
        if warm is not None:
            self._selector.register(warm.listener, selectors.EVENT_READ, self._welcome)
        if owner is not None:
            self._add(owner)

    def serve(self) -> NoReturn:
        gc.freeze()  # or a child's collections would copy all pages that it shares
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        while True:
            for key, _ in self._selector.select(self._warm.patience if self._warm else None):
                key.data()
            if self._warm is None:
                continue
            if not self._warm.wanted(busy=bool(self._owners)):
                self._retire(self._warm)
            if not self._warm.open and not self._children:
                os._exit(0)

    def _retire(self, warm: _Warm) -> None:
        if warm.open:
            self._selector.unregister(warm.listener)
            warm.close()

    def _welcome(self) -> None:
        assert self._warm is not None
        if not self._warm.open:
            return
        try:
            requests, _ = self._warm.listener.accept()
        except OSError:  # it has as many files open as it may: its steps go on, others get another one
            traceback.print_exc()
            self._retire(self._warm)
            return
        if peer(requests)[1] == os.geteuid():
            requests.settimeout(_REQUEST_SECONDS)
            self._add(requests)
        else:
            requests.close()

    def _add(self, requests: socket.socket) -> None:
        owner = _Owner(requests)
        self._owners.add(owner)
        self._selector.register(requests, selectors.EVENT_READ, functools.partial(self._asked, owner))

    def _asked(self, owner: _Owner) -> None:
        try:
            received = receive(owner.requests)
        except (
            TimeoutError,
            ConnectionResetError,
            ValueError,
            TypeError,
        ):  # it ended, stands still, or is none of ours
            received = None
        if received is None:
            self._left(owner)
            return
        request, descriptors = received
        outputs, status = descriptors[:2], socket.socket(fileno=descriptors[2])
        if self._warm is None or self._warm.up_to_date():
            self._fork(owner, request, outputs, status)
        else:
            self._retire(self._warm)  # first: who asks again finds another one
            status.close()  # unanswered: the process is started in another way
        for descriptor in outputs:
            os.close(descriptor)

    def _fork(self, owner: _Owner, request: Request, outputs: Sequence[int], status: socket.socket) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no memory, or too many processes: the others go on
            traceback.print_exc()
            status.close()
            return
        if pid == 0:
            self._forget()
            become(request, outputs, status, server)
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # too many files
            traceback.print_exc()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            status.close()
            return
        child = _Child(pid, descriptor, status, owner)
        owner.children.add(child)
        self._children.add(child)
        self._selector.register(child.descriptor, selectors.EVENT_READ, functools.partial(self._ended, child))

    def _ended(self, child: _Child) -> None:
        self._selector.unregister(child.descriptor)
        os.close(child.descriptor)
        _tell(child.status, os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]))
        child.status.close()
        child.owner.children.discard(child)
        self._children.discard(child)

    def _left(self, owner: _Owner) -> None:
        """Kill the children of an owner that closed its connection or ended, or end with the only owner."""
        if self._warm is None:
            os._exit(0)
        for child in owner.children:
            for kill in (os.killpg, os.kill):  # it may not lead its session yet
                with contextlib.suppress(ProcessLookupError):
                    kill(child.pid, signal.SIGKILL)
        self._selector.unregister(owner.requests)
        owner.requests.close()
        self._owners.discard(owner)

    def _forget(self) -> None:
        """Close, in a forked process, the descriptors that belong to the server alone."""
        self._selector.close()
        if self._warm is not None:
            self._warm.forget()
        for owner in self._owners:
            owner.requests.close()
        for sibling in self._children:
            os.close(sibling.descriptor)
            sibling.status.close()


class _Warm:
    """
    The files of a warm runtime: its socket, which it listens on when all is imported, its lock, its log.

    :param folder: descriptor of the private folder
    :param lock: descriptor of its lock file, locked by whoever started it: it shows that one is starting or running
    """

    def __init__(self, folder: int, lock: int, name: str, idle_seconds: float, modules: Sequence[str]) -> None:
        self._folder, self._lock, self._name, self._idle_seconds = folder, lock, name, idle_seconds
        set_title(f"mlops: warm runtime {' '.join(modules)}")
        for module in modules:
            importlib.import_module(module)
        _check_threads()
        self._imported = _loaded_files()
        self.patience = min(_LOOK_SECONDS, idle_seconds)
        """Seconds without an event after which the server checks whether it is still wanted."""
        self._busy = time.monotonic()
        self.listener = socket.socket(socket.AF_UNIX)
        self.open = True
        if not self._is(f"{name}.lock", lock):
            os._exit(0)  # nobody wants it any more
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        self.listener.bind(address(folder, name))
        self.listener.listen(1024)
        self._socket = os.open(name, os.O_PATH, dir_fd=folder)
        os.ftruncate(lock, 0)
        os.pwrite(lock, READY, 0)

    def up_to_date(self) -> bool:
        """True if the files of the imported modules have not changed."""
        return self.open and not _changed(self._imported)

    def wanted(self, *, busy: bool) -> bool:
        """True if the warm runtime should go on accepting owners."""
        if not self.open:
            return False
        now = time.monotonic()
        if busy:
            self._busy = now
        idle = now - self._busy >= self._idle_seconds
        return not idle and self._is(self._name, self._socket)

    def close(self) -> None:
        """Stop accepting owners; the next launcher starts another warm runtime."""
        self.open = False
        self.listener.close()
        if self._is(self._name, self._socket):
            os.unlink(self._name, dir_fd=self._folder)
        if self._is(f"{self._name}.lock", self._lock):
            for kind in ("log", "lock"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self._name}.{kind}", dir_fd=self._folder)
        self.forget()

    def forget(self) -> None:
        """Close the descriptors of the warm runtime."""
        self.listener.close()
        for descriptor in (self._folder, self._lock, self._socket):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _is(self, name: str, descriptor: int) -> bool:
        """True if the file of that name is still the one behind the descriptor."""
        try:
            return os.path.samestat(os.stat(name, dir_fd=self._folder), os.fstat(descriptor))
        except FileNotFoundError:
            return False


def _check_threads() -> None:
    """
    Check that this process has one thread and can be forked safely.

    :raises RuntimeError: where a thread runs: a lock that it holds at a fork stays locked in the child for ever
    """
    # OpenBLAS, which numpy and scipy bring, ends its threads before a fork and starts them again when it has work.
    if (probe := os.fork()) == 0:
        os._exit(0)
    os.waitpid(probe, 0)
    if len(threads := os.listdir("/proc/self/task")) > 1:
        names = [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in threads]
        raise RuntimeError(f"no process can be forked from one with the threads {', '.join(sorted(names))}")


_Files = Mapping[str, tuple[int, int]]


def _loaded_files() -> _Files:
    """Return the files that this process has loaded, with time and size: modules, interpreter, lock files."""
    loaded = {file for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None))}
    # An installation changes the folder of packages, and with it what an environment is recorded as.
    besides = [sys.executable, f"{sys.prefix}/pyvenv.cfg", sysconfig.get_path("purelib")]
    besides += map(str, lock_file("requirements.txt").parent.glob("requirements*.txt"))
    stated = {}
    for file in [*loaded, *besides]:
        # torch names some of its files without their folder.
        if os.path.isabs(file) and os.path.exists(file):
            found = os.stat(file)
            stated[file] = found.st_mtime_ns, found.st_size
    return stated


def _changed(files: _Files) -> bool:
    for file, before in files.items():
        try:
            found = os.stat(file)
        except FileNotFoundError:
            return True
        if (found.st_mtime_ns, found.st_size) != before:
            return True
    return False


def _tell(status: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it any more
        status.send(str(number).encode())


def _main(kind: str, *arguments: str) -> NoReturn:
    if kind == "warm":
        folder, lock, name, idle_seconds, *modules = arguments
        _Server(warm=_Warm(int(folder), int(lock), name, float(idle_seconds), modules)).serve()
    die_with_parent()
    owner, *modules = arguments
    requests = socket.socket(fileno=int(owner))
    for module in modules:
        importlib.import_module(module)
    _Server(owner=requests).serve()


if __name__ == "__main__":
    _main(*sys.argv[1:-1])
