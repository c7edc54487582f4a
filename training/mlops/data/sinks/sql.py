"""A table of a database: the rows of a period are replaced in one transaction."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final

import adbc_driver_postgresql.dbapi as postgresql
import polars as pl
from adbc_driver_manager import AdbcStatusCode, Error

from mlops.contract.sections.predict import SqlOutput
from mlops.contract.step import BadConfigError
from mlops.data.sinks.sink import INTERVAL_END, PERIOD, PIPELINE, Origin, Sink, SinkError, with_origin
from mlops.data.sources.connections import Connection

_SETTING: Final = "predict.output"
_LOCK_SECONDS: Final = 60.0
_AWAY: Final = frozenset({AdbcStatusCode.IO, AdbcStatusCode.TIMEOUT, AdbcStatusCode.CANCELLED})


def sql_table(settings: SqlOutput) -> Sink:
    """
    Make the sink for a table by the type of its connection.

    :raises BadConfigError: where the connection is to another kind of database
    """
    found = Connection.from_environment(settings.connection, f"{_SETTING}.connection")
    match found.conn_type:
        case "postgres":
            return _Postgres(found, settings.table)
        case "sqlite":
            return _Sqlite(found, settings.table)
    raise BadConfigError(
        f"{_SETTING}: connection {settings.connection!r} is of type {found.conn_type!r}; tables can be in postgres and "
        "sqlite"
    )


class _Postgres:
    tabular: ClassVar[bool] = True

    def __init__(self, connection: Connection, table: str) -> None:
        self._connection, self._table = connection, table
        self.place = f"table {table} of connection {connection.id}"

    def put(self, period: str, data: bytes, origin: Origin) -> bool:
        rows = _flat(with_origin(data, period, origin)).to_arrow(compat_level=pl.CompatLevel.oldest())
        schema, _, name = self._table.rpartition(".")
        where: dict[str, Any] = {"db_schema_name": schema} if schema else {}
        table = ".".join(map(_quoted, self._table.split(".")))
        # A table may be named with its schema by one pipeline, and without by another.
        whole = "$1" if schema else "current_schema() || '.' || $1"
        of_period, key = f"{_quoted(PIPELINE)} = $1 AND {_quoted(PERIOD)} = $2", (origin.pipeline, period)
        with self._session() as cursor:
            # First of all: whoever comes second sees the table and the rows that the first one has put. A lock of the
            # table could be had only once it is made, by several at once, who would then wait for each other.
            cursor.execute(f"SELECT count(*) FROM pg_advisory_xact_lock(hashtextextended({whole}, 0))", (self._table,))
            cursor.fetchone()
            cursor.adbc_ingest(name, rows.schema.empty_table(), mode="create_append", **where)
            cursor.execute(f"SELECT max({_quoted(INTERVAL_END)}) FROM {table} WHERE {of_period}", key)
            (latest,) = cursor.fetchone()
            if latest is not None and latest > origin.interval_end:
                return False
            cursor.execute(f"DELETE FROM {table} WHERE {of_period}", key)
            cursor.adbc_ingest(name, rows, mode="append", **where)
        return True

    @contextlib.contextmanager
    def _session(self) -> Iterator[Any]:
        """A transaction, which is undone where it fails."""
        try:
            with postgresql.connect(self._connection.uri("postgresql")) as session, session.cursor() as cursor:
                yield cursor
                session.commit()
        except Error as error:
            said = self._connection.redacted(error)
            # Class 08 is about connections, 40 about others' transactions, 53 and 57 about the server's state.
            state = (error.sqlstate or "")[:2]
            away = state in ("08", "40", "53", "57") if state else error.status_code in _AWAY
            kind, advice = (SinkError, "") if away else (BadConfigError, _ADVICE)
            raise kind(f"{_SETTING}: cannot write {self.place}: {said}{advice}") from None


class _Sqlite:
    tabular: ClassVar[bool] = True

    def __init__(self, connection: Connection, table: str) -> None:
        # An Airflow URI with four slashes, sqlite:////srv/shop.db, has the path where other databases have a name.
        self._file, self._table = Path(connection.host or connection.schema or ""), table
        self.place = f"table {table} of connection {connection.id}"
        if "." in table:
            raise BadConfigError(f"{_SETTING}.table: SQLite has no schemas; name the table alone, got {table!r}")

    def put(self, period: str, data: bytes, origin: Origin) -> bool:
        rows = _flat(with_origin(data, period, origin))
        # SQLite has no instants: text in UTC, which sorts as they do.
        rows = rows.with_columns(pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"))
        rows = rows.with_columns(pl.selectors.temporal().cast(pl.String))
        table, columns = _quoted(self._table), [_quoted(name) for name in rows.columns]
        of_period = f"{_quoted(PIPELINE)} = ? AND {_quoted(PERIOD)} = ?"
        kinds = ", ".join(f"{column} {_affinity(dtype)}" for column, dtype in zip(columns, rows.dtypes, strict=True))
        key = (origin.pipeline, period)
        try:
            with contextlib.closing(sqlite3.connect(self._file, _LOCK_SECONDS, isolation_level=None)) as session:
                session.execute("BEGIN IMMEDIATE")
                session.execute(f"CREATE TABLE IF NOT EXISTS {table} ({kinds})")
                found = session.execute(f"SELECT max({_quoted(INTERVAL_END)}) FROM {table} WHERE {of_period}", key)
                (latest,) = found.fetchone()
                if latest is not None and datetime.fromisoformat(latest) > origin.interval_end:
                    return False
                session.execute(f"DELETE FROM {table} WHERE {of_period}", key)
                marks = ", ".join("?" * len(columns))
                session.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows.iter_rows())
                session.execute("COMMIT")
        except sqlite3.OperationalError as error:
            locked = "locked" in str(error) or "unable to open" in str(error)
            kind, advice = (SinkError, "") if locked else (BadConfigError, _ADVICE)
            raise kind(f"{_SETTING}: cannot write {self.place}: {error}{advice}") from error
        return True


_ADVICE: Final = (
    ". Where the table lacks a column that the model answers now, add it (ALTER TABLE ... ADD COLUMN), or give other "
    "columns a table of their own"
)


def _flat(rows: pl.DataFrame) -> pl.DataFrame:
    """
    Return rows in types that databases have.

    :raises BadConfigError: naming a column that has parts
    """
    for name, dtype in rows.schema.items():
        if dtype.is_nested() or dtype == pl.Object:
            raise BadConfigError(
                f"{_SETTING}: column {name!r} is {dtype}, which no column of {_SETTING}.table is; leave it out by "
                "predict.columns"
            )
    texts = [
        pl.col(name).cast(pl.String)
        for name, dtype in rows.schema.items()
        if dtype in (pl.Categorical, pl.Enum, pl.Duration) or dtype.is_decimal()
    ]
    return rows.with_columns(pl.selectors.by_dtype(pl.Int8).cast(pl.Int16), *texts)


def _affinity(dtype: pl.DataType) -> str:
    if dtype.is_integer() or dtype == pl.Boolean:
        return "INTEGER"
    if dtype.is_float():
        return "REAL"
    return "BLOB" if dtype == pl.Binary else "TEXT"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
