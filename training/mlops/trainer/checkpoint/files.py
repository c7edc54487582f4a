"""The files of a checkpoint: one per rank, written in one stream, read in ranges."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mlops.contract.checkpoint_markers import MARKER, SET_ASIDE, DamagedCheckpointError, RankFile, check_size
from mlops.store import Store
from mlops.store_errors import StoreError

PAGE_BYTES: Final = 4096
"""Direct I/O wants memory, offset and length in whole pages: a file is padded to this."""
_WRITE_BYTES: Final = 16 << 20
_READ_BYTES: Final = 64 << 20
_PARTS: Final = 9_000
"""Most parts of a multipart upload; S3 allows 10,000."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A tensor, or a rank's part of one, within a file. The fields are the index's columns, in order."""

    offsets: tuple[int, ...]
    """Where the part begins in the tensor."""
    shape: tuple[int, ...]
    file: int
    """Position in the checkpoint's list of files."""
    start: int
    """Byte in the file."""
    num_bytes: int
    crc32: int
    """zlib's. It finds every damage but one in 4e9, and costs 0.3 s a gigabyte; SHA-256 would take 0.8 s."""


class CheckpointFiles:
    """
    Large files in a store. A file is visible to readers only through a marker that names it, so that it needs no
    temporary name; each attempt uses names of its own.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._root = Path(store.uri.removeprefix("file://")) if store.uri.startswith("file://") else None

    def write(self, key: str, memory: memoryview) -> None:
        """
        Returns when the bytes would survive a power cut.

        :param memory: whole pages, aligned
        """
        if self._root is None:
            self._store.put_large(key, memory, max(_WRITE_BYTES, len(memory) // _PARTS))
            return
        try:
            _write_file(self._root / key, memory)
        except Exception as error:
            raise self._failure("write", key, error) from error

    def read(self, key: str, start: int, num_bytes: int) -> memoryview:
        """:raises DamagedCheckpointError: where there are no such bytes"""
        try:
            if self._root is None:
                # Copied, for torch wants memory that it may write to.
                data = memoryview(self._store.get_range(key, start, num_bytes))
            else:
                data = _read_file(self._root / key, start, num_bytes)
        except FileNotFoundError as error:
            raise DamagedCheckpointError(f"{key} is missing") from error
        except OSError as error:
            raise self._failure("read", key, error) from error
        if len(data) != num_bytes:
            raise DamagedCheckpointError(f"{key} is truncated: no {num_bytes} bytes at byte {start}")
        return data

    def check_size(self, file: RankFile) -> None:
        """:raises DamagedCheckpointError: where the file is missing, or longer or shorter than it was"""
        check_size(file, self._store.size(file.key))

    def remove(self, folder: str) -> None:
        """A folder with all that is in it; the marker first, lest half a checkpoint looks whole."""
        keys = list(self._store.list(folder))
        self._store.delete([key for key in keys if key.endswith((f"/{MARKER}", f"/{SET_ASIDE}"))])
        if self._root is None:
            self._store.delete(keys)
            return
        try:
            shutil.rmtree(self._root / folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._failure("remove", folder, error) from error

    def _failure(self, verb: str, key: str, error: Exception) -> StoreError:
        cause = str(error).split("\n", 1)[0]
        return StoreError(
            f"cannot {verb} {key} in the store {self._store.uri}: {cause}. Check that the store is there, "
            "that it has space, and that this user may write to it"
        )


def read_chunks(
    files: CheckpointFiles,
    names: Sequence[RankFile],
    chunks: Sequence[Chunk],
    use: Callable[[Chunk, memoryview], None],
    num_threads: int = 4,
) -> None:
    """
    Read chunks, neighbours together, check each and hand it to ``use``, in several threads and in any order.

    :raises DamagedCheckpointError: naming the file
    """

    def work(group: Sequence[Chunk]) -> None:
        name, start = names[group[0].file].key, group[0].start
        data = files.read(name, start, group[-1].start + group[-1].num_bytes - start)
        for chunk in group:
            part = data[chunk.start - start : chunk.start - start + chunk.num_bytes]
            if zlib.crc32(part) != chunk.crc32:
                raise DamagedCheckpointError(
                    f"{name} is damaged: the {chunk.num_bytes} bytes from byte {chunk.start} are not those that were "
                    f"written (their CRC-32 is not {chunk.crc32:08x})"
                )
            use(chunk, part)

    for position in sorted({chunk.file for chunk in chunks}):
        files.check_size(names[position])
    groups = list(_grouped(chunks))
    if len(groups) == 1:
        work(groups[0])
        return
    with ThreadPoolExecutor(num_threads, thread_name_prefix="checkpoint-read") as pool:
        for _ in pool.map(work, groups):
            pass


def damaged_files(files: CheckpointFiles, names: Sequence[RankFile], chunks: Sequence[Chunk]) -> list[str]:
    """What is wrong, a sentence a file; nothing where all chunks hold."""
    by_file: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        by_file.setdefault(chunk.file, []).append(chunk)
    problems = []
    for mine in by_file.values():
        try:
            read_chunks(files, names, mine, lambda chunk, data: None)
        except DamagedCheckpointError as error:
            problems.append(str(error))
    return problems


def _grouped(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    group: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: (chunk.file, chunk.start)):
        if chunk.num_bytes == 0:
            continue
        if group and (
            chunk.file != group[0].file
            or chunk.start + chunk.num_bytes - group[0].start > _READ_BYTES
            or chunk.start - group[-1].start - group[-1].num_bytes > _READ_BYTES // 64
        ):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _write_file(path: Path, memory: memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Past the page cache: half as long again is what copying into it costs, and it would push the data set out.
    try:
        _write_through(path, memory, getattr(os, "O_DIRECT", 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            path.unlink(missing_ok=True)  # on a full disk it would stay in the way of the next one
            raise
        _write_through(path, memory, 0)
    for folder in (path.parent, path.parent.parent):
        _sync(folder)


def _write_through(path: Path, memory: memoryview, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o644)
    try:
        start = 0
        while start < len(memory):
            start += os.write(descriptor, memory[start : start + _WRITE_BYTES])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_file(path: Path, start: int, num_bytes: int) -> memoryview:
    # Not mapped: a disk that fails would then kill the process instead of raising an error.
    buffer: Any = np.empty(num_bytes, np.uint8).data
    done = 0
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while done < num_bytes and (count := file.readinto(buffer[done:])):
            done += count
    return memoryview(buffer)[:done]
