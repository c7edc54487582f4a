"""SQL sources on a real PostgreSQL and on SQLite."""

from __future__ import annotations

import contextlib
import json
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as postgresql
import polars as pl
import pytest

from mlops.contract.sources import SqlSource
from mlops.contract.step import BadConfigError, BadDataError, StepError
from mlops.data.sources import SourceError
from mlops.data.sources.connections import Connection
from mlops.data.sources.postgres_query import PostgresQuery
from mlops.data.sources.records import Records
from mlops.data.sources.sqlite_query import SqliteQuery

from .conftest import AS_OF, Read, rows

Connect = Callable[..., None]
ORDERS = "SELECT * FROM orders;"


@pytest.fixture
def orders(postgres: str, connect: Connect) -> Iterator[Any]:
    """A cursor on a database with 1,000 orders, one an hour."""
    connect("db", "postgres", postgres)
    with postgresql.connect(postgres, autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS orders")
        cursor.execute(
            "CREATE TABLE orders (id bigint, at timestamptz, amount double precision, price numeric(10, 2), item uuid, "
            "tags jsonb)"
        )
        cursor.execute(
            "INSERT INTO orders SELECT n, '2023-12-01T00:00:00Z'::timestamptz + n * interval '1 hour', n, n / 2.0, "
            "'00000000-0000-0000-0000-000000000001', '{\"a\": 1}' FROM generate_series(1, 1000) AS n"
        )
        cursor.execute("INSERT INTO orders (id, at) VALUES (NULL, '2023-12-02T00:00:00Z')")
        yield cursor


@pytest.mark.parametrize("range_column", [None, "id", "at", "amount"])
def test_ranges_give_every_known_row_once(read: Read, orders: Any, range_column: str | None) -> None:
    """Rows at an edge, or without a value in the column, would otherwise be lost or doubled."""
    found = rows(read("sql", query=ORDERS, event_time="at", range_column=range_column))
    # 33 days to the as-of time, of which hour 0 of the first has no order.
    assert found.height == 33 * 24 - 1 + 1
    assert sorted(found["id"].drop_nulls().to_list()) == list(range(1, 33 * 24))
    assert found.schema == {
        "id": pl.Int64,
        "at": pl.Datetime("us", "UTC"),
        "amount": pl.Float64,
        "price": pl.String,
        "item": pl.String,
        "tags": pl.String,
    }
    assert found.filter(pl.col("id") == 7).row(0)[3:] == ("3.50", "00000000-0000-0000-0000-000000000001", '{"a": 1}')


def test_numeric_gets_the_type_that_is_asked_for(read: Read, orders: Any) -> None:
    """It comes as text, digit by digit: what to lose is the user's to say."""
    assert rows(read("sql", query=ORDERS, types={"price": "float64"}))["price"].max() == 500.0


def test_all_ranges_are_of_one_state_of_the_database(
    orders: Any, postgres: str, connect: Connect, tmp_path: Path
) -> None:
    """Rows moved between two reads would be in both ranges or in none: a table that never was."""
    records = Records(source="s", event_time=None, created_time=None, key=(), as_of=AS_OF, since=None)
    source = PostgresQuery(
        name="s",
        home=tmp_path,
        records=records,
        connection=Connection.from_environment("db", "s"),
        settings=SqlSource(kind="sql", connection="db", query=ORDERS, range_column="id", num_ranges=3),
    )
    position = source.position()
    json.dumps(position)
    pieces = source.pieces(position, tmp_path)
    assert len(pieces) == 3
    frames = [pieces[0]().collect()]
    orders.execute("UPDATE orders SET id = 1001 - id, amount = -1")
    orders.execute("INSERT INTO orders (id) VALUES (999)")
    orders.execute("DELETE FROM orders WHERE id BETWEEN 400 AND 600")
    frames += [piece().collect() for piece in pieces[1:]]
    source.finish(position)
    found = pl.concat(frames)
    assert found.height == 1001
    assert found["id"].drop_nulls().to_list() == found["amount"].drop_nulls().to_list()
    assert found["amount"].min() == 1
    with pytest.raises(SourceError, match="the transaction that held the database's state is gone"):
        source.pieces(position, tmp_path / "later")[0]()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        pytest.param({"query": "SELECT * FROM nope"}, BadConfigError, 'relation "nope" does not exist', id="table"),
        pytest.param({"query": "SELEKT 1"}, BadConfigError, "syntax error", id="syntax"),
        pytest.param({"query": "SELECT 1 / 0 AS n"}, BadDataError, "division by zero", id="data"),
        pytest.param(
            {"query": ORDERS, "range_column": "tags"}, StepError, r"'db'.*min\(jsonb\)|range_column 'tags'", id="range"
        ),
        pytest.param(
            {"query": ORDERS, "event_time": "when"}, BadConfigError, 'column "when" does not exist', id="time"
        ),
    ],
)
def test_a_query_that_cannot_be_run_is_explained(
    read: Read, orders: Any, settings: dict[str, Any], error: type[StepError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        read("sql", **settings)
    assert not caught.value.retryable


def test_a_refused_password_is_not_shown_and_is_retried(read: Read, postgres: str, connect: Connect) -> None:
    """Databases come back, and passwords are rotated; logs are read by many."""
    connect("db", "postgres", postgres, password="wrong/secret")
    with pytest.raises(SourceError, match="password authentication failed") as caught:
        read("sql", query=ORDERS)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(Connection.from_environment("db", "s"))


@pytest.fixture
def database(tmp_path: Path, connect: Connect) -> Path:
    path = tmp_path / "a b.db"
    connect("db", "sqlite", host=str(path))
    with sqlite3.connect(path) as session:
        session.execute("CREATE TABLE orders (id INTEGER, at TEXT, amount REAL, note TEXT)")
        session.executemany(
            "INSERT INTO orders VALUES (?, ?, ?, ?)",
            [(n, f"2024-01-0{n}T00:00:00Z", float(n), None if n < 3 else "x") for n in range(1, 6)],
        )
    return path


def test_sqlite_is_read_too(read: Read, database: Path) -> None:
    found = rows(read("sql", query=ORDERS, event_time="at"))
    types = {"id": pl.Int64, "at": pl.Datetime("us", "UTC"), "amount": pl.Float64, "note": pl.String}
    assert dict(found.schema) == types
    assert found["id"].to_list() == [1, 2]


def test_sqlite_by_an_airflow_uri_of_four_slashes(read: Read, connect: Connect, database: Path) -> None:
    """Airflow has the path of ``sqlite:////srv/shop.db`` as the schema, and an empty host."""
    connect("db", "sqlite", host="", schema=str(database))
    assert rows(read("sql", query=ORDERS, event_time="at"))["id"].to_list() == [1, 2]


def test_sqlite_has_no_ranges(read: Read, database: Path) -> None:
    """A setting that is ignored would be believed."""
    with pytest.raises(BadConfigError, match="SQLite is not read by ranges; remove ingest.sources.s.range_column"):
        read("sql", query=ORDERS, range_column="id")


def test_sqlite_while_somebody_writes(read: Read, database: Path) -> None:
    """Half of somebody's transaction is not data."""
    with sqlite3.connect(database) as session:
        session.execute("INSERT INTO orders VALUES (0, '2024-01-01T00:00:00Z', 0, NULL)")
        found = rows(read("sql", query=ORDERS, event_time="at"))
        assert found["id"].to_list() == [1, 2]
    assert sorted(rows(read("sql", query=ORDERS, event_time="at"))["id"].to_list()) == [0, 1, 2]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_sqlites_position_says_which_rows_were_read(read: Read, database: Path, journal: str) -> None:
    """Broken: nights with different rows record the same position, and nobody can tell what a model learnt from."""
    with contextlib.closing(sqlite3.connect(database)) as session:
        session.execute(f"PRAGMA journal_mode={journal}")
        positions = []
        for number in range(3):
            positions.append(read("sql", query=ORDERS, event_time="at").provenance["position"])
            assert read("sql", query=ORDERS, event_time="at").provenance["position"] == positions[-1]
            session.execute("INSERT INTO orders VALUES (?, '2024-01-01T00:00:00Z', 0, NULL)", (number,))
            session.commit()
    assert len({position["sha256"] for position in positions}) == 3


def test_sqlite_read_elsewhere_gives_the_recorded_rows_or_none(connect: Connect, database: Path) -> None:
    """Broken: another process would read rows of another state than the manifest says."""
    records = Records(source="s", event_time=None, created_time=None, key=(), as_of=AS_OF, since=None)
    source = SqliteQuery(
        name="s",
        home=database.parent,
        records=records,
        connection=Connection.from_environment("db", "s"),
        settings=SqlSource(kind="sql", connection="db", query=ORDERS),
    )
    position = json.loads(json.dumps(source.position()))
    (piece,) = pickle.loads(pickle.dumps(source.pieces(position, database.parent / "here")))
    (elsewhere,) = source.pieces(position, database.parent / "elsewhere")
    (later,) = source.pieces(position, database.parent / "later")
    before = elsewhere().collect()
    with sqlite3.connect(database) as session:
        session.execute("DELETE FROM orders")
    assert piece().collect().equals(before)
    for _ in range(2):
        with pytest.raises(SourceError, match="changed meanwhile, or its query gives other rows each time"):
            later()


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        pytest.param(
            {"conn_type": "mysql"}, BadConfigError, "is of type 'mysql'; sources can be postgres and sqlite", id="type"
        ),
        pytest.param({"host": "/nowhere.db"}, BadDataError, r"there is no file /nowhere\.db", id="file"),
    ],
)
def test_a_connection_to_nothing_readable(
    read: Read, connect: Connect, fields: dict[str, str], error: type[StepError], message: str
) -> None:
    connect("db", **{"conn_type": "sqlite", **fields})
    with pytest.raises(error, match=message):
        read("sql", query=ORDERS)


def test_a_connection_that_was_not_handed_over(read: Read) -> None:
    with pytest.raises(BadConfigError, match="^source 's': the environment has no MLOPS_CONNECTION_DB, which the"):
        read("sql", query=ORDERS)


@pytest.mark.parametrize("value", ["interval '1 month'", "point(1, 2)", "to_tsvector('a')", "array[1.5]::numeric[]"])
@pytest.mark.usefixtures("orders")
def test_a_type_of_postgresqls_own_is_refused(read: Read, value: str) -> None:
    """Its binary form would else be stored as if it were text."""
    with pytest.raises(
        BadDataError, match=r"column 'v' is of the type \w+, which cannot be stored; cast it in the query"
    ):
        read("sql", query=f"SELECT {value} AS v")


@pytest.mark.usefixtures("orders")
def test_ranges_of_infinity_are_a_mistake(read: Read) -> None:
    query = "SELECT date 'infinity' AS d UNION SELECT date '2024-01-01'"
    with pytest.raises(BadConfigError, match="range_column 'd' holds a date or instant outside of the years 1 to 9999"):
        read("sql", query=query, range_column="d")


@pytest.mark.usefixtures("orders")
def test_a_query_may_end_in_a_comment(read: Read, tmp_path: Path, connect: Connect) -> None:
    assert rows(read("sql", query="SELECT 1 AS a -- one row")).height == 1
    sqlite3.connect(tmp_path / "empty.db").execute("VACUUM")
    connect("db", "sqlite", host=str(tmp_path / "empty.db"))
    assert rows(read("sql", query="SELECT 1 AS a -- one row")).height == 1


@pytest.mark.parametrize(
    ("host", "uri"),
    [
        ("/run/postgresql", "postgresql://%2Frun%2Fpostgresql:5432/"),
        ("::1", "postgresql://[::1]:5432/"),
        ("db.example", "postgresql://db.example:5432/"),
    ],
)
def test_a_host_may_be_a_sockets_folder_or_an_ipv6_address(connect: Connect, host: str, uri: str) -> None:
    connect("db", "postgres", host=host, port=5432, extra={"keepalives": True})
    assert Connection.from_environment("db", "s").uri("postgresql") == f"{uri}?keepalives=1"


@pytest.mark.parametrize("range_column", [None, "id"])
def test_rows_of_postgresql_without_an_instant_are_counted(read: Read, orders: Any, range_column: str | None) -> None:
    """Broken: a fault at the source would make the table smaller, and nobody would know."""
    orders.execute("INSERT INTO orders (id, at) VALUES (2001, NULL), (2002, NULL)")
    query = "SELECT *, CASE WHEN id <> 720 THEN at END AS made FROM orders"
    source = read("sql", query=query, event_time="at", created_time="made", range_column=range_column, history_days=3)
    found = rows(source)
    # Before a check can fail: the open transaction would keep the next test from dropping the table.
    source.finish()
    assert source.provenance["undated"] == {"at": 2, "made": 3}
    # The four days up to the as-of time, without the order that nobody dated.
    assert sorted(found["id"]) == [number for number in range(29 * 24, 33 * 24) if number != 720]


@pytest.mark.usefixtures("orders")
def test_an_instant_that_is_text_in_postgresql_is_explained(read: Read) -> None:
    """Broken: PostgreSQL's own words speak of an operator, which is nowhere in the query."""
    query = "SELECT id, '2024-01-01T00:00:00Z' AS at FROM orders"
    with pytest.raises(BadConfigError, match=r"cast it to an instant .* or set ingest\.sources\.s\.time_zone or epoch"):
        read("sql", query=query, event_time="at")
    assert rows(read("sql", query=query, event_time="at", time_zone="UTC"))["at"][0].year == 2024
