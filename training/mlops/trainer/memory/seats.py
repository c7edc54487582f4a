"""
Memory that a node's agent owns and its ranks write to: files without a name (``memfd``), which end with the agent.

A seat is that of one local rank, whichever process sits on it: two slots, each for one whole state, and a page of
notes. It is not bounded by the size of ``/dev/shm``, and nothing is left where the agent is killed.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

ORDER_PREFIX: Final = "keep-"
"""``keep-<rank>`` in the folder of the heartbeats: a pipe whose opening tells a rank to keep its state and end."""
MEMORY_VARIABLE: Final = "MLOPS_PEER_MEMORY"
"""``{"pid": of the agent, "seats": [[slot, slot, notes], ...]}``, file descriptors by local rank; set by the agent."""
PAGE_BYTES: Final = 4096
NUM_SLOTS: Final = 2
"""So that a process that is killed while it writes one leaves the other whole."""

_MAX_BUFFERS: Final = 1024
"""Most buffers of one system call (IOV_MAX)."""
_MAX_WRITE_BYTES: Final = 1 << 30
# Round, rank, step, units, CRC-32 of what is before.
_UNITS_BYTES: Final = 32
_NOTE = struct.Struct(f"<qqq{_UNITS_BYTES}s")
_NOTE_STRIDE: Final = 64
"""Bytes from one note of a page to the next."""
_CRC = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a slot holds. Written last, in one piece with its CRC-32: without it there is nothing."""

    round: int
    """Round of the rendezvous: each start of the processes is one."""
    rank: int
    world_size: int
    step: int
    """Optimizer steps done."""
    epochs: int
    """Epochs that had ended, with their validation."""
    loss_units: int | None
    """Loss units of all ranks, where every rank knows them: after an epoch's end, and where the processes started.
    Elsewhere their notes tell."""
    place: str
    """Place of the training in the store, which follows from its settings and its code."""
    num_bytes: int
    """Bytes of tensors, from the second page on."""
    document_bytes: int
    """Bytes of the document behind the tensors."""

    @property
    def age(self) -> tuple[int, int, int]:
        """Grows with the training."""
        return (self.round, self.step, self.epochs)


@dataclass(frozen=True, slots=True)
class Note:
    """The sum of a rank's losses in its epoch, should this step complete."""

    round: int
    rank: int
    step: int
    units: int

    def dump(self) -> bytes:
        body = _NOTE.pack(self.round, self.rank, self.step, self.units.to_bytes(_UNITS_BYTES, "little", signed=True))
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def load(cls, data: bytes) -> Note | None:
        """None where nothing was written, or not to its end."""
        body, crc32 = data[: _NOTE.size], data[_NOTE.size : NOTE_BYTES]
        if len(crc32) < _CRC.size or _CRC.unpack(crc32)[0] != zlib.crc32(body):
            return None
        round_, rank, step, units = _NOTE.unpack(body)
        return cls(round_, rank, step, int.from_bytes(units, "little", signed=True))


NOTE_BYTES: Final = _NOTE.size + _CRC.size


class Slot:
    """One file, for one state."""

    def __init__(self, path: str) -> None:
        self._path = path

    def header(self) -> Header | None:
        """None where no whole state is there."""
        with self._opened() as file:
            page = os.pread(file, PAGE_BYTES, 0)
        text, _, _ = page.partition(b"\n")
        crc32, _, body = text.partition(b" ")
        if not body or crc32 != b"%08x" % zlib.crc32(body):
            return None
        return Header(**json.loads(body))

    def write(self, header: Header, buffers: Sequence[memoryview], document: bytes) -> None:
        """
        Replace what is there.

        :param buffers: bytes of tensors, of ``header.num_bytes`` in all
        """
        with self._opened() as file:
            os.ftruncate(file, 0)
            start = PAGE_BYTES
            for group in _groups([*buffers, memoryview(document)]):
                start += _write(file, group, start)
            body = json.dumps(asdict(header)).encode()
            assert len(body) < PAGE_BYTES - 16, "a header has its page"
            os.pwrite(file, b"%08x %s\n" % (zlib.crc32(body), body), 0)

    def clear(self) -> None:
        """Give the memory back."""
        with self._opened() as file:
            os.ftruncate(file, 0)

    def content(self, header: Header) -> mmap.mmap:
        """A copy on write: a page, the tensors, the document."""
        with self._opened() as file:
            return mmap.mmap(file, PAGE_BYTES + header.num_bytes + header.document_bytes, flags=mmap.MAP_PRIVATE)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; a killed one holds nothing up."""
        with self._opened() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _opened(self) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield file
        finally:
            os.close(file)


class Notes:
    """
    The last two notes of this rank, and of another one: a step that is begun must not replace that of the last.

    :param path: of the seat's page
    """

    def __init__(self, path: str) -> None:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(file, PAGE_BYTES)
            self._memory = mmap.mmap(file, PAGE_BYTES)
        finally:
            os.close(file)

    def put(self, note: Note, *, ward: bool = False) -> None:
        """:param ward: of the rank whose notes this one keeps beside its own"""
        place = (2 * ward + note.step % 2) * _NOTE_STRIDE
        self._memory[place : place + NOTE_BYTES] = note.dump()

    def read(self) -> list[Note]:
        places = range(0, 4 * _NOTE_STRIDE, _NOTE_STRIDE)
        notes = (Note.load(self._memory[place : place + NOTE_BYTES]) for place in places)
        return [note for note in notes if note is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    slots: Sequence[Slot]
    notes: str
    """Path."""

    def newest(self) -> tuple[int, Header] | None:
        """The slot that holds the newest whole state, by its number."""
        found = [(number, header) for number, slot in enumerate(self.slots) if (header := slot.header()) is not None]
        return max(found, key=lambda entry: entry[1].age, default=None)


def seats_from_environment() -> Sequence[Seat]:
    """Return the seats of this node, by local rank; none where no agent has started this process."""
    text = os.environ.get(MEMORY_VARIABLE)
    if not text:
        return []
    given: dict[str, Any] = json.loads(text)
    # Their files, whoever has them open: the agent gives nothing away but numbers.
    paths = [[f"/proc/{given['pid']}/fd/{number}" for number in seat] for seat in given["seats"]]
    return [Seat(slots=[Slot(path) for path in seat[:NUM_SLOTS]], notes=seat[NUM_SLOTS]) for seat in paths]


def _groups(buffers: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """As many at once as one system call takes."""
    group: list[memoryview] = []
    size = 0
    for buffer in buffers:
        for start in range(0, len(buffer), _MAX_WRITE_BYTES):
            part = buffer[start : start + _MAX_WRITE_BYTES]
            if group and (len(group) == _MAX_BUFFERS or size + len(part) > _MAX_WRITE_BYTES):
                yield group
                group, size = [], 0
            group.append(part)
            size += len(part)
    if group:
        yield group


def _write(file: int, group: Sequence[memoryview], start: int) -> int:
    """:raises OSError: where there is not enough memory"""
    total = sum(map(len, group))
    done = os.pwritev(file, group, start)
    while done < total:
        rest = b"".join(group)[done:]
        done += os.pwrite(file, rest, start + done)
    return total
