"""Spark beside Polars: the same rows, types and errors; quiet, and gone with its step."""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl
import psutil
import pytest

from mlops.contract.step import BadDataError, StepError, python_path
from mlops.data.engine.engines import (
    collect,
    errors_received,
    map_polars,
    on_polars,
    on_spark,
    spark_session,
    without_rows,
)
from mlops.store_errors import DamagedObjectError

INSTANT = datetime(2024, 3, 10, 7, 30, 0, 123456, tzinfo=UTC)
FRAME = pl.DataFrame(
    {
        "tiny": pl.Series([255, 0, None], dtype=pl.UInt8),
        "unsigned": pl.Series([2**32 - 1, 0, None], dtype=pl.UInt32),
        "small": pl.Series([-128, 127, None], dtype=pl.Int8),
        "single": pl.Series([0.1, float("nan"), None], dtype=pl.Float32),
        "double": [0.1, float("-inf"), None],
        "flag": [True, False, None],
        "text": ["é", "", None],
        "category": pl.Series(["b", "a", None], dtype=pl.Categorical),
        "enum": pl.Series(["low", "high", None], dtype=pl.Enum(["low", "high"])),
        "raw": [b"\x00\xff", b"", None],
        "instant": [INSTANT, INSTANT - timedelta(days=100_000), None],
        "fine": pl.Series([INSTANT, INSTANT, None], dtype=pl.Datetime("ns", "UTC")),
        "local": pl.Series([INSTANT, INSTANT, None]).dt.convert_time_zone("America/New_York"),
        "naive": [datetime(2024, 3, 10, 2, 30), datetime(1900, 1, 1), None],
        "day": [date(2024, 3, 10), date(1900, 1, 1), None],
        "span": [timedelta(microseconds=1), timedelta(days=-1), None],
        "amount": pl.Series(["1.50", "-2.25", None]).str.to_decimal(scale=2),
        "list": [[1.5, None], [], None],
        "record": [{"x": 1, "y": "a"}, {"x": None, "y": "b"}, {"x": 2, "y": None}],
        "nothing": [None, None, None],
    },
    strict=False,
)


@pytest.mark.server
def test_values_and_types_come_back_as_they_went() -> None:
    """Otherwise a snapshot made on Spark would hold other bytes than one made on Polars."""
    table = on_spark([FRAME.lazy, FRAME[:1].lazy], spark_session())

    assert without_rows(table).to_native().collect_schema() == FRAME.schema
    assert collect(table).sort("day", "raw").equals(pl.concat([FRAME, FRAME[:1]]).sort("day", "raw"))


class Spy:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


@pytest.mark.server
def test_a_cell_that_spark_quotes_is_not_run(tmp_path: Path) -> None:
    """Broken: who may write a cell of the source runs code in the step, by way of Spark's message about that cell."""
    for sent in (pickle.dumps(Spy(f"{tmp_path}/spied")), json.dumps(["os", "system", True, "x", {}]).encode()):
        cell = f"step error <{base64.b64encode(sent).decode()}>"
        with pytest.raises(StepError), errors_received():
            spark_session().sql(f"SELECT CAST('{cell}' AS INT)").collect()
    assert not (tmp_path / "spied").exists()


@pytest.mark.server
@pytest.mark.parametrize("engine", ["polars", "spark"])
def test_a_polars_function_sees_whole_groups_and_its_own_types(engine: str) -> None:
    """Otherwise features or blobs of a group would be made of a part of it."""
    frame = pl.DataFrame({"key": ["a", "b", "a", None], "x": pl.Series([1, 2, 3, 4], dtype=pl.UInt8)})
    pieces = [frame[:2].lazy, frame[2:].lazy]
    table = on_polars(pieces) if engine == "polars" else on_spark(pieces, spark_session())
    schema = pl.Schema({"key": pl.String, "sum": pl.UInt32, "type": pl.String})

    def summed(rows: pl.DataFrame) -> pl.DataFrame:
        kind = pl.lit(str(rows.schema["x"])).alias("type")
        return (
            rows.group_by("key").agg(pl.col("x").cast(pl.UInt32).sum().alias("sum"), kind.first()).select(list(schema))
        )

    # Columns that are passed on keep their types through what narwhals does to the others.
    table = table.with_columns(more=nw.col("x") + 1).filter(nw.col("more") > 1)
    result = collect(map_polars(table, summed, by=["key"], schema=schema))

    assert result.schema == schema
    assert sorted(result.rows(), key=str) == [("a", 4, "UInt8"), ("b", 2, "UInt8"), (None, 4, "UInt8")]


def unreadable() -> pl.LazyFrame:
    raise DamagedObjectError("blobs/sha256/ab is damaged", key="ab")


@pytest.mark.server
def test_an_error_in_an_executor_is_the_error_of_the_step() -> None:
    """Otherwise damaged data would be tried again and again, behind pages of Java."""
    table = on_spark([FRAME.lazy, unreadable], spark_session())

    with pytest.raises(DamagedObjectError) as caught:
        collect(table)
    assert str(caught.value) == "blobs/sha256/ab is damaged"
    assert caught.value.details == {"key": "ab"}


@pytest.mark.server
def test_values_that_do_not_fit_the_query_are_bad_data() -> None:
    """They stay as they are: a retry cannot help, as on Polars."""
    table = on_spark([FRAME.lazy], spark_session())

    with pytest.raises(BadDataError, match="The value 'é' of the type \"STRING\" cannot be cast"):
        collect(table.select(nw.col("text").cast(nw.Int64)))


@pytest.mark.server
@pytest.mark.parametrize(
    ("column", "message"),
    [
        pytest.param(pl.Series("at", [1], dtype=pl.Time), "column 'at' is Time, which Spark cannot hold", id="time"),
        pytest.param(
            pl.Series("at", [1], dtype=pl.Datetime("ns", "UTC")), "finer than a microsecond", id="nanoseconds"
        ),
    ],
)
def test_what_spark_cannot_hold_is_said(column: pl.Series, message: str) -> None:
    """Cut off in silence, the values would differ between the engines."""
    with pytest.raises(BadDataError, match=message):
        collect(on_spark([column.to_frame().lazy], spark_session()))


SLEEPER = """
import time
import polars as pl
from mlops.data.engine.engines import collect, map_polars, on_spark, spark_session

def sleep(rows):
    time.sleep(600)
    return rows

frame = pl.DataFrame({"x": [1, 2]})
table = on_spark([frame[:1].lazy, frame[1:].lazy], spark_session())
print(collect(table).height, "rows", flush=True)
collect(map_polars(table, sleep, schema=frame.schema))
"""


@pytest.mark.server
def test_spark_is_quiet_and_ends_with_its_step(tmp_path: Path) -> None:
    """Otherwise a killed task would go on computing beside its retry, and its log would be Java's."""
    step = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": python_path(Path())}, cwd=Path(__file__).parents[4],
    )  # fmt: skip
    try:
        assert step.stdout is not None
        assert step.stdout.readline() == "2 rows\n", "the first line is the step's own"
        deadline = time.monotonic() + 60
        while len(busy := psutil.Process(step.pid).children(recursive=True)) < 3:  # the JVM, and Python in it
            assert time.monotonic() < deadline, busy
            time.sleep(0.1)
        assert any("java" in process.name() for process in busy)
    finally:
        step.send_signal(signal.SIGKILL)
        step.wait()

    _, alive = psutil.wait_procs(busy, timeout=30)
    assert alive == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param(
            "import sys; sys.modules['pyspark'] = None",
            "pip install --no-deps -r training/requirements-spark.txt",
            id="pyspark",
        ),
        pytest.param("import os; os.environ['PATH'] = '/nowhere'", "there is no `java`: install it", id="java"),
        pytest.param(
            "import os; os.environ['SPARK_MASTER'] = 'moon'",
            "Master must either be yarn or start with spark",
            id="master",
        ),
    ],
)
def test_what_spark_needs_and_is_not_there_is_said(script: str, message: str) -> None:
    """Otherwise the user of `engine: spark` would be told of a missing module or a closed gateway."""
    ask = f"{script}\nfrom mlops.data.engine.engines import *\ntry: spark_session()\nexcept Exception as e: print(e)"
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=60,
        env=environment | {"PYTHONPATH": python_path(Path())}, cwd=Path(__file__).parents[4],
    )  # fmt: skip

    assert message in done.stdout
