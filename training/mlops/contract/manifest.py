"""The contents and the provenance of a snapshot, as a JSON document. Standard library only, but for the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mlops.contract.grain import Grain
from mlops.contract.refs import Artifact, DatasetRef, canonical_json, digest_of

FORMAT: Final = 3
"""Version of the manifest's format."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """One Parquet object."""

    key: str
    sha256: str
    num_bytes: int
    num_rows: int

    @property
    def artifact(self) -> Artifact:
        return Artifact(key=self.key, sha256=self.sha256, num_bytes=self.num_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """The rows of one period: an hour, calendar day, week or month."""

    period: str
    """Its name, such as ``2013-02-09``; see :mod:`mlops.contract.grain`."""
    num_rows: int
    num_bytes: int
    blobs: tuple[Blob, ...]
    """Blobs that hold the rows, in order; as long as each other, give or take one row."""
    index: Blob | None = None
    """
    Parquet file whose column ``split`` names the split of each of the period's rows; None if the split is by time.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitPart:
    """One split of a snapshot."""

    periods: tuple[str, ...]
    """Periods in which the split has rows, oldest first."""
    num_rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The contents of a snapshot, and where they came from."""

    format: int = FORMAT
    name: str
    interval_start: str
    """First instant of the window, ISO 8601, UTC."""
    interval_end: str
    """As-of time, ISO 8601, UTC."""
    timezone: str
    grain: Grain
    """What the partitions are."""
    window: tuple[str, ...]
    """All periods of the window, whether they have rows or not, oldest first."""
    event_time: str
    """Column that decides to which period a row belongs."""
    schema: Mapping[str, str]
    """Column name to polars type, in column order."""
    schema_hash: str
    partitions: tuple[Partition, ...]
    """Partitions in order of their periods; one without rows has none."""
    split: Mapping[str, Any]
    """The setting ``ingest.split``."""
    split_hash: str
    """SHA-256 of ``split``."""
    splits: Mapping[str, SplitPart]
    """``train``, ``validation`` and ``test``."""
    calendar: Mapping[str, Any]
    """The setting ``ingest.calendar``."""
    expected: tuple[str, ...]
    """Periods of the window in which the calendar expects rows, oldest first; none where any may be without."""
    sources: Mapping[str, Mapping[str, Any]]
    """Per source: its kind, the position that was read, rows read."""
    creator: Mapping[str, Any]
    """Airflow's ``dag_id``, ``run_id``, ``task_id`` and ``try_number``."""
    engine: str
    """The engine that made the snapshot, makes its features and asks models about it: ``polars`` or ``spark``."""

    @property
    def num_rows(self) -> int:
        return sum(partition.num_rows for partition in self.partitions)

    @property
    def num_bytes(self) -> int:
        return sum(partition.num_bytes for partition in self.partitions)

    @property
    def blobs(self) -> list[Blob]:
        """Return all objects that the snapshot is made of, indexes too."""
        found = [blob for partition in self.partitions for blob in (*partition.blobs, partition.index)]
        return [blob for blob in found if blob is not None]

    @property
    def version(self) -> str:
        """
        Return SHA-256 over all but window, calendar, sources, creator and engine: equal rows of equal intervals give
        equal versions.

        A file that grew by rows from the future is the same source as of this interval, and a holiday that was not
        known before changes no rows. What the window is follows from interval and grain.
        """
        document = self.to_document()
        for field in ("window", "calendar", "expected", "sources", "creator", "engine"):
            document.pop(field, None)
        return digest_of(document)

    def ref(self, place: str, artifact: Artifact) -> DatasetRef:
        """
        Return the snapshot's ref.

        :param place: place of the ingest step
        :param artifact: the stored manifest itself
        """
        return DatasetRef(
            place=place,
            artifacts={"manifest": artifact},
            name=self.name,
            version=self.version,
            schema_hash=self.schema_hash,
            num_rows=self.num_rows,
            num_bytes=self.num_bytes,
            interval_start=self.interval_start,
            interval_end=self.interval_end,
        )

    def to_document(self) -> dict[str, Any]:
        document = asdict(self)
        # A list, for JSON objects lose their order when keys are sorted.
        document["schema"] = list(self.schema.items())
        return document

    def to_json(self) -> bytes:
        return canonical_json(self.to_document())

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """
        Parse a manifest.

        :raises ValueError: where another release wrote it
        """
        document = json.loads(data)
        if (found := document.get("format")) != FORMAT:
            raise ValueError(
                f"a manifest of format {found}, and this release reads {FORMAT}: upgrade it, or ingest the snapshot "
                "again"
            )
        return cls(
            **{
                **document,
                "schema": dict(document["schema"]),
                "partitions": tuple(_partition(partition) for partition in document["partitions"]),
                "window": tuple(document["window"]),
                "expected": tuple(document["expected"]),
                "splits": {
                    name: SplitPart(periods=tuple(part["periods"]), num_rows=part["num_rows"])
                    for name, part in document["splits"].items()
                },
            }
        )


def _partition(document: Mapping[str, Any]) -> Partition:
    blobs = tuple(Blob(**blob) for blob in document["blobs"])
    index = Blob(**document["index"]) if document.get("index") else None
    return Partition(**{**document, "blobs": blobs, "index": index})


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsDiff:
    """Differences in columns between the first snapshot and the second."""

    added: Mapping[str, str]
    """Name to type of the columns that only the second snapshot has."""
    removed: Mapping[str, str]
    retyped: Mapping[str, tuple[str, str]]
    """Name to the type before and after, of the columns whose type differs."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.retyped)


def compare_columns(before: Manifest, after: Manifest) -> ColumnsDiff:
    both = before.schema.keys() & after.schema.keys()
    return ColumnsDiff(
        added={name: dtype for name, dtype in after.schema.items() if name not in both},
        removed={name: dtype for name, dtype in before.schema.items() if name not in both},
        retyped={
            name: (dtype, after.schema[name])
            for name, dtype in before.schema.items()
            if name in both and dtype != after.schema[name]
        },
    )


def differing_periods(before: Manifest, after: Manifest) -> list[str]:
    """Return the periods whose blobs are not the same; all others have equal rows, and need not be read."""
    old, new = ({part.period: [blob.sha256 for blob in part.blobs] for part in m.partitions} for m in (before, after))
    return sorted(period for period in old.keys() | new.keys() if old.get(period) != new.get(period))
