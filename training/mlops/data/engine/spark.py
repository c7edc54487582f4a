"""
A Spark session for a step, how the types of Polars travel through it, and how its errors come back.

PySpark stands beside the training runtime only where a pipeline says ``engine: spark``; it is imported when asked for.
"""

from __future__ import annotations

import atexit
import base64
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import polars as pl

from mlops.contract.step import BadConfigError, BadDataError, StepError
from mlops.data.engine.dtypes import dtype_of, instance_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_POLARS_TYPE = "polars"
"""Field metadata that holds the type that a column had before it was carried."""
_MARK = re.compile(r"step error <([A-Za-z0-9+/=]+)>")
_STOP_SECONDS = 10


class SparkError(StepError):
    """Spark does not run just now. The error is retried, because clusters recover."""


def spark_session() -> SparkSession:
    """
    Return the process's session, started at the first call and stopped when the process ends.

    ``SPARK_MASTER`` or Spark's own ``spark-defaults.conf`` says where it runs: on this machine's cores otherwise.

    :raises BadConfigError: where PySpark or Java is missing
    :raises SparkError: where Spark does not start
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise BadConfigError(
            "engine: spark needs PySpark in the training runtime: uv pip install --no-deps -r "
            "training/requirements-spark.txt, or set ingest.engine: polars"
        ) from error
    if (running := SparkSession.getActiveSession()) is not None:
        return running
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise BadConfigError(
            "engine: spark needs Java 17 or newer, and there is no `java`: install it (on Debian: "
            "default-jre-headless), set JAVA_HOME, or set ingest.engine: polars"
        )
    # On a cluster whose executors have the runtime elsewhere, PYSPARK_PYTHON says where.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "SPARK_MASTER" not in os.environ:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's start, and every failed task's Java stack, would bury the step's own log; what fails is raised anyway.
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    logging.getLogger("py4j").setLevel(logging.WARNING)
    conf = SparkConf().setAll(list(_settings().items()))
    with tempfile.TemporaryFile("w+") as log:
        try:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
            context = SparkContext(gateway=gateway, conf=conf)
        except (PySparkException, OSError) as error:
            log.seek(0)
            said = [line.strip() for line in log if "Exception" in line or "Error" in line] or [str(error)]
            raise SparkError(f"Spark does not start: {said[0]}; check SPARK_MASTER and spark-defaults.conf") from error
    session = SparkSession(context)
    atexit.register(_stop, session, gateway)
    partitions = "spark.sql.shuffle.partitions"
    if context.getConf().get("spark.master", "").startswith("local") and not context.getConf().contains(partitions):
        # Spark's 200 are for a cluster: here writing and reading them would take longer than the work.
        session.conf.set(partitions, 4 * context.defaultParallelism)
    return session


def _settings() -> dict[str, str]:
    settings = {
        # Instants are in UTC, as in the snapshot; a day of another zone is the recipe's to compute.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Overflow and bad casts fail, as they do on Polars.
        "spark.sql.ansi.enabled": "true",
        # It would listen on every address, for the minutes of a step.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Pieces and functions are ours or the recipe's: executors import them from the same folders.
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # A task has one core; Polars in it would start a thread for each of the machine's.
        "spark.executorEnv.POLARS_MAX_THREADS": "1",
        "spark.sql.warehouse.dir": tempfile.gettempdir(),
    }
    if master := os.environ.get("SPARK_MASTER"):
        settings["spark.master"] = master
    return settings


def _stop(session: SparkSession, gateway: Any) -> None:
    """Let the JVM remove its temporary folders: killed with the step's process group, it would leave them behind."""
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()


def spark_schema(schema: pl.Schema) -> tuple[StructType, pa.Schema]:
    """
    Return the schemas with which Spark holds rows of Polars types, and with which Arrow passes them.

    :raises BadDataError: naming the column whose type Spark does not have
    """
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    held = {}
    for name, dtype in schema.items():
        if (kept := carried(dtype)) is None:
            raise BadDataError(
                f"column {name!r} is {dtype}, which Spark cannot hold; cast it in the source's types, or set "
                "ingest.engine: polars"
            )
        held[name] = kept
    fields = from_arrow_schema(pl.DataFrame(schema=held).to_arrow().schema, prefer_timestamp_ntz=True)
    for field in fields:
        field.metadata = {_POLARS_TYPE: str(schema[field.name])}
    # Back again, for Spark takes fewer of Arrow's types than it knows (no large lists).
    return fields, to_arrow_schema(fields, timezone="UTC")


def polars_schema(fields: StructType) -> pl.Schema:
    """Return the Polars types of a Spark table's columns: the original ones for columns that came from Polars."""
    from pyspark.sql.pandas.types import to_arrow_schema

    empty = pl.from_arrow(to_arrow_schema(fields, timezone="UTC").empty_table())
    assert isinstance(empty, pl.DataFrame)
    came_with = {
        field.name: dtype_of(field.metadata[_POLARS_TYPE]) for field in fields if _POLARS_TYPE in (field.metadata or {})
    }
    return pl.Schema({**empty.schema, **came_with})


def carried(dtype: pl.DataType) -> pl.DataType | None:
    """Return the type in which Spark holds values of a Polars type; None if it cannot hold them."""
    match dtype:
        case pl.UInt8():
            return pl.Int16()
        case pl.UInt16():
            return pl.Int32()
        case pl.UInt32() | pl.UInt64():
            return pl.Int64()
        case pl.Categorical() | pl.Enum() | pl.Null():
            return pl.String()
        case pl.Datetime(time_zone=zone):
            return pl.Datetime("us", "UTC" if zone else None)
        case pl.Duration():
            return pl.Duration("us")
        case pl.Struct(fields=fields):
            inner = {field.name: carried(instance_of(field.dtype)) for field in fields}
            return None if None in inner.values() else pl.Struct(inner)  # type: ignore[arg-type]
        case pl.List(inner=item) | pl.Array(inner=item):
            kept = carried(instance_of(item))
            return None if kept is None else pl.List(kept)
        case pl.Time() | pl.Int128() | pl.UInt128() | pl.Object():
            return None
        case _:
            return dtype


def to_arrow(frame: pl.DataFrame, arrow: pa.Schema) -> pa.Table:
    """
    Convert a frame to the Arrow table that Spark takes.

    :raises BadDataError: where a time is finer than the microseconds that Spark keeps
    """
    for name, dtype in frame.schema.items():
        if isinstance(dtype, (pl.Datetime, pl.Duration)) and dtype.time_unit == "ns":
            finer = frame[name].filter(frame[name].to_physical() % 1000 != 0)
            if finer.len():
                raise BadDataError(
                    f"column {name!r} has times finer than a microsecond ({finer[0]}), which Spark does not keep; "
                    "cast it in the source, or set ingest.engine: polars"
                )
    rows = frame.select(pl.col(name).cast(carried(dtype) or dtype) for name, dtype in frame.schema.items())
    return rows.to_arrow().cast(arrow)


def from_arrow(rows: Any, schema: pl.Schema) -> pl.DataFrame:
    """Convert the rows that Spark returns to the columns and types of ``schema``."""
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame.select(schema.names()).cast(pl.Schema(schema))


@contextmanager
def errors_sent() -> Iterator[None]:
    """Give a step's error, in an executor, a form that survives the way through Java."""
    try:
        yield
    except StepError as error:
        kind = type(error)
        said = json.dumps([kind.__module__, kind.__qualname__, error.retryable, str(error), error.details], default=str)
        raise RuntimeError(f"step error <{base64.b64encode(said.encode()).decode()}>") from error


def _received(sent: str) -> StepError | None:
    """
    Return the error of an executor; None if the text is not one. Spark's messages quote cells, and a cell may hold what
    looks like an error of ours: it is read as text, and nothing is imported for it.
    """
    try:
        module, name, retryable, message, details = json.loads(base64.b64decode(sent, validate=True))
        kind = getattr(sys.modules.get(str(module)), str(name), None)
        if not (isinstance(kind, type) and issubclass(kind, StepError)):
            kind = StepError if retryable else BadDataError
        return kind(str(message), **details)
    except (ValueError, TypeError):
        return None


@contextmanager
def errors_received() -> Iterator[None]:
    """
    Raise a step's error, in the step's process, as it was raised in the executor.

    :raises BadDataError: if Spark itself found the query or the data wrong
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if (sent := _MARK.search(str(error))) and (received := _received(sent[1])) is not None:
            raise received from None
        # 22: data exceptions, 42: a wrong query. The others (38: code in an executor, XX: Spark) are not the data's.
        if (error.getSqlState() or "")[:2] in ("22", "42"):
            raise BadDataError(f"Spark: {str(error).partition(chr(10))[0]}") from error
        raise
