"""Reads a source as the ingest step does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import TypeAdapter

from mlops.contract.sources import AnySource
from mlops.data.engine.engines import Engine
from mlops.data.sources import SourceTable, read_source
from mlops.data.sources.window import Window

AS_OF = datetime(2024, 1, 3, tzinfo=UTC)
CONNECTIONS = {"sql": "db", "redis": "stream", "kafka": "stream"}

Read = Callable[..., SourceTable]


def section(kind: str, **settings: Any) -> AnySource:
    connection = {"connection": CONNECTIONS[kind]} if kind in CONNECTIONS else {}
    return TypeAdapter(AnySource).validate_python({"kind": kind, **connection, **settings})


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a source as of :data:`AS_OF`, relative to the test's folder."""
    numbers = iter(range(1000))

    def read_as_of(
        kind: str = "files",
        *,
        as_of: datetime = AS_OF,
        home: Path = tmp_path,
        engine: Engine = "polars",
        **settings: Any,
    ) -> SourceTable:
        return read_source(
            "s",
            section(kind, **settings),
            home=home,
            scratch=tmp_path / f"scratch-{next(numbers)}",
            window=Window.before(as_of, 1, "UTC"),
            engine=engine,
        )

    return read_as_of


def rows(table: SourceTable) -> pl.DataFrame:
    frame: pl.DataFrame = table.rows.to_native().collect()
    assert frame.height == table.provenance["num_rows"]
    return frame
