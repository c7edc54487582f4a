"""One terminal of this machine at a time does a piece of work: the next one waits, and finds it done."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_at(place: str, wait: Callable[[], None]) -> Iterator[None]:
    """
    Hold a place, by a file that is locked (``flock``) for as long as this process lives.

    :param wait: called again and again while another process holds it
    """
    digest = hashlib.sha256(place.encode()).hexdigest()[:32]
    path = Path(tempfile.gettempdir(), f"mlops-run-{os.getuid()}-{digest}")
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            wait()
            continue
        if _is(path, lock):
            break
        os.close(lock)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _is(path: Path, lock: int) -> bool:
    """Tell whether the locked file is the one that others would open: who held it before has removed it."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(lock))
    except FileNotFoundError:
        return False
