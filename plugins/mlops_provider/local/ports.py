"""A port for a server that is to keep it, also over a restart."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path

_FIRST = 10240
_KEPT_ABOVE = 1000  # a deployment's log servers listen some hundred ports above its own
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """
    A port of the loopback that nobody uses now, and that no other program is given by chance later.

    It lies below the range that the kernel takes outgoing connections and nameless listeners from: a server that
    is down for a moment would lose a port of that range to any of them.

    :raises OSError: where 1,000 ports at random are all in use
    """
    end = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32768
    choices = random.SystemRandom()  # programs with one seed at the same time must not choose alike
    for _ in range(1000):
        port = choices.randrange(_FIRST, max(end - _KEPT_ABOVE, _FIRST + 1))
        if is_free(port):
            return port
    raise OSError(f"no free port between {_FIRST} and {end}")


def is_free(port: int) -> bool:
    """Whether a server could listen on that port of the loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def becomes_free(port: int, seconds: float) -> bool:
    """Wait so many seconds at most until a port is free; return False where it is still taken."""
    deadline = time.monotonic() + seconds
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
