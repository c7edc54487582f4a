"""
The two engines: Polars on this machine, or Spark where one machine is too small.

A table in flight is a :class:`narwhals.LazyFrame` over either. What narwhals can say is written once. What it cannot
(reading a source, a fitted feature set, a canonical blob) is a function of Polars frames, run where the rows are. So
both engines read, compute and store with the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import narwhals as nw
import polars as pl

from mlops.contract.step import StepError
from mlops.data.engine.spark import (
    errors_received,
    errors_sent,
    from_arrow,
    polars_schema,
    spark_schema,
    spark_session,
    to_arrow,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = [
    "Engine",
    "Piece",
    "Recipe",
    "Table",
    "as_table",
    "collect",
    "is_spark",
    "map_polars",
    "on_executors",
    "on_polars",
    "on_spark",
    "run_recipe",
    "spark_session",
    "without_rows",
]

Engine = Literal["polars", "spark"]
Table = nw.LazyFrame[Any]
Recipe = Callable[[dict[str, Table]], Table]
Piece = Callable[[], pl.LazyFrame]
"""Reads a part of a table, in any process: picklable, with all it needs in itself."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def as_table(native: Any) -> Table:
    """Wrap a Polars LazyFrame or a Spark DataFrame as a table in flight."""
    table: Table = nw.from_native(native)
    return table


def is_spark(table: Table) -> bool:
    return table.implementation.is_pyspark()


def on_polars(pieces: Sequence[Piece]) -> Table:
    """Make one table of its pieces, read when it is collected."""
    return as_table(pl.concat([piece() for piece in pieces]))


def on_spark(pieces: Sequence[Piece], session: SparkSession) -> Table:
    """
    Make one table of its pieces, each read by Polars in an executor: both engines see the same parsed rows.

    All pieces have the columns and types of the first. Types that Spark lacks are held as others (an unsigned integer
    as a wider signed one, a category as text); columns that are only passed on come back with their own.

    :raises BadDataError: naming the column whose type Spark cannot hold
    """
    schema = pieces[0]().collect_schema()
    fields, arrow = spark_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_sent():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for frame in pieces[number]().match_to_schema(schema).collect_batches():
                        yield from to_arrow(frame, arrow).to_batches()

    numbers = session.range(0, len(pieces), 1, len(pieces))
    # Kept, in memory or on the executors' disks: a recipe uses a source several times, and must see the same rows.
    return as_table(numbers.mapInArrow(read, fields).cache())


def without_rows(table: Table) -> Table:
    """Return an empty Polars table with the columns of a table, and the types that they have, or had before Spark."""
    native = table.to_native()
    schema = polars_schema(native.schema) if is_spark(table) else native.collect_schema()
    return as_table(pl.LazyFrame(schema=schema))


def run_recipe(recipe: Recipe, sources: Mapping[str, Table]) -> Table:
    """
    Run a recipe on several tables and return one, with the types that it has on Polars, whichever engine makes it.

    On Spark the recipe is run on empty Polars tables as well, to learn these types: a count, say, is a wider integer
    there, and a snapshot would hold other bytes.
    """
    result = recipe(dict(sources))
    # What a user's recipe returned need not be a table: the caller says so.
    if not isinstance(result, nw.LazyFrame) or not is_spark(result):
        return result
    schema = recipe({name: without_rows(table) for name, table in sources.items()}).to_native().collect_schema()
    fields, _ = spark_schema(schema)
    rows = result.to_native()
    return as_table(
        rows.select(*(rows[f"`{f.name}`"].cast(f.dataType).alias(f.name, metadata=f.metadata) for f in fields))
    )


def map_polars(
    table: Table, function: Callable[[pl.DataFrame], pl.DataFrame], *, by: Sequence[str] = (), schema: pl.Schema
) -> Table:
    """
    Run a Polars function over a table, where its rows are.

    :param function: on Spark it is pickled, and sees some of the rows at a time, or with ``by`` a whole group. On
        Polars it sees the whole table at once: it must treat rows, or groups, independently of each other
    :param schema: columns and types that it returns
    """
    if not is_spark(table):
        return as_table(function(collect(table)).lazy())
    rows = table.to_native()
    taken = polars_schema(rows.schema)
    fields, arrow = spark_schema(schema)

    def run(part: pa.Table) -> pa.Table:
        with errors_sent():
            return to_arrow(function(from_arrow(part, taken)), arrow)

    def run_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from run(batch).to_batches()

    if by:
        return as_table(rows.groupBy(*by).applyInArrow(run, fields))
    return as_table(rows.mapInArrow(run_batches, fields))


def collect(table: Table) -> pl.DataFrame:
    """
    Return a table's rows in this process, in no particular order.

    :raises StepError: the error that a function in an executor raised
    """
    native = table.to_native()
    if not is_spark(table):
        rows: pl.DataFrame = native.collect()
        return rows
    with errors_received():
        return from_arrow(native.toArrow(), polars_schema(native.schema))


def on_executors(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """
    Call a function on each item in Spark's executors, all at once as far as these go.

    :param function: picklable, with all that it needs in itself
    :raises StepError: the first error that it raised
    """

    def attempt(item: _Item) -> _Result | StepError:
        try:
            return function(item)
        except StepError as error:  # as a value: Spark would wrap what is raised
            return error

    results = list[_Result]()
    for result in spark_session().sparkContext.parallelize(items, len(items)).map(attempt).collect():
        if isinstance(result, StepError):
            raise result
        results.append(result)
    return results
