"""Rows of CSV with fewer fields than the header: Polars fills them up with nulls that nobody wrote."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_CHUNK_BYTES: Final = 8 << 20
_MAX_LINES: Final = 1_000_000
"""Most lines of one row."""


class ShortRow(NamedTuple):
    """A row with too few fields."""

    line: int
    """Number of the line in the file, from 1, on which the row begins."""
    num_fields: int
    text: str
    """Begin of the row."""


def short_row(file: Path, separator: str, num_columns: int) -> ShortRow | None:
    """
    Return the first row with fewer fields than the header; None if there is none. Empty lines are no such rows.

    :param num_columns: number of the header's fields; rows with more of them are refused by Polars already
    """
    # A file is read several times.
    stamp = file.stat()
    return _first(file, separator, num_columns, (stamp.st_mtime_ns, stamp.st_size))


@functools.lru_cache(maxsize=4096)
def _first(file: Path, separator: str, num_columns: int, _stamp: tuple[int, int]) -> ShortRow | None:
    if num_columns < 2:
        return None
    num_lines, num_separators = _counted(file, separator.encode())
    # No row has more separators than the header: if all have as many, there are this many in all.
    if num_separators == num_lines * (num_columns - 1):
        return None
    return next(_short_rows(file, separator.encode(), num_columns), None)


def _counted(file: Path, separator: bytes) -> tuple[int, int]:
    """
    Return the number of lines, without empty ones at the end, and of separators, both outside of quotes: quickly, as
    most files are whole.
    """
    num_lines = num_separators = inside = 0
    end = b""
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            # Every second part is in quotes; two quotes for one have an empty part between them.
            parts = chunk.split(b'"')
            outside = b"".join(parts[inside::2])
            num_lines += outside.count(b"\n")
            num_separators += outside.count(separator)
            inside = (inside + len(parts) - 1) % 2
            lines = chunk.rstrip(b"\r\n")
            end = chunk[len(lines) :] if lines else end + chunk
    return num_lines + 1 - end.count(b"\n"), num_separators


def _short_rows(file: Path, separator: bytes, num_columns: int) -> Iterator[ShortRow]:
    quoted = re.compile(b'(?<![^%b])"(?:[^"]|"")*"' % re.escape(separator))
    start, inside, lines = 1, 0, list[bytes]()
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            lines.append(line)
            inside = (inside + line.count(b'"')) % 2
            if inside:
                # A text in quotes goes on in the next line; of a quote that is never closed Polars tells.
                if number - start > _MAX_LINES:
                    return
                continue
            written = b"".join(lines).removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
            num_fields = quoted.sub(b"", written).count(separator) + 1
            if written and num_fields < num_columns:
                yield ShortRow(start, num_fields, written[:80].decode(errors="replace"))
            start, lines = number + 1, []
