"""The contents and the provenance of a snapshot, as a JSON document. Standard library only, but for the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mlops.contract.refs import Artifact, DatasetRef, canonical_json, digest_of

FORMAT: Final = 2
"""Version of the manifest's format. Format 1 had no splits, creator nor engine; its snapshots stay readable."""
_NEW_IN_2: Final[Mapping[str, Any]] = {
    "format": 1, "split": {}, "split_hash": "", "splits": {}, "calendar": {}, "expected_days": [], "creator": {},
    "engine": "polars",
}  # fmt: skip
"""What a manifest of format 1 lacks, and what that means."""


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
    """The rows of one calendar day."""

    day: str
    """The calendar day, ``YYYY-MM-DD`` in the snapshot's time zone."""
    num_rows: int
    num_bytes: int
    blobs: tuple[Blob, ...]
    """Blobs that hold the rows, in order; as long as each other, give or take one row."""
    index: Blob | None = None
    """
    Parquet file whose column ``split`` names the split of each of the day's rows; None if the split is not by key.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitPart:
    """One split of a snapshot."""

    days: tuple[str, ...]
    """Days on which the split has rows, oldest first."""
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
    event_time: str
    """Column that decides to which day a row belongs."""
    schema: Mapping[str, str]
    """Column name to polars type, in column order."""
    schema_hash: str
    partitions: tuple[Partition, ...]
    """Partitions in order of their days; a day without rows has none."""
    split: Mapping[str, Any]
    """The setting ``ingest.split``; empty in format 1."""
    split_hash: str
    """SHA-256 of ``split``."""
    splits: Mapping[str, SplitPart]
    """``train``, ``validation`` and ``test``; empty in format 1."""
    calendar: Mapping[str, Any]
    """The setting ``ingest.calendar``; empty in format 1: rows every day."""
    expected_days: tuple[str, ...]
    """Days of the window on which the calendar expects rows, oldest first; none where any day may be without."""
    sources: Mapping[str, Mapping[str, Any]]
    """Per source: its kind, the position that was read, rows read."""
    creator: Mapping[str, Any]
    """Airflow's ``dag_id``, ``run_id``, ``task_id`` and ``try_number``."""
    engine: str
    """The engine that made the snapshot and makes its features: ``polars`` or ``spark``."""

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
        Return SHA-256 over all but calendar, sources, creator and engine: equal rows of equal intervals give equal
        versions.

        A file that grew by rows from the future is the same source as of this interval, and a holiday that was not
        known before changes no rows.
        """
        document = self.to_document()
        for field in ("calendar", "expected_days", "sources", "creator", "engine"):
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
        if self.format == 1:
            for field in _NEW_IN_2:
                del document[field]
            for partition in document["partitions"]:
                del partition["index"]
        return document

    def to_json(self) -> bytes:
        return canonical_json(self.to_document())

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """
        Parse a manifest.

        :raises ValueError: where a newer release wrote it
        """
        document = json.loads(data)
        if document.get("format", 1) > FORMAT:
            raise ValueError(
                f"a manifest of format {document['format']}; this release reads up to {FORMAT}: upgrade it"
            )
        document = {**_NEW_IN_2, **document}
        return cls(
            **{
                **document,
                "schema": dict(document["schema"]),
                "partitions": tuple(_partition(partition) for partition in document["partitions"]),
                "expected_days": tuple(document["expected_days"]),
                "splits": {
                    name: SplitPart(days=tuple(part["days"]), num_rows=part["num_rows"])
                    for name, part in document["splits"].items()
                },
            }
        )


def _partition(document: Mapping[str, Any]) -> Partition:
    blobs = tuple(Blob(**blob) for blob in document["blobs"])
    index = Blob(**document["index"]) if document.get("index") else None
    return Partition(**{**document, "blobs": blobs, "index": index})
