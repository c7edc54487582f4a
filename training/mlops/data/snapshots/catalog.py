"""The snapshots committed to a store, and how people name one of them."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Final

from mlops.contract.manifest import Manifest
from mlops.contract.refs import SHORTEST_VERSION, VERSION_PATTERN, Artifact, DatasetRef
from mlops.contract.step import BadConfigError, deprecation_key
from mlops.data.snapshots.deprecation import Deprecation, find_deprecation
from mlops.data.snapshots.snapshot import Snapshot
from mlops.store import REF_FILE, Store, Stored
from mlops.store_errors import DamagedObjectError

_REQUESTS: Final = 16
_PERIOD: Final = re.compile(r"\d{4}-(W?\d\d)(-\d\d(T\d\d:\d\dZ)?)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommittedSnapshot:
    """A snapshot that an ingest committed."""

    ref: DatasetRef
    manifest: Manifest
    committed: datetime
    """Time of the commit, by the store's clock."""
    deprecation: Deprecation | None

    @property
    def name(self) -> str:
        """Name of the snapshot at the command line, e.g. ``flights@1a2b3c4d5e6f``."""
        return f"{self.ref.name}@{self.ref.version[:12]}"

    @property
    def last(self) -> str:
        """Name of the last period of the snapshot's window."""
        return self.manifest.window[-1]

    def open(self, store: Store) -> Snapshot:
        return Snapshot(store, self.manifest)

    def artifacts(self) -> dict[str, Artifact]:
        """Return every object that the snapshot consists of, by key."""
        blobs = [blob.artifact for blob in self.manifest.blobs]
        return {artifact.key: artifact for artifact in (*self.ref.artifacts.values(), *blobs)}

    def to_document(self) -> dict[str, Any]:
        """Return the ref's facts and the whole manifest as JSON."""
        return {
            "name": self.ref.name,
            "version": self.ref.version,
            "last": self.last,
            "num_rows": self.ref.num_rows,
            "num_bytes": self.ref.num_bytes,
            "committed": self.committed.isoformat(),
            "place": self.ref.place,
            "deprecated": asdict(self.deprecation) if self.deprecation else None,
            "manifest": self.manifest.to_document(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class DamagedSnapshot:
    """A snapshot whose ref or manifest cannot be read."""

    error: DamagedObjectError
    ref: DatasetRef | None
    """None where the ref itself is damaged."""
    committed: datetime
    """Time of the commit, by the store's clock."""
    is_deprecated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    """The snapshots of one dataset or of all, and those that are too damaged to be listed."""

    snapshots: Sequence[CommittedSnapshot]
    """
    The snapshots, sorted by name, then from the oldest interval to the newest, then in the order of their commits.
    """
    unreadable: Sequence[DamagedSnapshot]

    @property
    def damaged(self) -> list[DamagedObjectError]:
        """The errors of those that are too damaged."""
        return [each.error for each in self.unreadable]


def dataset_names(store: Store) -> list[str]:
    """List the datasets that have a place in the store; a dataset has the name of its pipeline."""
    return [name for name in store.folders("pipelines") if "ingest" in store.folders(f"pipelines/{name}")]


def read_catalog(store: Store, name: str | None = None) -> Catalog:
    """
    List the snapshots of one dataset or of all.

    :param name: None for all datasets
    :raises BadConfigError: where there is no such dataset, with the names that there are
    """
    names = dataset_names(store)
    if name is not None and name not in names:
        raise BadConfigError(f"there is no dataset {name!r} in {store.uri}{_instead(name, names)}")
    refs = [
        entry
        for dataset in (names if name is None else [name])
        for entry in store.stored(f"pipelines/{dataset}/ingest")
        if PurePosixPath(entry.key).name == REF_FILE
    ]
    marks = {key for dataset in names for key in store.list(f"pipelines/{dataset}/deprecated")}

    def read(entry: Stored) -> CommittedSnapshot | DamagedSnapshot:
        ref: DatasetRef | None = None
        marked = False
        try:
            committed = store.committed(str(PurePosixPath(entry.key).parent))
            assert isinstance(committed, DatasetRef), f"{entry.key} was committed by an ingest"
            ref = committed
            marked = deprecation_key(ref.name, ref.version) in marks
            manifest = Snapshot.open(store, ref).manifest
            mark = find_deprecation(store, ref.name, ref.version) if marked else None
        except DamagedObjectError as error:
            return DamagedSnapshot(error=error, ref=ref, committed=entry.modified, is_deprecated=marked)
        return CommittedSnapshot(ref=ref, manifest=manifest, committed=entry.modified, deprecation=mark)

    with ThreadPoolExecutor(_REQUESTS) as pool:
        found = list(pool.map(read, refs))
    snapshots = [item for item in found if isinstance(item, CommittedSnapshot)]
    snapshots.sort(key=lambda item: (item.ref.name, item.ref.interval_end, item.committed))
    return Catalog(snapshots=snapshots, unreadable=[item for item in found if isinstance(item, DamagedSnapshot)])


def find_snapshot(store: Store, text: str) -> CommittedSnapshot:
    """
    Find the snapshot that people mean by ``NAME``, ``NAME@VERSION`` or ``NAME@PERIOD``, such as ``flights@2013-02-08``.

    A version may be shortened to a beginning of at least 6 characters that only it has. A period is the last one of the
    window; of several snapshots of it, or where only the name is given, the newest counts, as it does for sensors:
    the latest interval, the last commit, no deprecated one where there is another.

    :raises BadConfigError: where none or several are meant, with what there is
    :raises DamagedObjectError: where the one that is meant cannot be read, or may be one that cannot
    """
    name, at, which = text.partition("@")
    catalog = read_catalog(store, name)
    if at and not _PERIOD.fullmatch(which) and not re.fullmatch(VERSION_PATTERN, which):
        raise BadConfigError(
            f"{which!r} in {text!r} is neither a period (such as 2013-02-08) nor the beginning of a version (at least "
            f"{SHORTEST_VERSION} of its hexadecimal digits); {_newest(catalog)}"
        )
    found = [
        item
        for item in catalog.snapshots
        if not at or item.last == which or ("-" not in which and item.ref.version.startswith(which))
    ]
    if not found:
        if catalog.damaged:
            raise catalog.damaged[0]
        raise BadConfigError(f"there is no snapshot {text!r} in {store.uri}; {_newest(catalog)}")
    versions = sorted({item.ref.version for item in found})
    of_version = at and "-" not in which
    if of_version and len(versions) > 1:
        length = 1 + max(_common(a, b) for a, b in itertools.pairwise(versions))
        raise BadConfigError(f"{text!r} may mean {' or '.join(version[: max(length, 12)] for version in versions)}")
    newest = ([item for item in found if item.deprecation is None] or found)[-1]
    for damaged in () if of_version else catalog.unreadable:
        # The one before it would else pass for the newest.
        if _may_follow(damaged, newest, same_period=bool(at)):
            verb = "is" if damaged.ref else "may be"
            raise DamagedObjectError(
                f"the newest of {text!r} {verb} a snapshot that cannot be read: {damaged.error}. For another one "
                f"name its version; {_newest(catalog)}"
            )
    return newest


def _may_follow(damaged: DamagedSnapshot, newest: CommittedSnapshot, *, same_period: bool) -> bool:
    """Tell whether a damaged snapshot may be newer than the newest that can be read."""
    if damaged.is_deprecated:
        return False
    if damaged.ref is None:
        # Of what period it is, nobody knows: damage anywhere would take all periods from their users.
        return not same_period and damaged.committed > newest.committed
    end, newest_end = damaged.ref.interval_end, newest.ref.interval_end
    is_later = (end, damaged.committed) > (newest_end, newest.committed)
    return is_later and (end == newest_end or not same_period)


def _newest(catalog: Catalog) -> str:
    if not catalog.snapshots:
        return "the dataset has none yet"
    newest = catalog.snapshots[-3:][::-1]
    return "the newest are " + ", ".join(f"{item.name} ({item.last})" for item in newest)


def _instead(name: str, names: Sequence[str]) -> str:
    if not names:
        return ": it holds no dataset at all"
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; it holds {', '.join(names)}"


def _common(a: str, b: str) -> int:
    """Return the number of leading characters that both texts share."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
