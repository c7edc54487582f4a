"""What a forked process does to be what a new interpreter would have been."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from mlops.contract.warm import Request
from mlops.process import die_with_parent


def become(request: Request, outputs: Sequence[int], status: socket.socket, server: int) -> NoReturn:
    """
    Run a program as ``python *program`` would, and end with its exit code. Called in the forked process.

    :param outputs: descriptors that become its standard output and error
    :param status: gets the process's number once the process may be killed with its session
    :param server: number of the process that forked it
    """
    code: object = 1
    interrupted = False
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != server:  # it ended before this process was bound to it
            os._exit(1)
        try:
            status.send(str(os.getpid()).encode())  # only now may it be killed with its session
        except OSError:  # nobody waits any more: it must not run beside what was started in its place
            os._exit(1)
        status.close()
        for descriptor, target in zip(outputs, (1, 2), strict=True):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        set_title(" ".join([sys.executable, *request.program]))
        _renew()
        _run(request.program)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        sys.excepthook(*sys.exc_info())
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
    # As the interpreter ends.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code if isinstance(code, int) else int(code is not None))


def _renew() -> None:
    """Give a forked process what a new one has: its own random numbers, and a fresh look at its import folders."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()  # random seeds itself at a fork
    importlib.invalidate_caches()


def set_title(title: str) -> None:
    """Change the command line that ``ps`` shows, as far as there is room: the kernel shows the process's own memory."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
    text = title.encode()[: end - start - 2]
    # Without a zero as last byte the kernel reads up to the first one.
    ctypes.memmove(start, text.ljust(end - start - 1, b"\0") + b"\1", end - start)


def _run(program: Sequence[str]) -> None:
    kind, *arguments = program
    if kind == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = [kind, *arguments[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), main.__dict__)  # noqa: S102
    else:
        sys.argv = [*program]
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")
