"""
The rows of a query to PostgreSQL, all from one state of the database.

One transaction exports its snapshot; as many connections as there are ranges read in it, by COPY, straight to Arrow.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar

import adbc_driver_postgresql.dbapi as postgresql
import polars as pl
import pyarrow as pa
from adbc_driver_manager import Error, ProgrammingError

from mlops.contract.sources import SqlSource
from mlops.contract.step import BadConfigError, BadDataError, StepError
from mlops.data.sources.connections import Connection
from mlops.data.sources.fetch import write_batches
from mlops.data.sources.records import Records
from mlops.data.sources.source import Piece, Position, SourceError, SourceReader

_BATCH_BYTES = 16 << 20
_TEXTS = ("citext", "xml")
"""PostgreSQL's own types whose binary form is their text."""
_ONE_STATE = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@dataclass(frozen=True, kw_only=True)
class PostgresQuery(SourceReader[SqlSource]):
    """A source that reads a query to PostgreSQL."""

    connection: Connection
    documents: ClassVar[bool] = False
    text: ClassVar[bool] = False
    local: ClassVar[bool] = True
    _open: list[Any] = field(default_factory=list, init=False, repr=False)
    """The open transaction that holds the state; empty before it begins."""

    def position(self) -> Position:
        with _explained(self.name, self.connection):
            session = postgresql.connect(self.connection.uri("postgresql"))
            self._open.append(session)
            with session.cursor() as cursor:
                cursor.execute(_ONE_STATE)
                cursor.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text, now()")
                snapshot, transactions, at = cursor.fetchone()
                bounds = self._bounds(cursor)
        return {
            "query": self.settings.query,
            "database": self.connection.schema,
            # Which transactions the rows are the result of; the database cannot show that state again later.
            "transactions": transactions,
            "read_at": at.astimezone(UTC).isoformat(),
            "snapshot": snapshot,
            "bounds": bounds,
        }

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        return [
            PostgresPiece(self.name, self.connection, position["snapshot"], query, scratch / f"{number:05d}.parquet")
            for number, query in enumerate(self._ranges(position["bounds"]))
        ]

    def finish(self, position: Position) -> None:
        while self._open:
            self._open.pop().close()

    def _bounds(self, cursor: Any) -> list[str]:
        """
        Return the bounds that divide the range column into ranges of equal width; with few values there are fewer.
        """
        if self.settings.range_column is None or self.settings.num_ranges == 1:
            return []
        column = _quoted(self.settings.range_column)
        cursor.execute(f"SELECT min({column}), max({column}) FROM ({self._known_query()}) AS rows")
        try:
            low, high = cursor.fetchone()
        except (OverflowError, ValueError) as error:  # infinity, or a year before 1 or after 9999
            raise BadConfigError(
                f"source {self.name!r}: range_column {self.settings.range_column!r} holds a date or instant outside of "
                f"the years 1 to 9999 ({error}); choose another column"
            ) from None
        if low is None:
            return []
        if not isinstance(low, (int, float, datetime, date)):
            raise BadConfigError(
                f"source {self.name!r}: range_column {self.settings.range_column!r} holds {low!r}; ranges are of "
                "integers, floats, dates or instants: cast it in the query, or choose another column"
            )
        parts = [low + (high - low) * part / self.settings.num_ranges for part in range(1, self.settings.num_ranges)]
        parts = [int(bound) for bound in parts] if isinstance(low, int) else parts
        return list(dict.fromkeys(str(bound) for bound in parts if bound > low))

    def _ranges(self, bounds: Sequence[str]) -> list[str]:
        """
        Return one query for each range. The first has no lower bound and takes the nulls, the last has no upper one.
        """
        if not bounds:
            return [self._known_query()]
        column = _quoted(self.settings.range_column or "")
        edges: list[str | None] = [None, *bounds, None]
        queries = []
        for low, high in itertools.pairwise(edges):
            below, above = f"{column} < '{high}'", f"{column} >= '{low}'"
            if low is None:
                condition = f"({below} OR {column} IS NULL)"
            else:
                condition = above if high is None else f"{above} AND {below}"
            queries.append(f"SELECT * FROM ({self._known_query()}) AS known WHERE {condition}")
        return queries

    def _known_query(self) -> str:
        """Return the query without the rows that the records' rule would leave out: they need not travel."""
        # On a line of its own, for the query may end in a comment.
        return f"SELECT * FROM ({self.settings.query.strip().rstrip(';')}\n) AS source{_where(self.records)}"


@dataclass(frozen=True, slots=True)
class PostgresPiece:
    """One range of a query, read in the state that was exported."""

    source: str
    connection: Connection
    snapshot: str
    query: str
    file: Path

    @property
    def place(self) -> str:
        return f"connection {self.connection.id}"

    def __call__(self) -> pl.LazyFrame:
        if not self.file.exists():
            with (
                _explained(self.source, self.connection),
                postgresql.connect(self.connection.uri("postgresql")) as session,
                session.cursor() as cursor,
            ):
                cursor.execute(_ONE_STATE)
                try:
                    cursor.execute(f"SET TRANSACTION SNAPSHOT '{self.snapshot}'")
                except Error as error:
                    raise SourceError(
                        f"source {self.source!r}: {self.place}: the transaction that held the database's state is "
                        f"gone: {self.connection.redacted(error)}"
                    ) from None
                cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
                cursor.execute(self.query)
                reader = cursor.fetch_record_batch()
                schema = pa.schema([_plain(column, self.source, self.place) for column in reader.schema])
                write_batches(self.file, schema, (_as_plain(batch, schema) for batch in reader))
        return pl.scan_parquet(self.file, glob=False)


def _where(records: Records) -> str:
    if records.time_zone or records.epoch:
        return ""  # what an instant is, is not the server's to say
    conditions = [_or_null(records.created_time, "<", records.as_of)] if records.created_time else []
    if records.event_time and not records.key:
        conditions.append(_or_null(records.event_time, "<", records.as_of))
        if records.since is not None:
            conditions.append(_or_null(records.event_time, ">=", records.since))
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _or_null(column: str, comparison: str, at: datetime) -> str:
    """Return the condition on an instant. Rows without one travel too: they are counted before they are left out."""
    quoted = _quoted(column)
    return f"({quoted} {comparison} '{at.isoformat()}'::timestamptz OR {quoted} IS NULL)"


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _plain(column: pa.Field, source: str, place: str) -> pa.Field:
    """
    Return the field as text if its type has no counterpart in Parquet: numeric, json and uuid.

    :raises BadDataError: for a type that PostgreSQL sends in a binary form of its own
    """
    dtype = inner = column.type
    while pa.types.is_list(inner):
        inner = inner.value_type
    extension = isinstance(inner, pa.BaseExtensionType)
    own = isinstance(inner, pa.OpaqueType) and pa.types.is_binary(inner.storage_type) and inner.type_name not in _TEXTS
    if own or pa.types.is_interval(inner) or (extension and inner is not dtype):
        named = column.metadata[b"POSTGRESQL:type"].decode()
        raise BadDataError(
            f"source {source!r}: {place}: column {column.name!r} is of the type {named}, which cannot be stored; cast "
            "it in the query, e.g. to text"
        )
    return pa.field(column.name, pa.string() if isinstance(dtype, pa.BaseExtensionType) else dtype)


def _as_plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([_plain_values(values) for values in batch.columns], schema=schema)


def _plain_values(values: pa.Array) -> pa.Array:
    if isinstance(values.type, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())
    return values.storage.cast(pa.string()) if isinstance(values.type, pa.BaseExtensionType) else values


@contextlib.contextmanager
def _explained(source: str, connection: Connection) -> Iterator[None]:
    try:
        yield
    except Error as error:
        message = f"source {source!r}: connection {connection.id!r}: {connection.redacted(error)}"
        if "operator does not exist" in message and "timestamp with time zone" in message:
            message += (
                "; if that is event_time or created_time, cast it to an instant in the query (at::timestamptz), or set "
                f"ingest.sources.{source}.time_zone or epoch, with which it may be text or a number"
            )
        # Class 42: the query does not fit the database. A number out of range, say, is the data's.
        state = getattr(error, "sqlstate", None) or ""
        kind: type[StepError] = SourceError
        if isinstance(error, ProgrammingError) or state.startswith("42"):
            kind = BadConfigError
        elif state.startswith("22"):
            kind = BadDataError
        raise kind(message) from None
