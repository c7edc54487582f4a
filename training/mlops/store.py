"""
The object store: a local folder or an S3 bucket behind one small interface, and the atomic commit of a step.

Every object a ref names is written under a name that holds its own digest, and ``ref.json`` is written last by a
conditional put: its presence is the commit. Killed at any point, a step leaves nothing that a reader would find.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore, ObjectStore, from_url

from mlops.contract.outages import classify_store_error, store_cause
from mlops.contract.refs import MANIFEST, Artifact, Ref, named_in, ref_from_wire
from mlops.contract.step import BadConfigError
from mlops.store_errors import KINDS, DamagedObjectError, StoreError

REF_FILE: Final = "ref.json"
ASIDE: Final = "damaged"
"""Folder of objects that were moved aside to be made again; nothing reads it, and people may delete it."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_REPAIR: Final = (
    "`mlops store verify --heal` makes it again where it can; so does clearing the task that wrote it, once it is "
    "deleted; else restore it from a backup"
)
_PART_BYTES: Final = 16 << 20
_REQUESTS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """An object as a store's listing shows it."""

    key: str
    num_bytes: int
    modified: datetime
    """Time at which the object was written, by the store's clock."""


class Store:
    """
    A store of objects. Keys are paths below the root, with ``/`` between the parts.

    :param uri: ``file:///folder`` or ``s3://bucket/prefix``; credentials come from the environment
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._root: Path | None = None
        if uri.startswith("file://"):
            self._root = Path(uri.removeprefix("file://"))
            try:
                self._root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(f"cannot make the store's folder {self._root}: {error.strerror}") from error
            self._backend: ObjectStore = LocalStore(self._root)
        elif uri.startswith("s3://"):
            self._backend = from_url(uri)
        else:
            raise BadConfigError(f"store {uri!r} is neither file:///folder nor s3://bucket/prefix")

    def put(self, key: str, data: bytes | Path, *, durable: bool = True) -> None:
        """
        Write an object whole; an older one of that key is replaced.

        :param durable: return only when it would survive a power cut
        """
        try:
            obstore.put(self._backend, key, data)
            if durable:
                self._flush(key)
        except Exception as error:
            raise self._failure("write", key, error) from error

    def put_large(self, key: str, memory: memoryview, part_bytes: int) -> None:
        """Write an object in several parts at once, where the store is a remote one."""
        try:
            obstore.put(self._backend, key, memory, chunk_size=part_bytes, max_concurrency=4)
            self._flush(key)
        except Exception as error:
            raise self._failure("write", key, error) from error

    def put_new(self, key: str, data: bytes) -> bool:
        """
        Write an object unless the key is taken; of several writers exactly one gets True.

        The answer to a write may be lost: the client then tries again, and finds the key taken by its own first write.
        So the object is read back, and the writer that finds its own bytes has written it. Writers that must be
        distinguished need different bytes.
        """
        try:
            obstore.put(self._backend, key, data, mode="create")
            self._flush(key)
        except AlreadyExistsError:
            try:
                return self.get(key) == data
            except FileNotFoundError:  # removed since
                return False
        except Exception as error:
            try:
                return self.get(key) == data
            except (FileNotFoundError, StoreError):
                raise self._failure("write", key, error) from error
        return True

    def get(self, key: str) -> bytes:
        """
        Read a whole object.

        :raises FileNotFoundError: where there is no such object
        """
        try:
            return bytes(obstore.get(self._backend, key).bytes())
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._failure("read", key, error) from error

    def get_range(self, key: str, start: int, num_bytes: int) -> bytearray:
        """
        Read a part of an object; fewer bytes where it ends within them.

        :raises FileNotFoundError: where there is no such object
        """
        try:
            return bytearray(obstore.get_range(self._backend, key, start=start, length=num_bytes))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._failure("read", key, error) from error

    def sha256(self, key: str, on_bytes: Callable[[int], None] = lambda num_bytes: None) -> tuple[str, int]:
        """
        Read an object through, 16 MB at a time.

        :param on_bytes: called with the number of bytes read since the last call
        :return: the digest of the bytes, and their number
        :raises FileNotFoundError: where there is no such object
        """
        digest, start = hashlib.sha256(), 0
        try:
            answer = obstore.get(self._backend, key)
            size = answer.meta["size"]
            while start < size:
                # A request for each part: one for all would have to end within the client's timeout.
                length = min(_PART_BYTES, size - start)
                part = (
                    answer.bytes()
                    if length == size
                    else obstore.get_range(self._backend, key, start=start, length=length)
                )
                digest.update(part)
                on_bytes(length)
                start += length
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._failure("read", key, error) from error
        return digest.hexdigest(), size

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes; None if there is no such object."""
        try:
            return obstore.head(self._backend, key)["size"]
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failure("read", key, error) from error

    def list(self, prefix: str) -> Iterator[str]:
        """List the keys below a folder, sorted."""
        yield from (entry.key for entry in self.stored(prefix))

    def stored(self, prefix: str) -> Sequence[Stored]:
        """List the objects below a folder, at any depth, in order of their keys."""
        try:
            found = [
                Stored(key=entry["path"], num_bytes=entry["size"], modified=entry["last_modified"])
                for page in obstore.list(self._backend, prefix)
                for entry in page
            ]
        except Exception as error:
            raise self._failure("list", prefix, error) from error
        return sorted(found, key=lambda entry: entry.key)

    def folders(self, prefix: str) -> Sequence[str]:
        """List the names of the folders directly below a folder, sorted."""
        try:
            found = obstore.list_with_delimiter(self._backend, prefix)["common_prefixes"]
        except Exception as error:
            raise self._failure("list", prefix, error) from error
        return sorted(PurePosixPath(folder).name for folder in found)

    def copy(self, key: str, to: str) -> bool:
        """
        Copy an object within the store (locally a hard link); an older one at ``to`` is replaced.

        :return: False where there is no such object
        """
        try:
            obstore.copy(self._backend, key, to)
            self._flush(to)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise self._failure("copy", key, error) from error
        return True

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is gone already is no error."""
        try:
            obstore.delete(self._backend, keys)
        except FileNotFoundError:
            # It may have ended there; only a local folder minds, and deletes one by one as quickly.
            for key in keys if len(keys) > 1 else ():
                self.delete([key])
        except Exception as error:
            raise self._failure("delete", ", ".join(keys[:3]), error) from error

    def put_artifact(self, place: str, name: str, data: bytes | Path) -> Artifact:
        """
        Store a step's file under ``place``, its digest in its key, so that no other attempt can overwrite it.

        :param name: e.g. ``report.html``; stored as ``report.<12 hex digits>.html``
        """
        sha256, size = _digest(data)
        path = PurePosixPath(name)
        key = f"{place}/{path.stem}.{sha256[:12]}{path.suffix}"
        self.put(key, data)
        return Artifact(key=key, sha256=sha256, num_bytes=size)

    def put_blob(self, data: bytes | Path, suffix: str = "") -> tuple[Artifact, bool]:
        """
        Store content that many owners may share, once, under ``blobs/sha256``.

        Only what a manifest names by its digest outlives garbage collection (:mod:`mlops.data.snapshots.garbage`).

        :return: the artifact, and True if the store did not have it yet
        """
        sha256, size = _digest(data)
        key = blob_key(sha256, suffix)
        # A power cut can leave a name without its bytes: such a blob must not be shared.
        if new := self.size(key) != size:
            self.put(key, data)
        return Artifact(key=key, sha256=sha256, num_bytes=size), new

    def read(self, artifact: Artifact) -> bytes:
        """
        Read an artifact and check its digest.

        :raises DamagedObjectError: naming the object
        """
        try:
            data = self.get(artifact.key)
        except FileNotFoundError as error:
            raise DamagedObjectError(f"{artifact.key} is missing from {self.uri}") from error
        if hashlib.sha256(data).hexdigest() != artifact.sha256:
            raise DamagedObjectError(
                f"{artifact.key} in {self.uri} is damaged: {len(data)} bytes whose SHA-256 is not "
                f"{artifact.sha256[:12]}...; {_REPAIR}"
            )
        return data

    def local_file(self, artifact: Artifact, cache: Path) -> Path:
        """
        Return a checked local file with the artifact's bytes, to be memory-mapped; it is fetched to ``cache`` if
        necessary.

        :raises DamagedObjectError: naming the object, also where its name leads out of the store
        """
        if not _DIGEST.fullmatch(artifact.sha256):
            raise DamagedObjectError(f"{artifact.key} has no SHA-256: {artifact.sha256[:80]!r}")
        if self._root is not None:
            path = self._root / artifact.key
            # It comes from a ref or a manifest, which somebody may have edited.
            if not path.resolve().is_relative_to(self._root.resolve()):
                raise DamagedObjectError(f"{artifact.key!r} is outside of the store {self.uri}")
            if not path.is_file():
                raise DamagedObjectError(f"{artifact.key} is missing from {self.uri}")
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != artifact.sha256:
                    raise DamagedObjectError(f"{artifact.key} in {self.uri} is damaged; {_REPAIR}")
            return path
        path = cache / artifact.sha256
        if not path.exists():
            # Of this thread alone: equal blobs of several days are fetched at once.
            partial = cache / f"{artifact.sha256}.{os.getpid()}-{threading.get_ident()}"
            partial.write_bytes(self.read(artifact))
            partial.rename(path)
        return path

    def committed(self, place: str) -> Ref | None:
        """
        Return the ref that was committed at a step's place; None if there is none.

        :raises DamagedObjectError: where ``ref.json`` is there and is no ref
        """
        try:
            return ref_from_wire(json.loads(self.get(f"{place}/{REF_FILE}")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedObjectError(
                f"{place}/{REF_FILE} in {self.uri} is damaged ({error}); restore it from a backup, or delete it and "
                "run its step again"
            ) from error

    def commit(self, ref: Ref) -> Ref:
        """Make a step's work visible by writing its ref. If another attempt was first, its ref is returned instead."""
        # ref.json last: its presence is the commit.
        if self.put_new(f"{ref.place}/{REF_FILE}", ref_bytes(ref)):
            return ref
        winner = self.committed(ref.place)
        assert winner is not None, "a ref.json never disappears"
        return winner

    def lacking(self, ref: Ref) -> Sequence[Artifact]:
        """
        Return the artifacts that a ref and its manifest name, and that the store lacks or has with another size.

        One listing of the ref's place, a GET where there is a manifest, and a HEAD for each object that lies elsewhere
        (a snapshot's blobs), 16 at a time. Their contents are not read.
        """
        named = list(ref.artifacts.values())
        sizes: dict[str, int | None] = {entry.key: entry.num_bytes for entry in self.stored(ref.place)}
        manifest = ref.artifacts.get(MANIFEST)
        if manifest is not None:
            try:
                named += named_in(self.read(manifest))
            except DamagedObjectError:
                sizes[manifest.key] = None
        elsewhere = list({artifact.key for artifact in named} - sizes.keys())
        with ThreadPoolExecutor(_REQUESTS) as pool:
            sizes |= dict(zip(elsewhere, pool.map(self.size, elsewhere), strict=True))
        return [artifact for artifact in named if sizes[artifact.key] != artifact.num_bytes]

    def set_aside(self, key: str) -> str | None:
        """
        Move an object out of the way, and keep it.

        :return: the object's new key; None if there was no such object
        """
        aside = f"{ASIDE}/{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}/{key}"
        if not self.copy(key, aside):
            return None
        self.delete([key])
        return aside

    def _flush(self, key: str) -> None:
        # A rename is atomic but not durable: after a power cut ref.json could be there and its data not.
        if self._root is None:
            return
        path = self._root / key
        for target in (path, path.parent):
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _failure(self, verb: str, key: str, error: Exception) -> StoreError:
        kind = KINDS[classify_store_error(error)]
        return kind(
            f"cannot {verb} {key} in the store {self.uri}: {store_cause(error)}. Check that the store is there, "
            "that it has space, and that this user may write to it"
        )


def ref_bytes(ref: Ref) -> bytes:
    """Return the bytes of ``ref.json``: equal refs give equal bytes."""
    return json.dumps(ref.to_wire(), indent=1, sort_keys=True).encode()


def blob_key(sha256: str, suffix: str = "") -> str:
    """Return the key of content with that digest, whoever stored it."""
    return f"blobs/sha256/{sha256[:2]}/{sha256}{suffix}"


def _digest(data: bytes | Path) -> tuple[str, int]:
    if isinstance(data, Path):
        with data.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), data.stat().st_size
    return hashlib.sha256(data).hexdigest(), len(data)
