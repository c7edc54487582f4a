"""
Processes of another user of this machine, for tests that run as root.

An interpreter or a checkout in a folder that only its owner may enter, such as ``/root/.pyenv``, is of no use to
others. Tests then see the machine without that wall: in a mount namespace of their own, which changes nothing for
anybody else.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from project import REPOSITORY

USER, OTHER_USER = "games", "news"
"""Every Debian has them, and nothing belongs to them."""
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x20000, 4096, 16384, 1 << 18, 2


@contextmanager
def open_interpreter(python: Path) -> Iterator[None]:
    """
    Have every user of this machine able to start an interpreter of this checkout, as seen by this thread and what it
    starts.
    """
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user without sudo")
    needed = {Path(os.path.realpath(python)).parents[1], REPOSITORY}
    walls = {wall: {path for path in needed if wall in path.parents} for wall in map(_wall, needed) if wall}
    if not walls:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), name)

    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    here = os.getcwd()
    try:
        call("unshare", _CLONE_NEWNS)
    except OSError as error:
        os.close(before)
        pytest.skip(f"closed to others, and there is no way around ({error}): {', '.join(map(str, walls))}")
    try:
        call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
        for wall, paths in walls.items():
            with ExitStack() as stack:
                aside = {path: stack.enter_context(tempfile.TemporaryDirectory()) for path in paths}
                for path, folder in aside.items():
                    call("mount", bytes(path), folder.encode(), None, _MS_BIND, None)
                call("mount", b"tmpfs", bytes(wall), b"tmpfs", 0, b"mode=755")
                for path, folder in aside.items():
                    path.mkdir(parents=True, exist_ok=True)
                    call("mount", folder.encode(), bytes(path), None, _MS_BIND, None)
                    call("umount2", folder.encode(), _MNT_DETACH)
        os.chdir(here)
        assert subprocess.run(["setpriv", *as_user(USER), str(python), "-c", "pass"], check=False).returncode == 0
        yield
    finally:
        call("setns", before, _CLONE_NEWNS)
        os.close(before)
        os.chdir(here)


def _wall(path: Path) -> Path | None:
    """The uppermost folder above a path that only its owner may enter."""
    closed = [folder for folder in path.parents if not stat.S_IMODE(folder.stat().st_mode) & 0o001]
    return closed[-1] if closed else None


def as_user(name: str) -> list[str]:
    """Options of ``setpriv``."""
    user = pwd.getpwnam(name)
    return [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user may enter; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="mlops-test-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        yield Path(name)


def give(path: Path, name: str) -> None:
    """Make a folder that is a user's alone."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    user = pwd.getpwnam(name)
    os.chown(path, user.pw_uid, user.pw_gid)
