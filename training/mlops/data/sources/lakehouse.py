"""
Delta and Iceberg tables at one version: the one that is named, or the newest that was committed before the as-of time.

A version is immutable: the position is enough to read the same rows again, as long as the table keeps the version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import StaticTable, Table

from mlops.contract.sources import DeltaSource, IcebergSource
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.sources.connections import Connection
from mlops.data.sources.source import Piece, Position, SourceError, SourceReader


@dataclass(frozen=True, kw_only=True)
class Delta(SourceReader[DeltaSource]):
    """A source that reads a Delta table."""

    documents: ClassVar[bool] = False
    text: ClassVar[bool] = False
    local: ClassVar[bool] = True

    @property
    def _uri(self) -> str:
        return self.settings.path if "://" in self.settings.path else str(self.home / self.settings.path)

    def position(self) -> Position:
        try:
            table = DeltaTable(self._uri)
            if self.settings.version is not None:
                table.load_as_version(self.settings.version)
                return {"uri": self._uri, "version": self.settings.version}
            history = table.history()
        except TableNotFoundError as error:
            raise BadDataError(
                f"source {self.name!r}: there is no Delta table at {self._uri}; check ingest.sources.{self.name}.path"
            ) from error
        except DeltaError as error:
            wanted = f" at version {self.settings.version}" if self.settings.version is not None else ""
            raise BadDataError(f"source {self.name!r}: cannot read {self._uri}{wanted}: {error}") from error
        # Not every writer dates its commits.
        dated = [(entry["timestamp"], entry["version"]) for entry in history if "timestamp" in entry]
        known = [commit for commit in dated if commit[0] < self.records.as_of.timestamp() * 1000]
        if not known:
            oldest = f"; the oldest commit that it keeps is of {_instant(min(dated)[0])}" if dated else ""
            raise BadDataError(
                f"source {self.name!r}: {self._uri} has no version that was committed before "
                f"{self.records.as_of.isoformat()}{oldest}; set ingest.sources.{self.name}.version to read one "
                "on purpose"
            )
        committed, version = max(known, key=lambda commit: int(commit[1]))
        return {"uri": self._uri, "version": version, "committed": _instant(committed)}

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        return [DeltaPiece(position["uri"], position["version"])]


@dataclass(frozen=True, slots=True)
class DeltaPiece:
    """A Delta table at a version."""

    uri: str
    version: int

    @property
    def place(self) -> str:
        return f"{self.uri} at version {self.version}"

    def __call__(self) -> pl.LazyFrame:
        return pl.scan_delta(self.uri, version=self.version)


@dataclass(frozen=True, kw_only=True)
class Iceberg(SourceReader[IcebergSource]):
    """A source that reads an Iceberg table."""

    documents: ClassVar[bool] = False
    text: ClassVar[bool] = False
    local: ClassVar[bool] = True

    def position(self) -> Position:
        table = self._table()
        if self.settings.snapshot_id is not None:
            snapshot = table.snapshot_by_id(self.settings.snapshot_id)
            missing = f"no snapshot {self.settings.snapshot_id}; it may have expired"
        else:
            snapshot = table.snapshot_as_of_timestamp(int(self.records.as_of.timestamp() * 1000), inclusive=False)
            missing = f"no snapshot from before {self.records.as_of.isoformat()}"
        if snapshot is None:
            raise BadDataError(
                f"source {self.name!r}: {self.settings.table} has {missing}; set "
                f"ingest.sources.{self.name}.snapshot_id to one that it has"
            )
        return {
            "table": self.settings.table,
            # With it the table is read without its catalog, and again when the catalog has moved on.
            "metadata": table.metadata_location,
            "snapshot_id": snapshot.snapshot_id,
            "committed": _instant(snapshot.timestamp_ms),
        }

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        return [IcebergPiece(self.settings.table, position["metadata"], position["snapshot_id"], self._properties)]

    @property
    def _properties(self) -> dict[str, str]:
        properties = dict(self.settings.catalog)
        if self.settings.connection is not None:
            extra = Connection.from_environment(self.settings.connection, f"source {self.name!r}").extra
            properties |= {name: str(value) for name, value in extra.items()}
        return properties

    def _table(self) -> Table:
        properties = self._properties
        if not properties:
            raise BadConfigError(
                f"source {self.name!r}: where is the catalog of {self.settings.table}? Set catalog, e.g. "
                "{name: default, type: rest, uri: https://...}, or connection"
            )
        try:
            # A SQL catalog holds the tables of several catalogs, by name.
            return load_catalog(properties.pop("name", "default"), **properties).load_table(self.settings.table)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise BadDataError(f"source {self.name!r}: the catalog has no table {self.settings.table}") from error
        except ValueError as error:
            raise BadConfigError(f"source {self.name!r}: catalog: {error}") from error
        except Exception as error:  # each catalog has its own
            raise SourceError(
                f"source {self.name!r}: the catalog does not answer: {type(error).__name__}"
                " (its message may hold secrets and is left out)"
            ) from error


@dataclass(frozen=True, slots=True)
class IcebergPiece:
    """An Iceberg table at a snapshot."""

    table: str
    metadata: str
    snapshot_id: int
    properties: Mapping[str, str] = field(repr=False)

    @property
    def place(self) -> str:
        return f"{self.table} at snapshot {self.snapshot_id}"

    def __call__(self) -> pl.LazyFrame:
        table = StaticTable.from_metadata(self.metadata, dict(self.properties))
        return pl.scan_iceberg(table, snapshot_id=self.snapshot_id)


def _instant(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
