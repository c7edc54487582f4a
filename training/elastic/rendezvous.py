"""How the agents of several nodes find each other: torch's c10d rendezvous, with four of its habits changed."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
    _RendezvousExitOp,
)

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"
LAST_CALL_SECONDS = 1.0
"""How long, with ``min_nodes`` there, to wait for more. torch's default of 30 s would be paid at each restart."""
_KEEP_ALIVE_ATTEMPTS = 4


SILENT_SECONDS = 20
"""After which a connection to a store that says nothing is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Where and when nodes meet."""

    run_id: str
    """The same on all nodes, and of no other gang."""
    endpoint: str
    """``host:port`` of the store. It lives in the process that binds the port: with it ends the rendezvous."""
    host_store: bool | None
    """Whether this process binds the port; None: where ``host`` is this machine, and the port is free."""
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    """Address under which the others reach this node; None: its host name."""
    join_seconds: float
    """How long to wait for ``min_nodes``."""
    keep_alive_seconds: float
    """After this silence a node counts as lost. The nodes' clocks must not differ by as much."""


class Rendezvous(DynamicRendezvousHandler):
    """Made by :func:`meet`."""

    def next_rendezvous(self) -> RendezvousInfo:
        # torch keeps the first round's address, which is wrong as soon as another node becomes the first, and the
        # first round's store, in which the keys of the last round still stand.
        self._bootstrap_store_info = None
        self._shared_tcp_store_server = None
        return super().next_rendezvous()

    @property
    def round(self) -> int:
        """The same number on all nodes, another one after each restart."""
        return self._state_holder.state.round

    @property
    def num_nodes(self) -> int:
        """Nodes of this round that are still there, as of the last look (at most a second ago)."""
        return len(self._state_holder.state.participants)

    @property
    def keep_alive_seconds(self) -> float:
        """After this silence a node counts as lost."""
        return self.settings.keep_alive_interval.total_seconds() * self.settings.keep_alive_max_attempt

    @property
    def key_value_store(self) -> Store:
        """Outlives the rounds."""
        return self._store

    def leave(self) -> None:
        """Have the others go on at once, without waiting until this node counts as lost."""
        self._stop_heartbeats()
        self._op_executor.run(_RendezvousExitOp(), time.monotonic() + self.settings.timeout.close.total_seconds())


def meet(meeting: Meeting) -> Rendezvous:
    """:raises RendezvousConnectionError: where the store cannot be reached"""
    hosting = {} if meeting.host_store is None else {"is_host": meeting.host_store}
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=meeting.endpoint,
        run_id=meeting.run_id,
        min_nodes=meeting.min_nodes,
        max_nodes=meeting.max_nodes,
        local_addr=meeting.local_addr,
        **hosting,
    )
    backend, store = create_backend(parameters)
    _notice_silence(int(meeting.endpoint.rpartition(":")[2]))
    handler = Rendezvous.from_backend(
        meeting.run_id,
        store,
        backend,
        meeting.min_nodes,
        meeting.max_nodes,
        meeting.local_addr,
        timeout=RendezvousTimeout(
            join=timedelta(seconds=meeting.join_seconds),
            last_call=timedelta(seconds=LAST_CALL_SECONDS),
            close=timedelta(seconds=10),
            heartbeat=timedelta(seconds=meeting.keep_alive_seconds),
        ),
        # torch declares whole seconds and takes fractions.
        keep_alive_interval=meeting.keep_alive_seconds / _KEEP_ALIVE_ATTEMPTS,  # type: ignore[arg-type]
        keep_alive_max_attempt=_KEEP_ALIVE_ATTEMPTS,
    )
    assert isinstance(handler, Rendezvous)
    return handler


def _notice_silence(port: int) -> None:
    """
    Have the kernel give up this process's connections to the store when its node is silent.

    One that lost its power or its network closes nothing. torch waits for an answer without a limit, in a call that no
    signal ends, and the kernel tries for a quarter of an hour: so long the others would neither go on nor write a
    checkpoint when they are told to end.
    """
    if sys.platform != "linux":
        return
    for connection in psutil.Process().net_connections("tcp"):
        if connection.raddr and connection.raddr.port == port:
            # Another descriptor of the same connection: closing it changes nothing.
            with socket.socket(fileno=os.dup(connection.fd)) as same:
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)
                same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS // 2)
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_SECONDS // 4)
