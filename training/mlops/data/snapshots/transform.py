"""Make the one table of a snapshot from its sources: the recipe's transform, and the rows of the window."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import narwhals as nw
import polars as pl
from narwhals.dtypes import DType
from narwhals.exceptions import ColumnNotFoundError, NarwhalsError
from polars.exceptions import ColumnNotFoundError as PolarsColumnNotFoundError
from polars.exceptions import PolarsError

from mlops.code import load_attribute
from mlops.contract.sections.ingest import SPLIT_COLUMN, Ingest, SourceSplit
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.engines import Recipe, Table, is_spark, run_recipe, spark_session
from mlops.data.snapshots.internal_columns import taken_name
from mlops.data.sources import SourceTable
from mlops.data.sources.long_numbers import LIMIT
from mlops.data.sources.window import Window


@dataclass(frozen=True, slots=True)
class Transform:
    """
    A recipe's function, or its SQL, as it was when it was loaded: before sources are read, which may take hours in
    which other code is deployed.
    """

    name: str
    """Import path of the function, or path of the file."""
    code: Recipe | str
    """The function, or the text of the file."""

    @classmethod
    def load(cls, name: str, home: Path) -> Self:
        """
        Import the function, or read the file.

        :param home: folder that holds ``include/``
        :raises BadConfigError: where there is none, it does not import, or it is neither a function nor a SELECT
        """
        if name.endswith(".sql"):
            return cls(name, _query(name, home))
        function = load_attribute(name, home)
        if not callable(function):
            raise BadConfigError(f"ingest.transform {name!r} is a {type(function).__name__}, not a function")
        return cls(name, cast(Recipe, function))

    @classmethod
    def of(cls, ingest: Ingest, home: Path) -> Self | None:
        """Load the one that the settings name, if any; see :meth:`load`."""
        return None if ingest.transform is None else cls.load(ingest.transform, home)


def table_of(sources: Mapping[str, SourceTable], ingest: Ingest, transform: Transform | None, window: Window) -> Table:
    """
    Make the one table of a snapshot: the window's rows of the recipe's transform, or of a source for each split.

    :param transform: the one that ``ingest`` names
    :raises BadConfigError: where the transform is missing, does not parse, or returns no narwhals LazyFrame
    :raises BadDataError: where it does not fit the data, or the column of the event time is missing or no instant
    """
    if isinstance(ingest.split, SourceSplit):
        table = stacked(sources, ingest.split)
    else:
        table = transform_sources(sources, transform)
    return rows_in_window(table, ingest.event_time, window, sources=sources, transform=ingest.transform)


def transform_sources(sources: Mapping[str, SourceTable], transform: Transform | None) -> Table:
    """
    Make one table of the sources.

    :param transform: None where there is a single source
    :raises BadConfigError: where the transform is missing, does not parse, or returns no narwhals LazyFrame
    """
    tables = {name: source.rows for name, source in sources.items()}
    if transform is None:
        if len(sources) > 1:
            raise BadConfigError(
                f"ingest has {len(sources)} sources ({', '.join(sources)}) and no transform to make one table of them; "
                "set ingest.transform"
            )
        return next(iter(tables.values()))
    name, code = transform.name, transform.code
    if isinstance(code, str):
        with explained(name, sources):
            return _select(name, code, tables)
    try:
        with explained(name, sources):
            result = run_recipe(code, tables)
    except KeyError as error:
        raise BadConfigError(
            f"ingest.transform {name!r} asks for {error}; the sources are {', '.join(sources)}"
        ) from error
    if not isinstance(result, nw.LazyFrame):
        kind = f"{type(result).__module__.partition('.')[0]}.{type(result).__name__}"
        raise BadConfigError(f"ingest.transform {name!r} returned a {kind}; return a narwhals.LazyFrame")
    return result


def stacked(sources: Mapping[str, SourceTable], split: SourceSplit) -> Table:
    """
    Make one table of a source for each split, with a column that says which it is.

    :raises BadDataError: where their columns differ
    """
    named = {"train": split.sources.train, "validation": split.sources.validation, "test": split.sources.test}
    tables = {each: (name, sources[name].rows) for each, name in named.items() if name is not None}
    (first, table), *_ = tables.values()
    wanted = table.collect_schema()
    if SPLIT_COLUMN in wanted:
        raise BadDataError(f"source {first!r} has a column {SPLIT_COLUMN!r}, which ingest.split.sources would add")
    types = dict(wanted)
    for name, rows in tables.values():
        found = rows.collect_schema()
        if differ := [*(c for c in wanted if c not in found), *(c for c in found if c not in wanted)]:
            has, lacks = (first, name) if differ[0] in wanted else (name, first)
            raise BadDataError(f"source {has!r} has a column {differ[0]!r}, and source {lacks!r} has not")
        for column, dtype in found.items():
            if dtype == types[column]:
                continue
            if not (dtype.is_numeric() and types[column].is_numeric()):
                raise BadDataError(
                    f"column {column!r} is {types[column]} in source {first!r} and {dtype} in source {name!r}; say in "
                    "their types which it shall be"
                )
            types[column] = _common_number(types[column], dtype)
    for name, rows in tables.values():
        _refuse_changed(name, rows, types)
    return nw.concat(
        [
            rows.select(nw.col(column).cast(dtype) for column, dtype in types.items()).with_columns(
                nw.lit(each).alias(SPLIT_COLUMN)
            )
            for each, (_, rows) in tables.items()
        ]
    )


def _common_number(one: DType, other: DType) -> DType:
    """Return the type of numbers that holds both: a whole number would lose digits as a float."""
    if one.is_integer() and other.is_integer():
        return nw.UInt64() if one.is_unsigned_integer() and other.is_unsigned_integer() else nw.Int64()
    return nw.Float64()


def _refuse_changed(name: str, rows: Table, types: Mapping[str, DType]) -> None:
    """
    Refuse whole numbers that a float, as another source has the column, would change.

    :raises BadDataError: naming the column
    """
    found = rows.collect_schema()
    columns = [column for column, dtype in found.items() if dtype.is_integer() and not types[column].is_integer()]
    if not columns:
        return
    long = [((nw.col(column) >= LIMIT) | (nw.col(column) <= -LIMIT)).any().alias(column) for column in columns]
    (counted,) = rows.select(*long).collect("polars").rows(named=True)
    for column, changed in counted.items():
        if changed:
            raise BadDataError(
                f"column {column!r} of source {name!r} is {found[column]} with whole numbers from 2^53 on, which "
                "another source's floats would change: two of them could become one; make it whole numbers in each "
                "source, or say in their types which it shall be"
            )


def rows_in_window(
    table: Table, event_time: str, window: Window, *, sources: Mapping[str, SourceTable], transform: str | None
) -> Table:
    """
    Keep the window's rows.

    :param event_time: column with the instant by which a row belongs to a day

    :raises BadDataError: where the column is missing or no instant, or another has a name that steps need
    """
    with explained(transform, sources):
        schema = table.collect_schema()
    if event_time not in schema:
        raise BadDataError(
            f"the table has no column {event_time!r}, which ingest.event_time names; it has {', '.join(schema)}"
        )
    if (taken := taken_name(schema)) is not None:
        raise BadDataError(
            f"the table has a column {taken!r}, a name that steps give to columns of their own for a while; rename it "
            "in ingest.transform, or at the source"
        )
    dtype = schema[event_time]
    if not isinstance(dtype, nw.Datetime) or dtype.time_zone is None:
        raise BadDataError(
            f"ingest.event_time {event_time!r} is {dtype}, not an instant; make it a datetime with a time zone, "
            "or name it as event_time of its source, which parses ISO 8601"
        )
    if dtype.time_zone != "UTC":
        table = table.with_columns(nw.col(event_time).dt.convert_time_zone("UTC"))
    return table.filter(nw.col(event_time) >= window.start, nw.col(event_time) < window.stop)


def _query(path: str, home: Path) -> str:
    """Return the SELECT of a file."""
    try:
        query = (home / path).read_text()
    except FileNotFoundError as error:
        raise BadConfigError(f"ingest.transform: there is no file {home / path}") from error
    statement = re.sub(r"(--[^\n]*|/\*.*?\*/|\s)+", " ", query, flags=re.DOTALL).strip()
    if not re.match(r"(SELECT|WITH)\b", statement, re.IGNORECASE):
        raise BadConfigError(f"ingest.transform {path}: write one SELECT; it begins with {statement[:40]!r}")
    return query


def _select(path: str, query: str, tables: Mapping[str, Table]) -> Table:
    """Run a file's SELECT over the tables, by the engine's own SQL."""
    if any(is_spark(table) for table in tables.values()):
        for name, table in tables.items():
            table.to_native().createOrReplaceTempView(name)
        return nw.from_native(spark_session().sql(query))
    try:
        rows = pl.SQLContext({name: table.to_native() for name, table in tables.items()}).execute(query)
        rows.collect_schema()  # only now are the tables looked up
    except (pl.exceptions.SQLSyntaxError, pl.exceptions.SQLInterfaceError) as error:
        raise BadConfigError(
            f"ingest.transform {path}: {_cause(error)}. It is read as Polars' SQL, over the tables {', '.join(tables)}"
        ) from error
    return nw.from_native(rows)


@contextmanager
def explained(transform: str | None, sources: Mapping[str, SourceTable]) -> Iterator[None]:
    """
    Add to the error of a failing transform what it asked for and what there is; used around its making and its running.

    :raises BadDataError: where the transform does not fit the data
    """
    named = f"ingest.transform {transform!r}" if transform else "the table"
    try:
        yield
    except (ColumnNotFoundError, PolarsColumnNotFoundError) as error:
        columns = "; ".join(f"{name} has {', '.join(source.columns)}" for name, source in sources.items())
        raise BadDataError(f"{named} asks for a missing column: {_cause(error)}. Of the sources, {columns}") from error
    except (PolarsError, NarwhalsError) as error:
        raise BadDataError(f"{named} does not fit the data: {_cause(error)}{_without_rows(sources)}") from error
    except _analysis_errors() as error:
        raise BadDataError(f"{named} does not fit the data: {_cause(error)}{_without_rows(sources)}") from error


def _without_rows(sources: Mapping[str, SourceTable]) -> str:
    """Say which sources are empty: of a column without a value nothing tells its type, and the error is about that."""
    empty = [name for name, source in sources.items() if not source.provenance["num_rows"]]
    if not empty:
        return ""
    return f". No row of {' and '.join(empty)} is known at the end of the data interval: is it before the data begins?"


def _cause(error: Exception) -> str:
    """Return an error's cause, without the plan of the query that Polars and Spark print below it."""
    return str(error).strip().split("\n", 1)[0]


def _analysis_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that Spark raises for a query that can never run; empty if Spark is not in use."""
    module = sys.modules.get("pyspark.errors")
    return (module.AnalysisException,) if module else ()
