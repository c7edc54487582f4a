"""
Immutable snapshots: a manifest of content-addressed Parquet blobs, one partition per calendar day.

Blobs are canonical (equal rows give equal bytes), so nightly snapshots share the days that did not change: a window
of 30 days costs one new day. Imports only polars, obstore and the standard library: the validation runtime reads
snapshots too.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import polars as pl

from mlops_provider.refs import Artifact, DatasetRef, canonical_json, digest_of
from mlops_provider.step import BadDataError
from training.store import Store, blob_key

MAX_BLOB_BYTES: Final = 128 * 1024 * 1024
_ROW_GROUP_ROWS: Final = 65_536
_ZSTD_LEVEL: Final = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """One Parquet object."""

    key: str
    sha256: str
    num_bytes: int
    num_rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """The rows of one calendar day."""

    day: str
    """``YYYY-MM-DD`` in the snapshot's time zone."""
    num_rows: int
    num_bytes: int
    blobs: tuple[Blob, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a snapshot holds, and where it came from."""

    name: str
    interval_start: str
    """First instant of the window, ISO 8601, UTC."""
    interval_end: str
    """As-of time, ISO 8601, UTC."""
    timezone: str
    event_time: str
    """Column that a row's day follows from."""
    schema: Mapping[str, str]
    """Column name to polars type, in column order."""
    schema_hash: str
    partitions: tuple[Partition, ...]
    """In order of their days; a day without rows has none."""
    sources: Mapping[str, Mapping[str, Any]]
    """Per source: path, sha256 of its files, rows read. Not part of the version: a file that grew by rows from the
    future is the same source as of this interval."""

    @property
    def num_rows(self) -> int:
        return sum(partition.num_rows for partition in self.partitions)

    @property
    def num_bytes(self) -> int:
        return sum(partition.num_bytes for partition in self.partitions)

    @property
    def version(self) -> str:
        """SHA-256 over all but the sources: equal rows of equal intervals give equal versions."""
        document = self.to_document()
        del document["sources"]
        return digest_of(document)

    def to_document(self) -> dict[str, Any]:
        document = asdict(self)
        # A list, for JSON objects lose their order when keys are sorted.
        document["schema"] = list(self.schema.items())
        return document

    def to_json(self) -> bytes:
        return canonical_json(self.to_document())

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        document = json.loads(data)
        partitions = tuple(
            Partition(**{**partition, "blobs": tuple(Blob(**blob) for blob in partition["blobs"])})
            for partition in document["partitions"]
        )
        return cls(**{**document, "schema": dict(document["schema"]), "partitions": partitions})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot opened for reading; its blobs are read when asked for."""

    store: Store
    manifest: Manifest

    @classmethod
    def open(cls, store: Store, ref: DatasetRef) -> Snapshot:
        """:raises DamagedObjectError: where the manifest is missing or not the one that was written"""
        return cls(store, Manifest.from_json(store.read(ref.artifacts["manifest"])))

    @property
    def days(self) -> list[str]:
        """Days that have rows, oldest first."""
        return [partition.day for partition in self.manifest.partitions]

    def read(self, days: Sequence[str] | None = None) -> pl.DataFrame:
        """
        Rows in canonical order, every blob checked against its digest.

        :param days: ``YYYY-MM-DD``, in the order wanted; None for all
        :raises BadDataError: where the snapshot has no such day
        :raises DamagedObjectError: naming the blob
        """
        partitions = {partition.day: partition for partition in self.manifest.partitions}
        wanted = self.days if days is None else days
        if missing := [day for day in wanted if day not in partitions]:
            raise BadDataError(
                f"snapshot {self.manifest.name} has no rows for {', '.join(missing)}; "
                f"it holds {len(partitions)} days, {self.days[0]} to {self.days[-1]}"
            )
        blobs = [blob for day in wanted for blob in partitions[day].blobs]
        if not blobs:
            return pl.DataFrame(schema=self.read(self.days[:1]).schema)
        return pl.concat(
            [
                pl.read_parquet(self.store.read(Artifact(key=b.key, sha256=b.sha256, num_bytes=b.num_bytes)))
                for b in blobs
            ]
        )


def write_snapshot(
    store: Store,
    table: pl.DataFrame,
    *,
    name: str,
    interval_start: str,
    interval_end: str,
    timezone: str,
    event_time: str,
    sources: Mapping[str, Mapping[str, Any]],
    max_blob_bytes: int = MAX_BLOB_BYTES,
) -> Manifest:
    """
    Store a table's rows by calendar day; blobs that the store already has are not written again.

    :param event_time: column of ``table`` with the instants (UTC) that give a row its day in ``timezone``
    :param sources: provenance, kept in the manifest as it is
    """
    # A categorical's codes follow the order of arrival; as strings equal rows are equal bytes.
    table = table.with_columns(pl.col(pl.Categorical).cast(pl.String))
    day_column = pl.col(event_time).dt.convert_time_zone(timezone).dt.date()
    partitions = []
    written = 0
    for (day,), rows in sorted(table.group_by(day_column.alias("day")), key=lambda item: str(item[0][0])):
        blobs, new = _write_blobs(store, rows.select(table.columns), max_blob_bytes)
        written += new
        partitions.append(
            Partition(day=str(day), num_rows=rows.height, num_bytes=sum(b.num_bytes for b in blobs), blobs=tuple(blobs))
        )
    schema = {column: str(dtype) for column, dtype in table.schema.items()}
    manifest = Manifest(
        name=name,
        interval_start=interval_start,
        interval_end=interval_end,
        timezone=timezone,
        event_time=event_time,
        schema=schema,
        schema_hash=digest_of(list(schema.items())),
        partitions=tuple(partitions),
        sources=sources,
    )
    num_blobs = sum(len(partition.blobs) for partition in partitions)
    logger.info(
        "snapshot %s: %d rows of %d days, %.1f MB in %d blobs, %d of them new and %d shared with earlier snapshots",
        name, manifest.num_rows, len(partitions), manifest.num_bytes / 1e6, num_blobs, written, num_blobs - written,
    )  # fmt: skip
    return manifest


def _write_blobs(store: Store, rows: pl.DataFrame, max_blob_bytes: int) -> tuple[list[Blob], int]:
    blobs, written = [], 0
    for data, num_rows in _encode(rows.sort(by=rows.columns, nulls_last=True), max_blob_bytes):
        key = blob_key(hashlib.sha256(data).hexdigest(), ".parquet")
        written += not store.exists(key)
        artifact = store.put_blob(data, ".parquet")
        blobs.append(Blob(key=artifact.key, sha256=artifact.sha256, num_bytes=artifact.num_bytes, num_rows=num_rows))
    return blobs, written


def _encode(rows: pl.DataFrame, max_blob_bytes: int) -> list[tuple[bytes, int]]:
    """Parquet, halved until every piece fits: a function of the rows alone, as their bytes must be."""
    buffer = io.BytesIO()
    # Everything that could vary is fixed; chunks are merged because row groups would follow them.
    rows.rechunk().write_parquet(
        buffer, compression="zstd", compression_level=_ZSTD_LEVEL, statistics=True, row_group_size=_ROW_GROUP_ROWS
    )
    data = buffer.getvalue()
    if len(data) <= max_blob_bytes or rows.height <= 1:
        return [(data, rows.height)]
    half = rows.height // 2
    return _encode(rows[:half], max_blob_bytes) + _encode(rows[half:], max_blob_bytes)
