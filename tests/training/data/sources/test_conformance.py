"""Our own sources that need no server, by the suite that others run on theirs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mlops.testing.sources import SourceConformance

ROWS = [("2024-01-01T10:00:00Z", 1), ("2024-01-02T10:00:00Z", 2), ("2024-01-04T10:00:00Z", 3)]


class TestFiles(SourceConformance):
    @pytest.fixture
    def kind(self) -> str:
        return "files"

    @pytest.fixture
    def settings(self, home: Path) -> dict[str, Any]:
        (home / "rows.csv").write_text("at,value\n" + "".join(f"{at},{value}\n" for at, value in ROWS))
        return {"path": "rows.csv", "event_time": "at"}


class TestText(SourceConformance):
    @pytest.fixture
    def kind(self) -> str:
        return "text"

    @pytest.fixture
    def settings(self, home: Path) -> dict[str, Any]:
        for name in ("a", "b"):
            (home / f"{name}.txt").write_text(f"text of {name}")
        return {"path": "*.txt"}


class TestBytes(SourceConformance):
    @pytest.fixture
    def kind(self) -> str:
        return "bytes"

    @pytest.fixture
    def settings(self, home: Path) -> dict[str, Any]:
        for name in ("a", "b"):
            (home / f"{name}.png").write_bytes(b"\x89PNG of " + name.encode())
        return {"path": "*.png"}


class TestSqlite(SourceConformance):
    @pytest.fixture
    def kind(self) -> str:
        return "sql"

    @pytest.fixture
    def settings(self, home: Path, connect: Any) -> dict[str, Any]:
        with sqlite3.connect(home / "rows.db") as database:
            database.execute("CREATE TABLE rows (at TEXT, value INTEGER)")
            database.executemany("INSERT INTO rows VALUES (?, ?)", ROWS)
        connect("db", "sqlite", host=str(home / "rows.db"))
        return {"connection": "db", "query": "SELECT at, value FROM rows", "event_time": "at"}
