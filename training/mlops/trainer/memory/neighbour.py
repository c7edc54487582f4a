"""
What a rank tells a rank of another node at each step, so that it is known where its node is lost.

A socket of its own to one neighbour, and not a group of gloo's, which would connect each rank to all. What was sent is
with the kernel: it arrives also where the sender is killed in the next instant.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import socket
from contextlib import suppress
from typing import Final

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from mlops.trainer.memory.seats import NOTE_BYTES, Note
from mlops.trainer.network import own_address

_made = itertools.count()
_TOKEN_BYTES: Final = 16

logger = logging.getLogger(__name__)


class Neighbour:
    """
    Sends to the rank one node before, and hears the one a node behind. Made by all ranks.

    :param per_node: processes of a node
    :param seconds: to wait for them
    :raises OSError: where they cannot be reached
    """

    def __init__(self, *, rank: int, world_size: int, per_node: int, seconds: float) -> None:
        # One after the other, where a process trains more than one model.
        store = PrefixStore(f"memory/{next(_made)}", _get_default_store())
        keeper, self._ward = (rank - per_node) % world_size, (rank + per_node) % world_size
        token = secrets.token_hex(_TOKEN_BYTES // 2).encode()
        address = own_address()
        with _server(address) as server:
            server.settimeout(seconds)
            # The others know a node whose name is its own loopback address, which is the first one, by that name.
            host, port = address or os.environ["MASTER_ADDR"], server.getsockname()[1]
            store.set(str(rank), f"{host} {port} {token.decode()}")
            keeper_host, keeper_port, its_token = store.get(str(keeper)).decode().split()
            self._keeper = socket.create_connection((keeper_host, int(keeper_port)), seconds)
            self._keeper.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._keeper.sendall(its_token.encode())
            self._from_ward = _accept(server, token, seconds)
        self._keeper.setblocking(False)
        self._from_ward.setblocking(False)
        self._rest = b""
        self._silent = False

    def send(self, note: Note) -> None:
        if self._silent:
            return
        try:
            sent = self._keeper.send(note.dump())
        except OSError as error:
            logger.debug("the neighbour cannot be told any more: %s", error)
            sent = 0
        # Half a note would spoil all that follow; a neighbour that does not read is about to end.
        self._silent = sent != NOTE_BYTES

    def receive(self) -> list[Note]:
        """
        Return the notes that have come since the last call; does not wait. A step may have many, one of each of its
        micro batches.
        """
        data = [self._rest]
        with suppress(BlockingIOError, ConnectionError):
            while more := self._from_ward.recv(1 << 16):
                data.append(more)
        whole = b"".join(data)
        end = len(whole) - len(whole) % NOTE_BYTES
        self._rest = whole[end:]
        notes = (Note.load(whole[start : start + NOTE_BYTES]) for start in range(0, end, NOTE_BYTES))
        return [note for note in notes if note is not None and note.rank == self._ward]

    def close(self) -> None:
        self._keeper.close()
        self._from_ward.close()


def _accept(server: socket.socket, token: bytes, seconds: float) -> socket.socket:
    while True:
        connection, _ = server.accept()
        connection.settimeout(seconds)
        if connection.recv(len(token), socket.MSG_WAITALL) == token:
            return connection
        connection.close()  # a stranger


def _server(address: str | None) -> socket.socket:
    """Listens at an address of this node; None: at all of them."""
    if address is None and socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if address and ":" in address else socket.AF_INET
    return socket.create_server((address or "", 0), family=family)
