"""
Garbage collection: remove the blobs that no manifest names.

A manifest is never removed, so a blob that one names stays for ever. Garbage is what killed ingests leave behind, and
what was shared with a manifest that somebody deleted by hand.

**The race.** An ingest finds an old blob that nothing names, relies on it, and names it in a manifest, just while the
collection removes it. Neither clocks nor a second look before the delete close that: there is always a moment between
the look and the delete. Therefore each side does its part in a fixed order:

- ingest: write or find the blobs; write the manifest; **then** look whether the blobs it found are there
  (:func:`confirm_blobs`); then commit;
- the collection: copy the blob aside to ``garbage/`` and delete it; **then** read the manifests again; copy the blob
  back if one names it; then delete the copy.

If the collection's second reading saw the manifest, the blob comes back. If it did not, the manifest was written after
that reading, hence after the blob was deleted, and ingest's look finds it missing: its attempt fails, and the retry
writes the blob. No timing is assumed. A killed collection leaves copies in ``garbage/``, and nothing is lost: the next
one copies back what is named at once, and deletes the copies when they are older than the grace period, for until then
their owner may still be at work.

The grace period is for the ingests at work, whose new blobs no manifest names yet: it saves them a retry.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Final

from mlops.contract.manifest import Manifest
from mlops.contract.refs import DatasetRef
from mlops.contract.step import EXPERIMENTS
from mlops.store import REF_FILE, Store, Stored, blob_key
from mlops.store_errors import DamagedObjectError, StoreError

BLOBS: Final = "blobs/sha256"
ASIDE: Final = "garbage"
BATCH: Final = 500
"""Blobs moved aside before the manifests are read again; so few that one that comes back was away for seconds only."""
_REQUESTS: Final = 16
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_DIGEST: Final = re.compile(rb"[0-9a-f]{64}")
_MANIFEST: Final = re.compile(r"manifest\.([0-9a-f]{12})\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """The result of a collection, or with ``dry_run`` what one would do."""

    removed: Sequence[Stored]
    restored: Sequence[str]
    """Blobs that were moved back, because a manifest came to name them in the meantime."""
    young: int
    """Number of unnamed blobs that were kept because they are younger than the grace period."""
    named: int
    """Number of blobs that manifests name."""


def collect(
    store: Store, *, grace: timedelta, dry_run: bool = False, progress: Callable[[int, int], None] | None = None
) -> Collected:
    """
    Remove unnamed blobs that are older than the grace period. May be killed at any time, and run again.

    :param progress: called with the number of blobs done, and the number of all
    :raises DamagedObjectError: where a manifest cannot be read, before anything is removed
    """
    horizon = datetime.now(UTC) - grace
    # The blobs first: what a manifest names that is written after this is too young, or found missing by its ingest.
    blobs = store.stored(BLOBS)
    names = _Names(store)
    names.read()
    unnamed = [blob for blob in blobs if not names.holds(blob.key)]
    doomed = [blob for blob in unnamed if blob.modified < horizon]
    kept = {"young": len(unnamed) - len(doomed), "named": len(blobs) - len(unnamed)}
    if dry_run:
        return Collected(removed=doomed, restored=[], **kept)
    restored = _finish_killed_collections(store, names, horizon)
    run = f"{datetime.now(UTC):{_STAMP}}-{secrets.token_hex(4)}"
    removed: list[Stored] = []
    for start in range(0, len(doomed), BATCH):
        batch = [blob for blob in doomed[start : start + BATCH] if not names.holds(blob.key)]
        aside = {blob.key: f"{ASIDE}/{run}-{PurePosixPath(blob.key).name}" for blob in batch}
        # Another collection may have been first.
        found = _copy(store, aside.items())
        try:
            _delete(store, found)
            names.read()
        except Exception:
            # What names them by now is unknown, and no copy may go before it is.
            _copy(store, [(aside[key], key) for key in found])
            raise
        restored += _copy(store, [(aside[key], key) for key in found if names.holds(key)])
        _delete(store, [aside[key] for key in found])
        removed += [blob for blob in batch if blob.key in set(found) and not names.holds(blob.key)]
        if progress is not None:
            progress(min(start + BATCH, len(doomed)), len(doomed))
    return Collected(removed=removed, restored=[_origin(key)[1] for key in restored], **kept)


def confirm_blobs(store: Store, manifest: Manifest) -> None:
    """
    Check that an ingest's blobs are still there, after it wrote its manifest and before it commits.

    :raises StoreError: where a blob is gone; a retry writes it
    """
    keys = sorted({blob.key for blob in manifest.blobs})
    with ThreadPoolExecutor(_REQUESTS) as pool:
        missing = [key for key, there in zip(keys, pool.map(store.exists, keys), strict=True) if not there]
    if missing:
        raise StoreError(
            f"garbage collection removed {missing[0]} ({len(missing)} blobs in all) while this snapshot came to share "
            "it; the next attempt writes it again"
        )


def _finish_killed_collections(store: Store, names: _Names, horizon: datetime) -> list[str]:
    """Undo killed collections, and return the keys of the blobs that were moved aside and are back."""
    left = {entry.key: _origin(entry.key) for entry in store.stored(ASIDE)}
    names.read()
    restored = _copy(
        store, [(key, blob) for key, (_, blob) in left.items() if names.holds(blob) and not store.exists(blob)]
    )
    # A younger one may belong to a collection at work, which has yet to delete the blob, and then needs its copy.
    _delete(store, [key for key, (started, _) in left.items() if started < horizon])
    return restored


def _origin(key: str) -> tuple[datetime, str]:
    """Return when the collection that moved this object aside began, and the blob's own key."""
    stamp, _, name = PurePosixPath(key).name.split("-", 2)
    digest, dot, suffix = name.partition(".")
    return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC), blob_key(digest, dot + suffix)


def _copy(store: Store, copies: Iterable[tuple[str, str]]) -> list[str]:
    """Copy objects, and return the keys of those that were there to be copied."""
    copies = list(copies)
    with ThreadPoolExecutor(_REQUESTS) as pool:
        done = list(pool.map(lambda pair: store.copy(*pair), copies))
    return [key for (key, _), copied in zip(copies, done, strict=True) if copied]


def _delete(store: Store, keys: Sequence[str]) -> None:
    if keys:
        store.delete(keys)


@dataclass(slots=True)
class _Names:
    """All digests that occur in the manifests of a store, whatever their format, committed or about to be."""

    store: Store
    _seen: set[str] = field(default_factory=set)
    _digests: set[str] = field(default_factory=set)

    def holds(self, blob: str) -> bool:
        return PurePosixPath(blob).name.partition(".")[0] in self._digests

    def read(self) -> None:
        """
        Read the manifests that were written since the last time: neither a manifest nor a ref ever changes. One that is
        removed meanwhile, with the results of an experiment or of a reproduction, names nothing any more.

        :raises DamagedObjectError: if a manifest cannot be read, or a committed ref has none: the blobs that it names
            are unknown
        """
        keys = {key for folder in ("pipelines", EXPERIMENTS) for key in self.store.list(folder)} - self._seen
        manifests = {key for key in keys if _MANIFEST.fullmatch(PurePosixPath(key).name)}
        refs = {key for key in keys if PurePosixPath(key).match(f"ingest/*/{REF_FILE}")}
        with ThreadPoolExecutor(_REQUESTS) as pool:
            # With those that refs name: one that is not there must not pass for one that names nothing.
            needing = {name: ref for ref, name in zip(refs, pool.map(self._manifest_of, refs), strict=True) if name}
            told = list(manifests | (needing.keys() - self._seen))
            read = list(pool.map(lambda key: self._digests_in(key, needing.get(key)), told))
        for key, digests in zip(told, read, strict=True):
            if digests is not None:
                self._digests |= digests
                self._seen.add(key)
        self._seen |= {ref for name, ref in needing.items() if name in self._seen}

    def _manifest_of(self, key: str) -> str | None:
        """Return the manifest of a committed ingest; None where its ref is gone."""
        ref = self.store.committed(str(PurePosixPath(key).parent))
        if ref is None:
            return None
        assert isinstance(ref, DatasetRef), f"{key} was committed by an ingest"
        return ref.artifacts["manifest"].key

    def _digests_in(self, key: str, ref: str | None) -> set[str] | None:
        """
        Return the digests in a manifest; None where it is gone, and the ref that needs it, if any, is gone too.

        :param ref: key of the ref that names the manifest
        """
        match = _MANIFEST.fullmatch(PurePosixPath(key).name)
        try:
            data = self.store.get(key)
        except FileNotFoundError:
            if ref is None or not self.store.exists(ref):
                return None
            data = b""
        if match is None or not hashlib.sha256(data).hexdigest().startswith(match[1]):
            raise DamagedObjectError(
                f"{key} in {self.store.uri} is {'damaged' if data else 'missing'}, so which blobs it needs is unknown: "
                f"garbage collection stopped. Restore it from a backup, or delete it and the {REF_FILE} beside it"
            )
        return {digest.decode() for digest in _DIGEST.findall(data)}
