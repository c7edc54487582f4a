"""
The rows of a query to SQLite, in one read transaction.

SQLite's columns have no types of their own, only its values do: rows travel as JSON, and get the types that hold all
their values.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import polars as pl
import pyarrow as pa

from mlops.contract.sources import SqlSource
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.sources.connections import Connection
from mlops.data.sources.fetch import write_batches
from mlops.data.sources.source import DOCUMENT, Piece, Position, SourceError, SourceReader

_BATCH_ROWS = 50_000


@dataclass(frozen=True, kw_only=True)
class SqliteQuery(SourceReader[SqlSource]):
    """A source that reads a query to SQLite."""

    connection: Connection
    documents: ClassVar[bool] = True
    text: ClassVar[bool] = False
    local: ClassVar[bool] = False

    def position(self) -> Position:
        # A file on this machine is read by one process.
        if self.settings.range_column is not None:
            raise BadConfigError(
                f"source {self.name!r}: SQLite is not read by ranges; remove ingest.sources.{self.name}.range_column"
            )
        # An Airflow URI with four slashes, sqlite:////srv/shop.db, has the path where other databases have a name.
        path = Path(self.connection.host or self.connection.schema or "")
        if not path.is_file():
            raise BadDataError(f"source {self.name!r}: connection {self.connection.id!r}: there is no file {path}")
        return {"query": self.settings.query, "file": str(path), "change_counter": _change_counter(path)}

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        path, change_counter = Path(position["file"]), position["change_counter"]
        return [SqlitePiece(self.name, self.settings.query, path, change_counter, scratch / "rows.parquet")]


@dataclass(frozen=True, slots=True)
class SqlitePiece:
    """The whole query as one piece, with its rows as JSON objects."""

    source: str
    query: str
    path: Path
    change_counter: int
    file: Path

    @property
    def place(self) -> str:
        return str(self.path)

    def __call__(self) -> pl.LazyFrame:
        if not self.file.exists():
            try:
                self._fetch()
            except sqlite3.OperationalError as error:
                kind = SourceError if "locked" in str(error) else BadConfigError
                raise kind(f"source {self.source!r}: {self.path}: {error}") from error
            except sqlite3.DatabaseError as error:
                raise BadDataError(f"source {self.source!r}: {self.path}: {error}") from error
        return pl.scan_parquet(self.file, glob=False)

    def _fetch(self) -> None:
        with contextlib.closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("BEGIN")
            cursor = database.execute(f"SELECT * FROM ({self.query.strip().rstrip(';')}\n) AS source")
            # Now the transaction holds its state.
            if _change_counter(self.path) != self.change_counter:
                raise SourceError(f"source {self.source!r}: {self.path} changed meanwhile; it will be retried")
            write_batches(self.file, pa.schema({DOCUMENT: pa.string()}), self._documents(cursor))

    def _documents(self, cursor: sqlite3.Cursor) -> Iterator[pa.RecordBatch]:
        names = [column[0] for column in cursor.description]
        while rows := cursor.fetchmany(_BATCH_ROWS):
            try:
                documents = [json.dumps(dict(zip(names, row, strict=True)), allow_nan=False) for row in rows]
            except (TypeError, ValueError) as error:
                raise BadDataError(
                    f"source {self.source!r}: {self.path}: a value is no number, text or null ({error}); leave its "
                    "column out of the query, or convert it there"
                ) from error
            yield pa.record_batch({DOCUMENT: documents})


def _change_counter(path: Path) -> int:
    """Return the number of transactions written to the file (https://www.sqlite.org/fileformat.html, offset 24)."""
    with path.open("rb") as file:
        file.seek(24)
        return int.from_bytes(file.read(4), "big")
