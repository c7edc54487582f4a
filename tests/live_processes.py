"""Whether a process still works, asked while it may end."""

from __future__ import annotations

import psutil


def is_alive(pid: int) -> bool:
    """A zombie has ended, and waits for its parent only."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
