"""
Sources: tables in files, as they were known at the end of the data interval.

Formats by file name: .parquet, .csv, .csv.gz, .csv.zip, .jsonl. Paths are files or globs, relative to the project
folder, absolute, or URIs (``file://``, ``s3://``).
"""

from __future__ import annotations

import glob
import hashlib
import io
import zipfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import obstore
import polars as pl
from obstore.store import from_url
from polars.exceptions import PolarsError

from mlops_provider.step import BadConfigError, BadDataError

FORMATS = (".parquet", ".csv", ".csv.gz", ".csv.zip", ".jsonl")
_OFFSET = r"(Z|[+-]\d{2}:?\d{2})$"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """One table to read."""

    path: str
    event_time: str | None
    """Column with the instant at which a row became known; None for tables without history."""
    null_values: list[str]
    """Strings that mean null in CSV files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A source read as of an instant."""

    rows: pl.LazyFrame
    columns: tuple[str, ...]
    provenance: dict[str, Any]
    """``path``, ``sha256`` of the files' contents, ``num_rows`` that were known."""


def read_source(name: str, config: SourceConfig, *, home: Path, scratch: Path, as_of: datetime) -> Source:
    """
    Read a source without the rows that were not yet known at ``as_of``.

    :param scratch: folder for what is fetched from a remote store
    :raises BadDataError: where a file is missing or unreadable, or the event time is not there or not an instant
    :raises BadConfigError: where the format is not one of :data:`FORMATS`
    """
    suffix = next((known for known in reversed(FORMATS) if config.path.endswith(known)), None)
    if suffix is None:
        raise BadConfigError(f"source {name!r}: {config.path!r} is of no known format; known are {', '.join(FORMATS)}")
    files = _local_files(name, config.path, home, scratch)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    try:
        rows = pl.concat([_scan(file, suffix, config.null_values) for file in files])
        schema = rows.collect_schema()
        if config.event_time is not None:
            rows = _known_at(name, rows, schema, config.event_time, as_of)
        num_rows = rows.select(pl.len()).collect().item()
    except (PolarsError, zipfile.BadZipFile) as error:
        raise BadDataError(f"source {name!r}: cannot read {config.path}: {error}") from error
    provenance = {"path": config.path, "sha256": digest.hexdigest(), "num_rows": num_rows}
    return Source(rows=rows, columns=tuple(schema), provenance=provenance)


def _known_at(name: str, rows: pl.LazyFrame, schema: pl.Schema, event_time: str, as_of: datetime) -> pl.LazyFrame:
    if event_time not in schema:
        raise BadDataError(
            f"source {name!r} has no column {event_time!r}, which its event_time names; it has {', '.join(schema)}"
        )
    instant = pl.col(event_time)
    dtype = schema[event_time]
    if dtype == pl.String:
        parsed = instant.str.to_datetime(time_zone="UTC", strict=False)
        # Polars would take a text without an offset for UTC.
        ambiguous = ~instant.str.contains(_OFFSET)
        unreadable = rows.select(instant.filter((parsed.is_null() | ambiguous) & instant.is_not_null())).head(1)
        if (example := unreadable.collect()).height:
            raise BadDataError(
                f"source {name!r}: event_time {event_time!r} holds {example.item()!r}, which is not an instant; "
                "write it in ISO 8601 with its offset, e.g. 2013-01-31T10:00:00Z"
            )
        instant = instant.str.to_datetime(time_zone="UTC")
    elif not isinstance(dtype, pl.Datetime) or dtype.time_zone is None:
        raise BadDataError(
            f"source {name!r}: event_time {event_time!r} is {dtype}, not an instant; make it a datetime with a "
            "time zone, or text in ISO 8601 with an offset"
        )
    instant = instant.dt.convert_time_zone("UTC").dt.cast_time_unit("us")
    # Before anything else sees them: what is not read cannot leak. A row without an instant is not known either.
    return rows.with_columns(instant.alias(event_time)).filter(pl.col(event_time) < as_of)


def _scan(file: Path, suffix: str, null_values: list[str]) -> pl.LazyFrame:
    if suffix == ".parquet":
        return pl.scan_parquet(file, glob=False)
    if suffix == ".jsonl":
        return pl.scan_ndjson(file, infer_schema_length=None)
    data: Path | bytes = file
    if suffix == ".csv.zip":
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.namelist() if not member.endswith("/")]
            if len(members) != 1:
                raise BadDataError(f"{file} holds {len(members)} files; a .csv.zip source holds exactly one")
            data = archive.read(members[0])
    # The types follow from all rows, not from the first hundred: they must not change with the order of rows.
    return pl.read_csv(
        data if isinstance(data, Path) else io.BytesIO(data),
        null_values=null_values,
        infer_schema_length=None,
        glob=False,
    ).lazy()


def _local_files(name: str, path: str, home: Path, scratch: Path) -> list[Path]:
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    elif "://" in path:
        return _fetch(name, path, scratch)
    # A name with brackets is a name, where there is such a file; so is the project's folder.
    matches = [path] if (home / path).exists() else sorted(glob.glob(path, root_dir=home, recursive=True))
    found = [home / match for match in matches]
    if folder := next((file for file in found if file.is_dir()), None):
        raise BadConfigError(f"source {name!r}: {folder} is a folder; name the files in it, e.g. {path.rstrip('/')}/*")
    if not found:
        raise BadDataError(
            f"source {name!r}: there is no file {home / path}; put it there (for the example pipelines: make data), "
            f"or change ingest.sources.{name}.path"
        )
    return found


def _fetch(name: str, uri: str, scratch: Path) -> list[Path]:
    """Copy the objects that match a URI, sorted by key; like a file glob, ``*`` stays within a folder."""
    scheme, _, path = uri.partition("://")
    parts = PurePosixPath(path).parts
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    pattern = "/".join(parts[fixed:])
    backend = from_url(f"{scheme}://{'/'.join(parts[:fixed]).replace('//', '/')}")
    keys = sorted(entry["path"] for page in obstore.list(backend) for entry in page)
    files: list[Path] = []
    for key in keys:
        if len(PurePosixPath(key).parts) == len(parts) - fixed and PurePosixPath(key).match(pattern):
            file = scratch / f"{name}-{len(files):05d}-{PurePosixPath(key).name}"
            file.write_bytes(bytes(obstore.get(backend, key).bytes()))
            files.append(file)
    if not files:
        raise BadDataError(f"source {name!r}: nothing at {uri}; check ingest.sources.{name}.path")
    return files
