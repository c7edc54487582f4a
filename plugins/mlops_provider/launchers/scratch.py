"""Temporary folders of steps. Standard library only, as :mod:`mlops_provider.launchers.child`."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

PREFIX = "mlops-step-"


@contextmanager
def scratch_folder(step: str) -> Iterator[Path]:
    """
    A temporary folder that is removed at the end.

    A launcher that is killed (out of memory, by its scheduler's end) leaves its folder, which the next launcher of the
    same user removes: a training's shards would fill the disk of a worker, kill by kill. It is locked (``flock``) for
    as long as its launcher lives, and the step dies with its launcher: one that is not locked is nobody's.
    """
    _remove_abandoned()
    folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{step}-")
    lock = os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(folder.name)
    finally:
        folder.cleanup()
        os.close(lock)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.ExitStack() as stack:
            try:
                if folder.lstat().st_uid != os.geteuid():
                    continue
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                stack.callback(os.close, lock)
                if not os.listdir(lock):  # it may be new, and about to be locked
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            except (FileNotFoundError, BlockingIOError):
                continue  # its launcher lives, or has just removed it
            except OSError as error:  # its step is not dead yet
                logger.info("cannot remove %s, which a killed launcher left: %s", folder, error)
            else:
                logger.info("removed %s, which a killed launcher left", folder)
