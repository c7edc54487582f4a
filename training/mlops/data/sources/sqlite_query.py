"""
The rows of a query to SQLite, in one read transaction.

SQLite's columns have no types of their own, only its values do: rows travel as JSON, and get the types that hold all
their values. What was read is identified by a digest of the rows: the file's count of its changes stands still where
changes go to a log beside it, and starts again where the file is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
    _fetched: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list, init=False, repr=False)
    """The folder with the rows, until the only piece takes them."""

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
        # Only the rows themselves say what they are, so they are read now, and once.
        folder = tempfile.TemporaryDirectory(prefix="sqlite-")
        self._fetched.append(folder)
        digest = _Query(self.name, self.settings.query, path).fetch(Path(folder.name) / "rows.parquet")
        return {"query": self.settings.query, "file": str(path), "sha256": digest}

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        file = scratch / "rows.parquet"
        while self._fetched:
            with self._fetched.pop() as folder:
                scratch.mkdir(parents=True, exist_ok=True)
                shutil.move(Path(folder) / file.name, file)
        query = _Query(self.name, self.settings.query, Path(position["file"]))
        return [SqlitePiece(query, position["sha256"], file)]


@dataclass(frozen=True, slots=True)
class _Query:
    source: str
    text: str
    path: Path
    """Path of the database."""

    def fetch(self, file: Path) -> str:
        """
        Store the rows of the query as JSON objects.

        :return: the SHA-256 of the objects, a line each
        """
        digest = hashlib.sha256()
        try:
            with contextlib.closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as database:
                cursor = database.execute(f"SELECT * FROM ({self.text.strip().rstrip(';')}\n) AS source")
                write_batches(file, pa.schema({DOCUMENT: pa.string()}), self._documents(cursor, digest))
        except sqlite3.OperationalError as error:
            kind = SourceError if "locked" in str(error) else BadConfigError
            raise kind(f"source {self.source!r}: {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise BadDataError(f"source {self.source!r}: {self.path}: {error}") from error
        return digest.hexdigest()

    def _documents(self, cursor: sqlite3.Cursor, digest: hashlib._Hash) -> Iterator[pa.RecordBatch]:
        names = [column[0] for column in cursor.description]
        while rows := cursor.fetchmany(_BATCH_ROWS):
            try:
                documents = [json.dumps(dict(zip(names, row, strict=True)), allow_nan=False) for row in rows]
            except (TypeError, ValueError) as error:
                raise BadDataError(
                    f"source {self.source!r}: {self.path}: a value is no number, text or null ({error}); leave its "
                    "column out of the query, or convert it there"
                ) from error
            digest.update("".join(f"{document}\n" for document in documents).encode())
            yield pa.record_batch({DOCUMENT: documents})


@dataclass(frozen=True, slots=True)
class SqlitePiece:
    """The whole query as one piece, with its rows as JSON objects."""

    query: _Query
    sha256: str
    """Digest of the rows."""
    file: Path
    """The rows, where they were fetched; elsewhere they are fetched once more."""

    @property
    def place(self) -> str:
        return str(self.query.path)

    def __call__(self) -> pl.LazyFrame:
        if not self.file.exists() and self.query.fetch(self.file) != self.sha256:
            self.file.unlink()
            raise SourceError(
                f"source {self.query.source!r}: {self.query.path} changed meanwhile, or its query gives other rows "
                "each time (as with random() or 'now'); it will be retried"
            )
        return pl.scan_parquet(self.file, glob=False)
