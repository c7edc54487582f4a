"""Sinks of predictions: what others find in a folder, a Delta table, or a table of a database."""

from __future__ import annotations

import io
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as postgresql
import polars as pl
import pytest

from mlops.contract.section import check_section
from mlops.contract.sections.predict import Predict
from mlops.contract.step import BadConfigError, StepError
from mlops.data.sinks import COLUMNS, Origin, Sink, SinkError, open_sink

Read = Callable[[], pl.DataFrame]


def night(day: int, pipeline: str = "taxi", model: str = "taxi/1") -> Origin:
    return Origin(pipeline=pipeline, interval_end=datetime(2024, 1, day, tzinfo=UTC), model=model)


def predictions(value: float, rows: int = 3, **columns: Any) -> bytes:
    frame = pl.DataFrame(
        {
            "at": [datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in range(rows)],
            "day": [date(2024, 1, 1)] * rows,
            "city": ["Bonn", None, "Köln"][:rows],
            "seats": pl.Series([1, 2, None][:rows], dtype=pl.UInt32),
            "weekend": [True, None, False][:rows],
            "score": [value] * rows,
        }
    ).with_columns(**columns)
    buffer = io.BytesIO()
    # Files say where they are from by themselves.
    frame.write_parquet(buffer)
    return buffer.getvalue()


def settings(**output: Any) -> Any:
    return check_section(Predict, {"registered_model": "taxi", "output": output}, "predict").output


@pytest.fixture(
    params=[
        "delta",
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.server),
        pytest.param("postgres in a schema", marks=pytest.mark.server),
    ]
)
def table(request: pytest.FixtureRequest, tmp_path: Path, connect: Any) -> tuple[Sink, Read]:
    """A sink that is a table, and what is in it, in an order."""
    order = ["prediction_period", "at"]
    if request.param == "delta":
        sink = open_sink(settings(kind="delta", path="lake/answers"), tmp_path)
        return sink, lambda: pl.read_delta(str(tmp_path / "lake/answers")).sort(order)
    if request.param == "sqlite":
        connect("shop", "sqlite", host=str(tmp_path / "shop.db"))
        sink = open_sink(settings(kind="sql", connection="shop", table="answers"), tmp_path)

        def of_sqlite() -> pl.DataFrame:
            with sqlite3.connect(tmp_path / "shop.db") as session:
                found = session.execute("SELECT * FROM answers")
                return pl.DataFrame(found.fetchall(), [column[0] for column in found.description], orient="row").sort(
                    order
                )

        return sink, of_sqlite
    uri = request.getfixturevalue("postgres")
    connect("warehouse", "postgres", uri)
    name = "answers" if request.param == "postgres" else "lab.answers"
    with postgresql.connect(uri) as session, session.cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS lab CASCADE")
        cursor.execute("DROP TABLE IF EXISTS answers")
        cursor.execute("CREATE SCHEMA lab")
        session.commit()

    def of_postgres() -> pl.DataFrame:
        with postgresql.connect(uri) as session, session.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {name}")
            return pl.DataFrame(pl.from_arrow(cursor.fetch_arrow_table())).sort(order)

    return open_sink(settings(kind="sql", connection="warehouse", table=name), tmp_path), of_postgres


def test_a_period_is_what_the_latest_interval_says_of_it(table: tuple[Sink, Read]) -> None:
    """Broken: a retry would put rows twice, or a night that is cleared its answers over those of later nights."""
    sink, read = table
    for _ in range(2):
        assert sink.put("2024-01-01", predictions(0.1), night(2))
        assert sink.put("2024-01-02", predictions(0.2, rows=2), night(2))
    found = read()
    assert found["score"].to_list() == [0.1] * 3 + [0.2] * 2
    assert found["city"].to_list() == ["Bonn", None, "Köln", "Bonn", None]
    assert found["seats"].to_list() == [1, 2, None, 1, 2]
    assert set(found.columns) == {"at", "day", "city", "seats", "weekend", "score", *COLUMNS}
    assert sink.put("2024-01-02", predictions(0.3, rows=1), night(3, model="taxi/2"))
    assert not sink.put("2024-01-02", predictions(0.2, rows=2), night(2))
    assert sink.put("2024-01-01", predictions(0.1), night(2))
    found = read()
    assert found["score"].to_list() == [0.1] * 3 + [0.3]
    assert found["prediction_model"].to_list() == ["taxi/1"] * 3 + ["taxi/2"]


def test_pipelines_leave_each_others_rows_alone(table: tuple[Sink, Read]) -> None:
    sink, read = table
    assert sink.put("2024-01-01", predictions(0.1), night(9))
    assert sink.put("2024-01-01", predictions(0.5, rows=1), night(2, pipeline="bikes"))
    assert sink.put("2024-01-01", predictions(0.2), night(9))
    found = read()
    assert sorted(zip(found["prediction_pipeline"], found["score"], strict=True)) == [
        ("bikes", 0.5), *[("taxi", 0.2)] * 3,
    ]  # fmt: skip


THERE = pytest.mark.parametrize("there", [True, False], ids=["a table", "no table yet"])


@THERE
def test_intervals_at_once_leave_the_rows_of_the_latest(table: tuple[Sink, Read], there: bool) -> None:
    """Broken: each would delete what was there before, and all put theirs, or use up the tries of their tasks."""
    sink, read = table
    if there:
        sink.put("2024-01-01", predictions(0.0), night(1))
    # Delta refuses whoever comes second; databases let them wait.
    num_tries = 20 if sink.place.endswith("lake/answers") else 1

    def put(day: int) -> None:
        for num_left in reversed(range(num_tries)):
            try:
                sink.put("2024-01-01", predictions(day / 10), night(day))
            except SinkError:
                if not num_left:
                    raise
                continue
            return

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(put, [2, 3, 4]))
    assert read()["score"].to_list() == [0.4] * 3


@pytest.mark.server
@THERE
def test_writers_of_a_postgres_table_take_turns(postgres: str, connect: Any, tmp_path: Path, there: bool) -> None:
    """Broken: each would hold a lock that the others wait for, or make the table, too, and only one would not fail."""
    connect("warehouse", "postgres", postgres)
    sinks = [
        open_sink(settings(kind="sql", connection="warehouse", table=name), tmp_path)
        for name in ("turns", "public.turns", "turns")
    ]
    with postgresql.connect(postgres) as session, session.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS turns")
        session.commit()
        if there:
            sinks[0].put("2024-01-01", predictions(0.0), night(1))
        # All of them wait for this transaction, and go on at one instant.
        cursor.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE" if there else "CREATE TABLE turns (x int)")
        with ThreadPoolExecutor(len(sinks)) as threads:
            puts = [
                threads.submit(sink.put, "2024-01-01", predictions(day / 10), night(day))
                for day, sink in enumerate(sinks, start=2)
            ]
            try:
                wait_for_waiting(cursor, len(sinks))
            finally:
                session.rollback()
            for each in puts:
                each.result()
        cursor.execute("SELECT score FROM turns")
        assert cursor.fetchall() == [(0.4,)] * 3


def wait_for_waiting(cursor: Any, number: int) -> None:
    """Wait until so many transactions wait for a lock."""
    deadline, found = time.monotonic() + 30, -1
    while found != number:
        assert time.monotonic() < deadline, f"{found} of {number} wait for a lock"
        time.sleep(0.02)
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        (found,) = cursor.fetchone()


def test_whole_numbers_without_a_sign_keep_their_values(table: tuple[Sink, Read]) -> None:
    """Broken: a table would refuse the larger ones, or hold nulls in their place."""
    sink, read = table
    largest = {
        "bytes": (pl.UInt8, 2**8 - 1),
        "ports": (pl.UInt16, 2**16 - 1),
        "ids": (pl.UInt32, 2**32 - 1),
        "hashes": (pl.UInt64, 2**63 - 1),
    }
    columns = {name: pl.lit(value, dtype=kind) for name, (kind, value) in largest.items()}
    assert sink.put("2024-01-01", predictions(0.1, rows=1, **columns), night(2))
    assert read().select(*largest).row(0) == tuple(value for _, value in largest.values())


def test_a_number_beyond_those_of_tables_is_named(table: tuple[Sink, Read]) -> None:
    """Broken: the task would be tried again and again, and nobody would know which column it is."""
    sink, _ = table
    message = (
        r"column 'hash' is UInt64.* 9223372036854775808.*cast it in the transform.*leave it out by predict.columns"
    )
    with pytest.raises(BadConfigError, match=message):
        sink.put("2024-01-01", predictions(0.1, hash=pl.lit(2**63, dtype=pl.UInt64)), night(2))


@pytest.mark.parametrize(
    "dtype",
    [pl.List(pl.UInt8), pl.Array(pl.UInt8, 2), pl.Struct({"a": pl.UInt8, "b": pl.List(pl.UInt8)})],
    ids=["list", "array", "struct"],
)
def test_numbers_within_a_column_keep_their_values_in_delta(tmp_path: Path, dtype: pl.DataType) -> None:
    sink = open_sink(settings(kind="delta", path="answers"), tmp_path)
    value = {"a": 200, "b": [201, None]} if isinstance(dtype, pl.Struct) else [200, None]
    assert sink.put("2024-01-01", predictions(0.1, rows=1, parts=pl.Series([value], dtype=dtype)), night(2))
    assert pl.read_delta(str(tmp_path / "answers"))["parts"].to_list() == [value]


def test_instants_are_of_utc_in_sqlite(tmp_path: Path, connect: Any) -> None:
    """Broken: texts would not sort as the instants do, where a time zone has a summer time."""
    connect("shop", "sqlite", host=str(tmp_path / "shop.db"))
    sink = open_sink(settings(kind="sql", connection="shop", table="answers"), tmp_path)
    sink.put("2024-01-01", predictions(0.1, at=pl.col("at").dt.convert_time_zone("America/New_York")), night(2))
    with sqlite3.connect(tmp_path / "shop.db") as session:
        texts = [text for (text,) in session.execute("SELECT at FROM answers ORDER BY at")]
    assert [text[:19] for text in texts] == [f"2024-01-01 0{hour}:00:00" for hour in range(3)]
    assert {datetime.fromisoformat(text).utcoffset() for text in texts} == {timedelta()}


def test_what_cannot_be_put_leaves_what_was_there(table: tuple[Sink, Read]) -> None:
    """Broken: the rows before would be gone, and none in their place."""
    sink, read = table
    if "shop" in sink.place:
        pytest.skip("SQLite takes any value in any column")
    sink.put("2024-01-01", predictions(0.1), night(2))
    before = read()
    with pytest.raises(StepError):
        sink.put("2024-01-01", predictions(0.2, score=pl.lit("no number at all")), night(3))
    assert read().equals(before)


def test_what_no_database_holds_is_named(tmp_path: Path, connect: Any) -> None:
    connect("shop", "sqlite", host=str(tmp_path / "shop.db"))
    sink = open_sink(settings(kind="sql", connection="shop", table="answers"), tmp_path)
    with pytest.raises(BadConfigError, match=r"column 'parts' is List\(Int64\).*leave it out by predict.columns"):
        sink.put("2024-01-01", predictions(0.1, parts=pl.lit([1, 2])), night(2))


def test_a_column_that_a_model_answers_anew(table: tuple[Sink, Read]) -> None:
    """A Delta table gets it; of a database's table a person decides."""
    sink, read = table
    sink.put("2024-01-01", predictions(0.1), night(2))
    more = predictions(0.2, probability=pl.lit(0.9))
    if "table" not in sink.place:
        assert sink.put("2024-01-02", more, night(3))
        assert read()["probability"].to_list() == [None] * 3 + [0.9] * 3
        return
    with pytest.raises(BadConfigError, match=r"(?s)cannot write table .*probability.*ALTER TABLE"):
        sink.put("2024-01-02", more, night(3))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("ftp://x", "predict: output.path must be a folder, or s3://bucket/prefix"),
        (
            {"kind": "sql", "connection": "a", "table": "x; DROP TABLE y"},
            "predict: output.table must be the name of a table, such as answers",
        ),
        ({"kind": "sql", "table": "x"}, "connection"),
        ({"kind": "hive", "path": "x"}, "predict: output must be a folder for files, or of kind files, delta or sql"),
    ],
)
def test_a_mistake_in_the_settings_is_named(output: Any, message: str) -> None:
    with pytest.raises(BadConfigError, match=message):
        check_section(Predict, {"registered_model": "taxi", "output": output}, "predict")


@pytest.mark.parametrize(
    ("conn_type", "table", "message"),
    [
        ("mysql", "answers", "of type 'mysql'; tables can be in postgres and sqlite"),
        ("sqlite", "lab.answers", "SQLite has no schemas; name the table alone"),
    ],
)
def test_another_database_is_refused_before_anything_is_asked(
    connect: Any, tmp_path: Path, conn_type: str, table: str, message: str
) -> None:
    connect("other", conn_type, host="x")
    with pytest.raises(BadConfigError, match=message):
        open_sink(settings(kind="sql", connection="other", table=table), tmp_path)


def test_a_server_that_is_away_is_worth_a_retry(connect: Any, tmp_path: Path) -> None:
    connect("warehouse", "postgres", "postgresql://trainer:s3cret@127.0.0.1:9/x")
    sink = open_sink(settings(kind="sql", connection="warehouse", table="answers"), tmp_path)
    with pytest.raises(SinkError, match="cannot write table answers of connection warehouse") as caught:
        sink.put("2024-01-01", predictions(0.1), night(2))
    assert "s3cret" not in str(caught.value)


def test_delta_in_an_object_store(s3: str, tmp_path: Path) -> None:
    sink = open_sink(settings(kind="delta", path=f"{s3}/answers"), tmp_path)
    for day, value in ((2, 0.1), (3, 0.2), (2, 0.1)):
        sink.put("2024-01-01", predictions(value), night(day))
    assert pl.read_delta(f"{s3}/answers")["score"].to_list() == [0.2] * 3
