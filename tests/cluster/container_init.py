"""
The first process of a container: makes its namespaces and its view of the file system, then becomes its command.

A program of the standard library alone, run as ``python -I -S container_init.py <settings.json> <status descriptor>``.
The outer process stays outside, waits, and leaves with the container's exit code. To the status descriptor it writes
``pid <n>`` and, where the command cannot be started, ``error <why>``.

The container's root is an overlay over this machine's root, its changes in memory: nothing it writes stays, save in
volumes. Sources of mounts are reached by ``/.host``, until that is let go.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, NoReturn

RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 0x1, 0x2, 0x4, 0x20, 0x1000, 0x4000, 0x40000
DETACH = 2
NEWNS, NEWUTS, NEWPID = 0x20000, 0x4000000, 0x20000000
PDEATHSIG = 1
HOST = "/.host"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    texts = [text.encode() if text is not None else None for text in (source, target, kind)]
    options = data.encode() if data is not None else None
    checked(libc.mount(*texts, ctypes.c_ulong(flags), options), f"mount {source} on {target}")


def bind(source: str, target: str, *, read_only: bool = False, recursive: bool = False) -> None:
    mount(source, target, None, BIND | (REC if recursive else 0))
    if read_only:
        mount(None, target, None, REMOUNT | BIND | RDONLY)


def make_root(settings: dict[str, Any]) -> None:
    """The overlay, entered; the machine's root hangs at ``/.host``."""
    mount(None, "/", None, REC | PRIVATE)
    base = settings["root"]
    mount("tmpfs", base, "tmpfs", 0, "size=4g,mode=755")
    for name in ("upper", "work", "merged"):
        os.mkdir(f"{base}/{name}")
    os.mkdir(f"{base}/upper{HOST}")
    for place in settings["hidden"]:
        hide(f"{base}/upper", place)
    layers = f"lowerdir=/,upperdir={base}/upper,workdir={base}/work"
    mount("overlay", f"{base}/merged", "overlay", 0, layers)
    checked(libc.pivot_root(f"{base}/merged".encode(), f"{base}/merged{HOST}".encode()), "pivot_root")
    os.chdir("/")


def hide(upper: str, place: str) -> None:
    """An empty folder in the image, whatever is there on the machine."""
    parent = os.path.dirname(place)
    if parent != "/":
        os.makedirs(upper + parent, exist_ok=True)
    os.mkdir(upper + place)
    os.chmod(upper + place, 0o1777 if place.endswith("tmp") else 0o755)
    os.setxattr(upper + place, "trusted.overlay.opaque", b"y")


def make_devices(settings: dict[str, Any]) -> None:
    mount("proc", "/proc", "proc", NOSUID | NODEV)
    bind(f"{HOST}/sys", "/sys", recursive=True)
    mount("tmpfs", "/dev", "tmpfs", NOSUID, "size=64k,mode=755")
    present = [name for name in os.listdir(f"{HOST}/dev") if settings["gpu"] and name.startswith("nvidia")]
    for name in (*DEVICES, *present):
        if os.path.isdir(f"{HOST}/dev/{name}"):
            os.mkdir(f"/dev/{name}")
        else:
            touch(f"/dev/{name}")
        bind(f"{HOST}/dev/{name}", f"/dev/{name}")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                         ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")):  # fmt: skip
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", NOSUID, "newinstance,ptmxmode=0666,mode=0620")
    os.mkdir("/dev/shm")
    mount("shm", "/dev/shm", "tmpfs", NOSUID | NODEV, "size=64m,mode=1777")


def make_mounts(settings: dict[str, Any]) -> None:
    """What lies elsewhere on the machine, then the volumes; a parent comes before what is in it."""
    for place in settings["carried"]:
        if os.path.exists(place) and os.path.exists(HOST + place):
            bind(HOST + place, place)
    for each in sorted(settings["mounts"], key=lambda each: each["target"].count("/")):
        source, target = HOST + each["source"], each["target"]
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if not os.path.lexists(target):
                touch(target)
        bind(source, target, read_only=each["read_only"])


def touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))


def become(settings: dict[str, Any]) -> NoReturn:
    """Make the container and run its command; comes back only as an exception."""
    checked(libc.prctl(PDEATHSIG, signal.SIGKILL), "prctl")
    os.setsid()
    make_root(settings)
    make_devices(settings)
    make_mounts(settings)
    os.makedirs(settings["workdir"], exist_ok=True)
    checked(libc.umount2(HOST.encode(), DETACH), "umount")
    os.rmdir(HOST)
    if settings["read_only_root"]:
        mount(None, "/", None, REMOUNT | BIND | RDONLY)
    name = settings["hostname"].encode()
    checked(libc.sethostname(name, len(name)), "sethostname")
    os.chdir(settings["workdir"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(settings["command"][0], settings["command"], settings["env"])
    except FileNotFoundError:
        program = settings["command"][0]
        where = "executable file not found in $PATH" if "/" not in program else "no such file or directory"
        raise OSError(f'exec: "{program}": {where}') from None
    except PermissionError:
        raise OSError(f'exec: "{settings["command"][0]}": permission denied') from None


def main() -> None:
    with open(sys.argv[1]) as file:
        settings = json.load(file)
    status = int(sys.argv[2])
    os.set_inheritable(status, False)
    checked(libc.prctl(PDEATHSIG, signal.SIGKILL), "prctl")
    checked(libc.unshare(NEWNS | NEWUTS | NEWPID), "unshare")
    child = os.fork()
    if child == 0:
        try:
            become(settings)
        except BaseException as error:
            os.write(status, f"error {error}\n".encode())
            os._exit(128)
    os.write(status, f"pid {child}\n".encode())
    os.close(status)
    _, result = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(result) if os.WIFEXITED(result) else 128 + os.WTERMSIG(result))


main()
