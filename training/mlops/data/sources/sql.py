"""The rows of a SQL query; the connection's type decides which database it goes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlops.contract.sources import SqlSource
from mlops.contract.step import BadConfigError
from mlops.data.sources.connections import Connection
from mlops.data.sources.postgres_query import PostgresQuery
from mlops.data.sources.source import Source
from mlops.data.sources.sqlite_query import SqliteQuery

DATABASES: dict[str, Callable[..., Source]] = {"postgres": PostgresQuery, "sqlite": SqliteQuery}


def sql_query(*, name: str, settings: SqlSource, **rest: Any) -> Source:
    """
    Make the source for a SQL query by the type of its connection.

    :raises BadConfigError: where the connection is to another kind of database
    """
    found = Connection.from_environment(settings.connection, f"source {name!r}")
    if found.conn_type not in DATABASES:
        raise BadConfigError(
            f"source {name!r}: connection {settings.connection!r} is of type {found.conn_type!r}; "
            f"sources can be {' and '.join(DATABASES)}"
        )
    return DATABASES[found.conn_type](name=name, connection=found, settings=settings, **rest)
