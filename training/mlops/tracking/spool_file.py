"""Metrics on local disk, on their way to MLflow."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

_SUFFIX: Final = ".metrics"
_HEADER: Final = b"%020d\n"
_HEADER_BYTES: Final = len(_HEADER % 0)
_READ_BYTES: Final = 1 << 21
"""Bytes read at once, more than a line can have: 1,000 metrics, with names of at most 250 characters."""
_REUSE_BYTES: Final = 1 << 20
_LINE: Final = re.compile(rb"(-?\d+) (\d+) (\{.*\})")


class Line(NamedTuple):
    """Some metrics, in the form in which the REST API takes them."""

    min_step: int
    """Lowest training step of the metrics; -1 if a metric belongs to no training step."""
    num_metrics: int
    metrics: bytes
    """The metrics as JSON objects, separated by commas."""

    def dump(self) -> bytes:
        return b"%d %d %s\n" % self

    @classmethod
    def load(cls, line: bytes) -> Self | None:
        """Parse a line; None if it is damaged."""
        found = _LINE.fullmatch(line)
        return cls(int(found[1]), int(found[2]), found[3]) if found else None


class SpoolFile:
    """
    An append-only file that is read from the front: 20 digits that say up to which byte it was sent, then lines.

    It belongs to one process as long as that lives (flock); what a killed one leaves can be taken over. Nothing is
    synced to disk: it survives the death of processes. A line that is torn is cut off.

    :raises BlockingIOError: where the file belongs to another process
    """

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if new else 0), 0o600)
        self._lock = threading.Lock()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sent, self._end = self._whole()
        except OSError:
            os.close(self._file)
            raise

    @classmethod
    def new(cls, folder: Path) -> SpoolFile:
        """
        Make an empty file. Others see it only when it belongs to this process: they would take it over, and remove it.
        """
        name = f"{time.time_ns():020d}-{threading.get_native_id()}"
        file = cls(folder / f"{name}.new", new=True)
        file.path = file.path.rename(folder / f"{name}{_SUFFIX}")
        return file

    @classmethod
    def left_in(cls, folder: Path) -> Iterator[SpoolFile]:
        """Take over the files of processes that are gone, oldest first."""
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            try:
                yield cls(path)
            except (BlockingIOError, FileNotFoundError):  # its process lives, or has sent all of it since
                continue

    def append(self, lines: Sequence[Line]) -> None:
        """
        Append lines.

        :raises OSError: if the disk is full; the file is then as it was
        """
        data = b"".join(line.dump() for line in lines)
        with self._lock:
            try:
                written = 0
                while written < len(data):
                    written += os.pwrite(self._file, data[written:], self._end + written)
            except OSError:
                os.ftruncate(self._file, self._end)
                raise
            self._end += len(data)

    def read(self, max_metrics: int) -> tuple[list[Line], int, int]:
        """
        Return the next lines to send.

        :return: the lines, how many were damaged and passed over, and the place after them for :meth:`mark_sent`
        """
        with self._lock:
            if self._file < 0:
                return [], 0, 0
            data = os.pread(self._file, min(_READ_BYTES, self._end - self._sent), self._sent)
        lines: list[Line] = []
        damaged, start, num_metrics = 0, 0, 0
        while (end := data.find(b"\n", start)) >= 0:
            line = Line.load(data[start:end])
            if line is not None:
                num_metrics += line.num_metrics
                if num_metrics > max_metrics and lines:
                    break
                lines.append(line)
            damaged += line is None
            start = end + 1
        return lines, damaged, self._sent + start

    def mark_sent(self, place: int) -> None:
        with self._lock:
            if self._file < 0:
                return
            if place == self._end > _REUSE_BYTES:
                place = self._end = _HEADER_BYTES
                os.ftruncate(self._file, self._end)
            os.pwrite(self._file, _HEADER % place, 0)
            self._sent = place

    def close(self) -> None:
        """
        Close the file, and remove it if all of it was sent. Whatever a thread then still reads or marks has no effect.
        """
        with self._lock:
            if self._sent == self._end:
                self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def _whole(self) -> tuple[int, int]:
        """Return the place up to which the file was sent, and the end of its last whole line."""
        size = os.fstat(self._file).st_size
        header = os.pread(self._file, _HEADER_BYTES, 0)
        if not re.fullmatch(rb"\d{20}\n", header):  # new, or killed within its first microseconds
            os.pwrite(self._file, _HEADER % _HEADER_BYTES, 0)
            os.ftruncate(self._file, _HEADER_BYTES)
            return _HEADER_BYTES, _HEADER_BYTES
        end = max(_last_newline(self._file, size), _HEADER_BYTES)
        os.ftruncate(self._file, end)
        return min(max(int(header), _HEADER_BYTES), end), end


def _last_newline(file: int, size: int) -> int:
    """Return the place after the last line break."""
    while size > 0:
        start = max(0, size - _READ_BYTES)
        found = os.pread(file, size - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        size = start
    return 0
