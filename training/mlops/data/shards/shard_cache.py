"""
Shards as local files to be mapped: in place on a local store, else fetched to a folder of bounded size.

All processes of a node may share the folder. A file in use is locked (``flock``), which ends with its process however
that ends; what is not locked may be dropped, the least recently used first.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np

from mlops.contract.refs import Artifact
from mlops.contract.step import BadConfigError
from mlops.store import Store
from mlops.store_errors import StoreError

logger = logging.getLogger(__name__)

MAX_CACHE_BYTES: Final = 16 << 30
"""Size of the folder in bytes: room for the window in use and the next one, several times."""
_FETCHERS: Final = 2
# Calls after which a shard that was not used is unmapped, and the most that are mapped: Linux allows 65,530 mappings.
_IDLE_CALLS: Final = 256
_MAX_OPEN: Final = 4096

T = TypeVar("T")


class CacheFullError(BadConfigError):
    """The folder has no room for a shard beside those that are in use."""


class Lease:
    """A local file that stays until this is closed."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path = path
        self._descriptor = descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)  # and with it the lock

    __del__ = close


def node_folder() -> Path:
    """
    Return the folder for a remote store's shards; all processes of a node share it, and a restart finds them there.
    """
    folder = Path(tempfile.gettempdir(), f"mlops-shards-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class ShardCache:
    """
    Checked local files of a store's shards.

    :param folder: for shards of a remote store; may be shared by processes
    :param max_bytes: size of that folder
    """

    def __init__(self, store: Store, folder: Path, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._store, self._folder, self._max_bytes = store, folder, max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._root = Path(store.uri.removeprefix("file://")) if store.uri.startswith("file://") else None
        self._fetchers = ThreadPoolExecutor(_FETCHERS, "fetch-shards")  # starts its threads when they are needed
        self._hinted: set[str] = set()
        self._sound: set[str] = set()
        """
        Digests whose file this process has fetched or read; a file from before may have lost its contents in a power
        cut.
        """

    def open(self, shard: Artifact, *, checked: bool = False) -> Lease:
        """
        Open a shard as a local file.

        :param checked: True if this process has checked the shard before: a local store's file is then not read again
        :raises DamagedObjectError: if the shard's bytes are not those that were written; names it
        :raises CacheFullError: where other shards in use leave no room
        """
        if self._root is not None:
            # The store checks the digest.
            path = self._root / shard.key if checked else self._store.local_file(shard, self._folder)
            return Lease(path, None)
        while (lease := self._find(shard)) is None:
            self._fetch(shard)
        return lease

    def prefetch(self, shards: Sequence[Artifact]) -> None:
        """Begin to fetch shards in the order of their use, as many as half the folder holds; returns at once."""
        room = self._max_bytes // 2
        for shard in shards if self._root is None else ():
            room -= shard.num_bytes
            if room >= 0 and shard.sha256 not in self._hinted:
                self._hinted.add(shard.sha256)
                # What goes wrong is raised where the shard is used.
                self._fetchers.submit(self._fetch_ahead, shard)

    def _fetch_ahead(self, shard: Artifact) -> None:
        try:
            if self._find(shard) is None:
                self._fetch(shard)
        finally:
            self._hinted.discard(shard.sha256)

    def _find(self, shard: Artifact) -> Lease | None:
        path = self._folder / shard.sha256
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        lease = Lease(path, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink == 0:  # dropped since it was opened
            return None
        if shard.sha256 not in self._sound:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
                    logger.warning("%s in the cache %s is damaged: it is fetched again", shard.key, self._folder)
                    path.unlink(missing_ok=True)
                    return None
            self._sound.add(shard.sha256)
        os.utime(descriptor)
        return lease

    def _fetch(self, shard: Artifact) -> None:
        path = self._folder / shard.sha256
        turn = path.with_suffix(".fetching")
        try:
            with turn.open("wb") as lock:
                # One fetches, the others wait; a killed one's lock is free.
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists() and os.fstat(lock.fileno()).st_nlink:
                    try:
                        self._download(shard, path)
                    finally:
                        turn.unlink()
        except OSError as error:
            raise StoreError(
                f"cannot keep {shard.key} in the cache {self._folder}: {error.strerror}; it takes up to "
                f"{self._max_bytes:,} bytes: free them, or allow it fewer"
            ) from error

    def _download(self, shard: Artifact, path: Path) -> None:
        partial = path.with_suffix(".partial")
        try:
            with self._folder_locked():
                partial.unlink(missing_ok=True)  # a killed process left it
                self._make_room(shard.num_bytes)
                file = partial.open("xb")
                fcntl.flock(file, fcntl.LOCK_EX)
                os.posix_fallocate(file.fileno(), 0, max(1, shard.num_bytes))  # counts from now on
            with file:
                file.write(self._store.read(shard))
                with self._folder_locked():
                    partial.rename(path)
                self._sound.add(shard.sha256)
        except BaseException:
            with self._folder_locked():
                partial.unlink(missing_ok=True)
            raise

    def _make_room(self, num_bytes: int) -> None:
        entries = []
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # another process's .fetching goes without the folder's lock
                if path.is_file():
                    entries.append((path, path.stat()))
        excess = sum(stat.st_size for _, stat in entries) + num_bytes - self._max_bytes
        for path, stat in sorted(entries, key=lambda entry: entry[1].st_mtime_ns):
            if excess > 0 and stat.st_size and _drop(path):
                excess -= stat.st_size
        if excess > 0:
            raise CacheFullError(
                f"the cache {self._folder} may hold {self._max_bytes:,} bytes, and shards in use leave no room for one "
                f"of {num_bytes:,}: allow it more, at least a shard for each process of the node"
            )

    @contextmanager
    def _folder_locked(self) -> Iterator[None]:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _drop(path: Path) -> bool:
    """Unlink a file unless it is in use."""
    with suppress(FileNotFoundError), path.open("rb") as file:  # a damaged one goes without the lock too
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        path.unlink(missing_ok=True)
    return True


@dataclass(slots=True)
class _Open(Generic[T]):
    value: T
    lease: Lease
    used: int
    """Number of the call in which the shard was last used."""


class OpenShards(Generic[T]):
    """
    The shards of a split that are in use, by number; each is opened when it is first asked for.

    :param shards: ``{"key", "sha256", "num_bytes"}`` of each shard, as in the manifest
    :param read: maps a file into memory, given its part of the manifest
    """

    def __init__(
        self, cache: ShardCache, shards: Sequence[Mapping[str, Any]], read: Callable[[Path, Mapping[str, Any]], T]
    ) -> None:
        self._cache, self._shards, self._read = cache, shards, read
        self._open: OrderedDict[int, _Open[T]] = OrderedDict()
        self._checked = np.zeros(len(shards), bool)
        self._lock = threading.Lock()
        self._calls = 0
        self._crowded = False

    def __getitem__(self, number: int) -> T:
        """
        Return an open shard by its number.

        :raises DamagedObjectError: naming the shard whose bytes are not those that were written
        """
        with self._lock:
            entry = self._open.get(number)
            if entry is None:
                lease = self._lease(number)
                entry = self._open[number] = _Open(self._read(lease.path, self._shards[number]), lease, self._calls)
                self._checked[number] = True
            entry.used = self._calls
            self._open.move_to_end(number)
            return entry.value

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Fetch ahead the shards that the next call needs, or a later one; returns at once."""
        with self._lock:
            self._calls += 1
            while self._open and (
                len(self._open) > _MAX_OPEN or next(iter(self._open.values())).used < self._calls - _IDLE_CALLS
            ):
                self._close_oldest()
            missing = [number for number in numbers if number not in self._open]
        if missing:
            self._cache.prefetch([self._artifact(number) for number in missing])

    def _lease(self, number: int) -> Lease:
        while True:
            try:
                return self._cache.open(self._artifact(number), checked=bool(self._checked[number]))
            except CacheFullError as error:
                if not self._open:
                    raise
                if not self._crowded:
                    logger.warning("%s; shards in use are dropped and fetched again, which is slow", error)
                self._crowded = True
                self._close_oldest()

    def _close_oldest(self) -> None:
        # Who still holds its value may: a mapping outlives its file.
        self._open.popitem(last=False)[1].lease.close()

    def _artifact(self, number: int) -> Artifact:
        shard = self._shards[number]
        return Artifact(key=shard["key"], sha256=shard["sha256"], num_bytes=shard["num_bytes"])
