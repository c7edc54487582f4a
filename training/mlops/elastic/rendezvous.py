"""
How the agents of several nodes find each other and know which of them are there.

In torch's own c10d rendezvous all nodes write one state, keep-alives included, and who was not the first tries again: a
thousand nodes never come to an end. Here each node appends to a log (:mod:`mlops.elastic.membership`), and counts up
a key of its own to show that it lives. Silence is measured by the clock of who listens: clocks need not agree.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil
from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend

from mlops.elastic.membership import Membership, NodeId, close, complete, join, leave
from mlops.elastic.shared_log import SharedLog

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
LAST_CALL_SECONDS = 1.0
"""How long, with ``min_nodes`` there, to wait for more."""
_KEEP_ALIVES = 4
"""In the time after which a silent node is lost."""
_WATCHERS = 3
"""Nodes that listen to all; the others listen to these."""
_POLL_SECONDS, _LOOK_SECONDS = 0.02, 0.25
"""Between two looks at the log, of a node that waits and of one that works; more where nodes are many."""
_FEW_NODES = 64
_SILENT_AFTER_SECONDS = 5.0
"""A store that does not answer holds up the thread that shows life for longer."""
_PATIENCE_SECONDS = 1.0
"""How much longer those wait whose turn it is only where others do not do it."""

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
    """After this silence a node counts as lost."""


@dataclass(slots=True)
class _Heard:
    """What a node said last, and for how long it has said nothing new."""

    count: bytes
    silent_seconds: float = 0.0


@dataclass
class _Silence:
    """Listens to nodes by the clock of this process."""

    interval: float
    heard: dict[NodeId, _Heard] = field(default_factory=dict)
    at: float = 0.0

    def listen(self, counts: dict[NodeId, bytes]) -> dict[NodeId, float]:
        """
        :param counts: what each node that is listened to says now
        :return: the seconds for which each has said nothing new
        """
        now = time.monotonic()
        # A store or a process that stood still must not make the time count in which nobody could be heard.
        passed, self.at = min(now - self.at, 1.5 * self.interval), now
        for node, count in counts.items():
            before = self.heard.get(node)
            if before is None or before.count != count:
                self.heard[node] = _Heard(count)
            else:
                before.silent_seconds += passed
        self.heard = {node: self.heard[node] for node in counts}
        return {node: heard.silent_seconds for node, heard in self.heard.items()}


class Rendezvous(RendezvousHandler):
    """
    One node's part in it, which torch's agent drives. Made by :func:`meet`.

    All methods raise torch's ``DistError`` where the store cannot be reached.
    """

    _numbers = itertools.count()

    def __init__(self, meeting: Meeting, store: Store) -> None:
        self.address = meeting.local_addr or socket.getfqdn()
        """Under which the others reach this node."""
        self._meeting = meeting
        self._store = store
        self._node = NodeId(self.address, os.getpid(), next(self._numbers))
        self._log = self._log_of(store)
        # A connection of its own: who waits for a key holds up all that use the same one.
        self._keepers_store = store.clone()  # type: ignore[attr-defined]
        self._keepers_log = self._log_of(self._keepers_store)
        self._alive = PrefixStore(f"mlops/{meeting.run_id}/alive", self._keepers_store)
        self._members = Membership(meeting.min_nodes, meeting.max_nodes)
        self._lock = threading.Lock()
        """Over the log's reader, and so the members that are known; each of their states stays as it is."""
        self._looked_at = 0.0
        self._enough_since: float | None = None
        self._interval = meeting.keep_alive_seconds / _KEEP_ALIVES
        self._size = max(1.0, meeting.max_nodes / _FEW_NODES)
        self._gone = threading.Event()
        self._keeper: threading.Thread | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Leave the round that is, where this node takes part in it, and take part in the next one."""
        self._show_life()
        deadline = time.monotonic() + self._meeting.join_seconds
        while True:
            members = self._join(deadline)
            store = PrefixStore(f"mlops/{self._meeting.run_id}/round-{members.round}", self._store)
            rank = members.ranks[self._node]
            # Of this round: another node may be the first one, and the last round's keys still stand in its store.
            self._of_round = TCPStore(self.address, 0, is_master=True, multi_tenant=True) if rank == 0 else None
            if self._of_round is None and not self._has_first_node(store, members):
                continue
            port = 0 if self._of_round is None else self._of_round.port
            place = RendezvousStoreInfo.build(rank, store, local_addr=self.address, server_port=port)
            return RendezvousInfo(store, rank, len(members.ranks), place)

    @property
    def round(self) -> int:
        """The same number on all nodes, another one after each restart."""
        return self._members.round

    @property
    def num_nodes(self) -> int:
        """Nodes of this round that are still there, as of the last look."""
        return len(self._members.participants)

    @property
    def keep_alive_seconds(self) -> float:
        """After this silence a node counts as lost."""
        return self._meeting.keep_alive_seconds

    @property
    def key_value_store(self) -> Store:
        """Outlives the rounds."""
        return self._store

    def lineage(self) -> str:
        """A name that all process groups have which this rendezvous brings together, and no others."""
        return str(self._store.compare_set("mlops/lineage", "", uuid.uuid4().hex), "utf-8")

    def num_nodes_waiting(self) -> int:
        """Nodes that the next round would take in, as of a look a moment ago."""
        members = self._members
        if time.monotonic() > self._looked_at + _LOOK_SECONDS * self._size:
            members = self._look()
        return len(members.waiting) if len(members.participants) < members.max_nodes else 0

    def is_closed(self) -> bool:
        """Whether nobody may join any more."""
        return self._look().closed

    def set_closed(self) -> None:
        """Have nobody join any more."""
        self._log.append(close())

    def fall_silent(self) -> None:
        """
        Show no life any more: the others hold this node for lost in a while.

        Before the process ends: a thread that is then within torch's store would abort it.
        """
        self._gone.set()
        if self._keeper is not None:
            self._keeper.join(_SILENT_AFTER_SECONDS)

    def leave(self) -> None:
        """Have the others go on at once, without waiting until this node counts as lost."""
        self.fall_silent()
        came = self._look().members.get(self._node)
        if came is not None:
            self._log.append(leave(self._node, came))

    def shutdown(self) -> bool:
        """End it for all."""
        self.fall_silent()
        self.set_closed()
        return True

    def get_run_id(self) -> str:
        return self._meeting.run_id

    def get_backend(self) -> str:
        return "mlops"

    @property
    def use_agent_store(self) -> bool:
        return True

    def _log_of(self, store: Store) -> SharedLog:
        return SharedLog(PrefixStore(f"mlops/{self._meeting.run_id}/log", store))

    def _join(self, deadline: float) -> Membership:
        """:return: the members of the round that this node takes part in"""
        came = self._log.append(join(self._node))
        while True:
            members = self._look()
            # Else an entry before it is not there yet, and what is known is the round that this node leaves.
            read = members.length > came
            if members.closed:
                raise RendezvousClosedError
            if read and members.complete and self._node in members.participants:
                return members
            if time.monotonic() > deadline:
                self.leave()
                raise RendezvousTimeoutError
            if read and self._node not in members.members:  # it was held for lost
                came = self._log.append(join(self._node))
            elif self._may_begin(members):
                self._log.append(complete(members.round))
            time.sleep(_POLL_SECONDS * self._size)

    def _has_first_node(self, store: Store, members: Membership) -> bool:
        """Wait until the node of rank 0 has said where its ranks meet; False where it is lost before."""
        first = next(node for node, rank in members.ranks.items() if rank == 0)
        while not store.check([RendezvousStoreInfo.MASTER_PORT_KEY]):
            now = self._look()
            if now.round != members.round or first not in now.participants:
                return False
            time.sleep(_POLL_SECONDS * self._size)
        return True

    def _look(self, log: SharedLog | None = None) -> Membership:
        """:param log: the keeper's, in its thread"""
        with self._lock:
            if entries := (log or self._log).read(self._members.length):
                self._members = self._members.after(entries)
            self._looked_at = time.monotonic()
            if not self._members.enough:
                self._enough_since = None
            elif self._enough_since is None:
                self._enough_since = self._looked_at
            return self._members

    def _may_begin(self, members: Membership) -> bool:
        if self._enough_since is None or self._node not in members.participants:
            return False
        first = self._node == min(members.participants)
        waits = LAST_CALL_SECONDS + (0.0 if first else _PATIENCE_SECONDS)
        return time.monotonic() > self._enough_since + waits

    def _show_life(self) -> None:
        if self._keeper is None:
            self._alive.set(str(self._node), "0")  # before it is a member: who listens waits for the key
            self._keeper = threading.Thread(target=self._keep_alive, name="keep-alive", daemon=True)
            self._keeper.start()

    def _keep_alive(self) -> None:
        silence = _Silence(self._interval)
        reached = True
        for count in itertools.count(1):
            if self._gone.wait(self._interval):
                return
            try:
                self._alive.set(str(self._node), str(count))
                self._remove_silent(silence)
                reached = True
            except DistError as error:
                if reached:
                    logger.warning("this node cannot be heard by the others: %s", str(error).partition("\n")[0])
                reached = False

    def _remove_silent(self, silence: _Silence) -> None:
        members = self._look(self._keepers_log).members
        in_order = sorted(members, key=members.__getitem__)
        watches = self._node in in_order[:_WATCHERS]
        nodes = [node for node in (in_order if watches else in_order[:_WATCHERS]) if node != self._node]
        if not nodes:
            return
        counts = self._alive.multi_get([str(node) for node in nodes])
        patience = self.keep_alive_seconds + (0.0 if watches else _PATIENCE_SECONDS + self._interval)
        for node, seconds in silence.listen(dict(zip(nodes, counts, strict=True))).items():
            if seconds >= patience:
                logger.debug("%s is silent for %.1f s", node, seconds)
                self._keepers_log.append(leave(node, members[node]))


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
    _, store = create_backend(parameters)
    rendezvous = Rendezvous(meeting, store)
    _notice_silence(int(meeting.endpoint.rpartition(":")[2]))
    return rendezvous


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
            try:
                # Another descriptor of the same connection: closing it changes nothing.
                same = socket.socket(fileno=os.dup(connection.fd))
            except OSError:  # another thread has closed it since, or has another file under its number
                continue
            with same:
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)
                same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS // 2)
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_SECONDS // 4)
