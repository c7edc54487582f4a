"""
Sources: tables in files, databases, table formats and streams, as they were known at the end of the data interval.

Whatever the kind, :func:`read_source` settles exactly what is read, leaves out what was not yet known, gives columns
their types from what is left, and hands out one table for Polars or Spark.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

from mlops.code import load_attribute, load_extension, resolved
from mlops.contract.extensions import is_of_recipe, recipe_of
from mlops.contract.section import check_section
from mlops.contract.sources import SOURCES, AnySource, FileSource, NamedSource, SourceSection, SourceSpec
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.engines import Engine, Table, on_executors, on_polars, on_spark, spark_session
from mlops.data.sources.long_numbers import FieldPath, with_text
from mlops.data.sources.numerals import has_comma
from mlops.data.sources.records import Records
from mlops.data.sources.source import Piece, Source, SourceError, reading, unchanged
from mlops.data.sources.type_inference import (
    Decoded,
    Survey,
    by_name,
    common,
    converted,
    fields_of,
    merged,
    survey,
)
from mlops.data.sources.window import Window

__all__ = ["SourceError", "SourceTable", "load_kind", "open_source", "read_source"]

_PIECES_AT_ONCE = 4
_TYPE_OF: Mapping[str, str] = {"null": "string", "long": "int64"}
_INSTANT = timedelta(microseconds=1)
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTable:
    """A source read as of an instant."""

    rows: Table
    columns: tuple[str, ...]
    provenance: dict[str, Any]
    """
    ``kind``, ``position`` (exactly what was read), ``num_rows``, the number of known rows, and ``undated``, the number
    of rows that have no instant and are left out, by the column that should hold it.
    """
    spoilt: Mapping[str, str] = field(default_factory=dict)
    """Columns of text most of whose values are numbers, each with a value that is none."""
    too_long: Mapping[str, str] = field(default_factory=dict)
    """Columns or fields of text whose values are numbers, each with one that a float would change."""
    mixed: Sequence[str] = ()
    """Columns or fields of text that hold true or false beside other values."""
    finish: Callable[[], None] = field(repr=False)
    """
    Function to call when the rows have been read for the last time: it releases the source, and raises
    :class:`SourceError` if the source changed in the meantime.
    """

    def notes(self, name: str) -> Iterator[str]:
        """What a person should know of the source, a sentence each."""
        for column, number in self.provenance.get("undated", {}).items():
            yield f"source {name}: {number} rows have no instant in {column!r}, and are left out"
        for column, number in self.too_long.items():
            # Of a field inside of another none can be set.
            lossy = f", or set ingest.sources.{name}.types.{column} to float64 where digits may be lost"
            yield (
                f"source {name}: {column!r} is text, for it holds whole numbers that a float would change ({number}), "
                f"and others with a fraction; write all without{lossy if column in self.columns else ''}"
            )
        for column in self.mixed:
            yield (
                f"source {name}: {column!r} is text, for it holds true or false beside other values; write all of "
                "it as one kind"
            )
        for column, other in self.spoilt.items():
            if has_comma(other):
                yield (
                    f"source {name}: column {column!r} is text, for numbers in it have a comma ({other!r}); where "
                    f'these are fractions, set ingest.sources.{name}.decimal to ","'
                )
                continue
            yield (
                f"source {name}: column {column!r} is text, for not all of it is numbers ({other!r}); correct it, or "
                f"add that to ingest.sources.{name}.null_values"
            )


def read_source(
    name: str, settings: AnySource, *, home: Path, scratch: Path, window: Window, engine: Engine
) -> SourceTable:
    """
    Read a source without what was not yet known at the end of the window.

    :param settings: the source's section of ``ingest.sources``
    :param home: folder where relative paths start
    :param scratch: folder for what is fetched or converted; needed as long as the rows are
    :raises BadDataError: where something is missing, unreadable, or no instant
    :raises BadConfigError: where the settings do not fit the source
    :raises SourceError: where a server does not answer, or the source changes while it is read
    """
    source, records, section = open_source(name, settings, home=home, window=window)
    position = source.position()
    finish = functools.partial(source.finish, position)
    with unchanged(finish):
        folder = scratch / f"source-{name}"
        pieces = source.pieces(position, folder)
        found = _known(source, pieces, records, section.types, engine)
        known, num_rows = found.pieces, found.num_rows
        if engine == "polars":
            rows = on_polars(known if source.local else _stored(known, records, folder))
        else:
            rows = on_spark(known, spark_session())
        if records.key:
            rows = records.latest(rows)
            if engine == "polars":
                rows = on_polars(_stored([_Rows(name, rows.to_native())], records, folder / "latest"))
            num_rows = rows.select(nw.len()).collect("polars").item()
        if section.as_of is not None:
            if section.as_of in (columns := rows.collect_schema().names()):
                raise BadDataError(
                    f"source {name!r} has a column {section.as_of!r} already, which its as_of would add; it has "
                    f"{', '.join(columns)}"
                )
            rows = rows.with_columns(nw.lit(window.end - _INSTANT).alias(section.as_of))
    return SourceTable(
        rows=rows,
        columns=tuple(rows.collect_schema().names()),
        provenance={"kind": settings.kind, "position": dict(position), "num_rows": num_rows, "undated": found.undated},
        spoilt=found.spoilt,
        too_long=found.too_long,
        mixed=found.mixed,
        finish=finish,
    )


def load_kind(kind: str, home: Path) -> tuple[SourceSpec, Callable[..., Source]]:
    """
    Import a kind of source, and what reads it.

    :param home: folder that holds ``include/``
    :raises BadConfigError: where there is no such kind, or it cannot be imported
    """
    own = functools.partial(load_attribute, home=home)
    spec = load_extension(SOURCES, kind, SourceSpec, own)
    reader = spec.reader
    if isinstance(reader, str) and is_of_recipe(reader) and recipe_of(reader) != recipe_of(kind):
        raise BadConfigError(
            f"source {kind!r}: its reader {reader!r} is in another recipe, which is no part of the run key; put it in "
            f"{'/'.join(recipe_of(kind))}"
        )
    return spec, resolved(reader, own)


def open_source(name: str, settings: AnySource, *, home: Path, window: Window) -> tuple[Source, Records, SourceSection]:
    """
    Make what reads a source, the rule for which of its rows count, and its settings with the defaults of its own kind.
    Nothing is read yet.

    The reader is imported only now: a step waits for the libraries of its own source.

    :raises BadConfigError: where there is no such kind, or the settings do not fit it
    """
    spec, reader = load_kind(settings.kind, home)
    section: SourceSection = settings
    if isinstance(settings, NamedSource):
        # The section of a recipe's source is known here only, and so are its defaults.
        given = settings.model_dump(mode="json", exclude_unset=True, exclude={"kind"})
        section = check_section(spec.section, given, f"ingest.sources.{name}")
    history = None if section.history_days is None else timedelta(days=section.history_days)
    records = Records(
        source=name,
        event_time=section.event_time,
        created_time=section.created_time,
        key=tuple(section.key),
        as_of=window.end,
        since=None if history is None else window.start - history,
        time_zone=section.time_zone,
        epoch=section.epoch,
        decimal=section.decimal if isinstance(section, FileSource) else ".",
    )
    return reader(name=name, home=home, records=records, settings=section), records, section


@dataclass(frozen=True, slots=True)
class _Found:
    """The known rows of a source, and what was found out about them."""

    pieces: list[Piece]
    """All of the same columns and types."""
    num_rows: int
    undated: dict[str, int]
    spoilt: dict[str, str]
    too_long: dict[str, str]
    mixed: list[str]
    """The last four as of :class:`SourceTable`."""


def _known(
    source: Source, pieces: Sequence[Piece], records: Records, types: Mapping[str, str], engine: Engine
) -> _Found:
    undated: Counter[str] = Counter()
    too_long: dict[str, str] = {}
    mixed: list[str] = []
    if source.documents:
        fields = _each(functools.partial(fields_of, records=records), pieces, engine)
        long: dict[FieldPath, int] = functools.reduce(operator.or_, (dict(found.long) for found in reversed(fields)))
        boolean = {path for found in fields for path in found.boolean}
        schema = by_name(functools.reduce(merged, (found.schema for found in fields)))
        schema, changed = with_text(schema, long, boolean)
        for path in changed:
            column = ".".join(each for each in path if each is not None)
            if column in types:
                continue
            if path in boolean:
                mixed.append(column)
            else:
                too_long[column] = str(long[path])
        for found in fields:
            undated.update(found.undated)
        if not len(schema):
            times = " and ".join(map(repr, records.instants))
            why = f"no row has an earlier instant in {times}" if times else "it has no rows"
            raise BadDataError(f"source {records.source!r}: nothing was known at {records.as_of.isoformat()}: {why}")
        pieces = [Decoded(piece, records, schema) for piece in pieces]
    look = functools.partial(survey, records=records, types=types, text=source.text)
    surveys = _each(look, pieces, engine)
    shown = functools.reduce(common, (found.shown for found in surveys))
    wanted = {name: _TYPE_OF.get(kind, str(kind)) for name, kind in shown.items()} | dict(types)
    _check_alike(records.source, pieces, surveys, types)
    columns = tuple(surveys[0].schema)
    for each in surveys:
        undated.update(each.undated)
    spoilt: dict[str, str] = {}
    for name in (column for column, kind in shown.items() if kind == "string"):
        numbers = functools.reduce(operator.add, (each.numbers[name] for each in surveys))
        if numbers.spoilt_by is not None:
            spoilt[name] = numbers.spoilt_by
        elif numbers.other is None and numbers.long is not None:
            too_long[name] = numbers.long
    return _Found(
        pieces=[_Known(piece, records, wanted, columns) for piece in pieces],
        num_rows=sum(each.num_rows for each in surveys),
        undated=+undated,
        spoilt=spoilt,
        too_long=too_long,
        mixed=mixed,
    )


def _check_alike(name: str, pieces: Sequence[Piece], surveys: Sequence[Survey], types: Mapping[str, str]) -> None:
    first, place = surveys[0].schema, pieces[0].place
    for piece, found in zip(pieces, surveys, strict=True):
        if lacking := [c for c in first if c not in found.schema] or [c for c in found.schema if c not in first]:
            has, lacks = (place, piece.place) if lacking[0] in first else (piece.place, place)
            raise BadDataError(f"source {name!r}: {has} has a column {lacking[0]!r}, and {lacks} has not")
        for column, dtype in first.items():
            if found.schema[column] != dtype and column not in types:
                raise BadDataError(
                    f"source {name!r}: column {column!r} is {dtype} in {place} and {found.schema[column]} in "
                    f"{piece.place}; say in types which it shall be"
                )


@dataclass(frozen=True, slots=True)
class _Known:
    """The known rows of a piece, in their types."""

    piece: Piece
    records: Records
    types: Mapping[str, str]
    columns: tuple[str, ...]

    @property
    def place(self) -> str:
        return self.piece.place

    def __call__(self) -> pl.LazyFrame:
        rows = self.piece().select(self.columns)
        schema = rows.collect_schema()
        rows = self.records.known(rows)
        return rows.with_columns(
            converted(name, schema[name], wanted, self.records).alias(name)
            for name, wanted in self.types.items()
            if name not in self.records.instants
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that are in memory already, as a piece."""

    place: str
    rows: pl.LazyFrame

    def __call__(self) -> pl.LazyFrame:
        return self.rows


def _stored(pieces: Sequence[Piece], records: Records, folder: Path) -> list[Piece]:
    """Convert each piece to a local file once, for all further reads: at most a batch of rows is in memory."""

    def store(numbered: tuple[int, Piece]) -> Piece:
        number, piece = numbered
        path = folder / f"rows-{number:05d}.parquet"
        with reading(records.source, piece.place):
            piece().sink_parquet(path, compression="lz4", mkdir=True)
        return _Rows(piece.place, pl.scan_parquet(path, glob=False))

    with ThreadPoolExecutor(_PIECES_AT_ONCE) as threads:
        return list(threads.map(store, enumerate(pieces)))


def _each(function: Callable[[Piece], Result], pieces: Sequence[Piece], engine: Engine) -> list[Result]:
    """Call a function on each piece, where the piece is read: in threads, or in Spark's executors."""
    if engine == "spark":
        return on_executors(function, pieces)
    with ThreadPoolExecutor(_PIECES_AT_ONCE) as threads:
        return list(threads.map(function, pieces))
