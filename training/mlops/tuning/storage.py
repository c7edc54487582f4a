"""The database of studies: a SQLite file in the store, or PostgreSQL."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError

from mlops.contract.step import BadConfigError, StepError
from mlops.data.sources.connections import Connection

LOCK_SECONDS: Final = 60.0
"""Seconds that SQLite waits for other trials, which write for milliseconds."""
_OPEN_ATTEMPTS: Final = 5


class StudyStorageError(StepError):
    """The database cannot be used just now: retried, for it comes back."""


def database_url(store: str, folder: str, connection: str | None) -> str:
    """
    :param store: URI of the object store
    :param folder: in it
    :param connection: Airflow's, or None for SQLite
    :raises BadConfigError: where SQLite has no folder
    """
    if connection is not None:
        found = Connection.from_environment(connection, "tune.connection", conn_type="postgres")
        return found.uri("postgresql+psycopg2")
    if not store.startswith("file://"):
        raise BadConfigError(
            f"tune: a study is kept in a SQLite file below the store, but the store is {store}; give tune.connection, "
            "the Airflow connection of a PostgreSQL database"
        )
    place = Path(store.removeprefix("file://")) / folder
    place.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{place}/studies.db"


def open_storage(url: str) -> RDBStorage:
    """
    :raises StudyStorageError: where the database cannot be reached
    :raises BadConfigError: where another version of Optuna made it
    """
    waits: dict[str, Any] = {"timeout": LOCK_SECONDS} if url.startswith("sqlite") else {}
    with reachable():
        for attempts_left in reversed(range(_OPEN_ATTEMPTS)):
            try:
                return RDBStorage(url, engine_kwargs={"connect_args": waits, "pool_pre_ping": True})
            except RuntimeError as error:  # of tables that are not this version's
                raise BadConfigError(
                    f"the database of studies cannot be used: {error} Or give tune.connection another one, or move a "
                    "SQLite file out of the way: trials that have ended are found in the store"
                ) from error
            except SQLAlchemyError:
                # Of several trials that make the tables at the same moment, all but one are told that they exist.
                if not attempts_left:
                    raise
                time.sleep(random.uniform(0.1, 0.5))
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def reachable() -> Iterator[None]:
    """:raises StudyStorageError: instead of the database's own errors, which hold statements and addresses"""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = error.__cause__ or getattr(error, "orig", None) or error
        raise StudyStorageError(
            f"the database of studies cannot be used: {str(cause).splitlines()[0]}; check tune.connection, or the disk "
            "of the store"
        ) from error
