"""Convert written data to values: JSON objects to columns, and text to the types that its values show."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from mlops.contract.step import BadDataError
from mlops.data.sources.json_booleans import boolean_fields
from mlops.data.sources.long_numbers import FieldPath, is_long, leaves, long_fields
from mlops.data.sources.numerals import has_comma, numeral
from mlops.data.sources.records import Records, instant
from mlops.data.sources.source import DOCUMENT, Piece, reading

TYPES: Mapping[str, pl.DataType] = {
    "string": pl.String(),
    "boolean": pl.Boolean(),
    **{f"int{bits}": getattr(pl, f"Int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(pl, f"UInt{bits}")() for bits in (8, 16, 32, 64)},
    "float32": pl.Float32(),
    "float64": pl.Float64(),
    "date": pl.Date(),
    "datetime": pl.Datetime("us", "UTC"),
}
"""Polars type of each name that ``types`` may have."""
_NO_FRACTION = r"\.0*$"
Shown = Literal["null", "boolean", "int64", "long", "float64", "string"]
"""
Type that the values of a column of text show; ``null`` if there are none, ``long`` for whole numbers of 64 bits of
which a float would change some.
"""


_COMMON: Mapping[frozenset[Shown], Shown] = {
    frozenset(("int64", "float64")): "float64",
    frozenset(("int64", "long")): "long",
}
"""Types that hold the values of two others; text holds those of all."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The known rows of a piece of JSON objects, as columns."""

    piece: Piece
    records: Records
    schema: pl.Schema

    @property
    def place(self) -> str:
        return self.piece.place

    def __call__(self) -> pl.LazyFrame:
        # A field that is null throughout is text, as it is in CSV.
        fields = pl.Struct({name: pl.String() if dtype == pl.Null else dtype for name, dtype in self.schema.items()})
        known = _known_documents(self.piece(), self.records)
        return known.with_columns(pl.col(DOCUMENT).str.json_decode(fields)).unnest(DOCUMENT)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of JSON objects."""

    schema: pl.Schema
    """Their types, which hold all known values."""
    undated: Mapping[str, int]
    """As of :class:`Survey`."""
    long: Mapping[FieldPath, int]
    """Fields with whole numbers that a float would change, each with one of them."""
    boolean: Set[FieldPath]
    """Fields with true or false, see :func:`boolean_fields`."""


def fields_of(piece: Piece, records: Records) -> Fields:
    """
    Look at the JSON objects of a piece.

    :raises BadDataError: if a document is no JSON object, or its instant is not one
    """
    with reading(records.source, piece.place):
        rows = piece()
        columns = rows.collect_schema()
        _refuse_broken(rows, records, piece.place)
        outside = _with_instants(rows, records)
        undated = {name: _refuse_unreadable(outside, records, name) for name in records.instants}
        schema = pl.Schema()
        long: dict[FieldPath, int] = {}
        boolean: set[FieldPath] = set()
        for batch in _known_documents(rows, records).select(DOCUMENT).collect_batches():
            decoded = batch[DOCUMENT].str.json_decode(infer_schema_length=None)
            assert isinstance(decoded.dtype, pl.Struct), "other documents were refused"
            schema = merged(schema, pl.Schema(decoded.dtype))
            fields = dict(leaves(decoded))
            long = long_fields(batch[DOCUMENT], fields) | long
            boolean |= boolean_fields(batch[DOCUMENT], decoded.dtype, fields)
    if taken := sorted(set(schema) & (set(columns) - {DOCUMENT})):
        raise BadDataError(
            f"source {records.source!r}: {piece.place} has a field {taken[0]!r}, which is the name of a column that "
            "the source adds; rename the field"
        )
    return Fields(schema, undated, long, boolean)


def _refuse_broken(rows: pl.LazyFrame, records: Records, place: str) -> None:
    """
    Refuse documents that are not JSON objects.

    :raises BadDataError: where a document is no JSON object: without an instant it would pass for not yet known
    """
    document = pl.col(DOCUMENT)
    whole = document.str.contains(r"^\s*\{") & document.str.json_path_match("$").is_not_null()
    broken = rows.select(document.filter(~whole).first().str.slice(0, 80)).collect(engine="streaming").item()
    if broken is not None:
        raise BadDataError(
            f"source {records.source!r}: cannot read {place}: {broken!r} is no JSON object; was it written to the end?"
        )


def _with_instants(rows: pl.LazyFrame, records: Records) -> pl.LazyFrame:
    """Add the instants that stand inside the documents, as columns of text."""
    inside = [name for name in records.instants if name not in rows.collect_schema()]
    return rows.with_columns(pl.col(DOCUMENT).str.json_path_match(f"$['{name}']").alias(name) for name in inside)


def _known_documents(rows: pl.LazyFrame, records: Records) -> pl.LazyFrame:
    """
    Keep the known rows only, which alone may decide the types: one of the future would make the past look different.
    """
    columns = rows.collect_schema().names()
    return records.known(_with_instants(rows, records)).select(columns)


def merged(one: pl.Schema, other: pl.Schema) -> pl.Schema:
    """Return the columns of both schemas, with types that hold the values of both."""
    return pl.concat([pl.DataFrame(schema=one), pl.DataFrame(schema=other)], how="diagonal_relaxed").schema


def by_name(schema: pl.Schema) -> pl.Schema:
    """
    Sort fields by name, nested ones too: the fields of a JSON object have no order, and the order in which documents
    happen to show them must not decide the snapshot's version.
    """

    def ordered(dtype: pl.DataType) -> pl.DataType:
        match dtype:
            case pl.Struct(fields=fields):
                return pl.Struct({f.name: ordered(f.dtype) for f in sorted(fields, key=lambda f: f.name)})  # type: ignore[arg-type]
            case pl.List(inner=inner):
                return pl.List(ordered(inner))  # type: ignore[arg-type]
        return dtype

    return pl.Schema({name: ordered(schema[name]) for name in sorted(schema)})


@dataclass(frozen=True, slots=True)
class Survey:
    """Result of a first look at a piece, before it is read."""

    schema: pl.Schema
    num_rows: int
    """Number of known rows, of whatever key."""
    shown: Mapping[str, Shown]
    """Type that each column of text shows, for the columns whose type is inferred from their known values."""
    undated: Mapping[str, int]
    """Number of rows that have no instant, by the column that should hold it: they are never known."""
    numbers: Mapping[str, Numbers]
    """What each column of text whose type is inferred holds of numbers."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """How much of a column of text is numbers."""

    num_values: int
    num_numbers: int
    other: str | None
    """The first value that is none; None if all are."""
    long: str | None
    """The first whole number that a float would change; None if there is none."""

    def __add__(self, more: Numbers) -> Numbers:
        return Numbers(
            self.num_values + more.num_values,
            self.num_numbers + more.num_numbers,
            more.other if self.other is None else self.other,
            more.long if self.long is None else self.long,
        )

    @property
    def spoilt_by(self) -> str | None:
        """The value for which the column is text, though most of its values are numbers, or it is one with a comma."""
        if self.other is not None and has_comma(self.other):
            return self.other
        return self.other if 2 * self.num_numbers >= self.num_values else None


def survey(piece: Piece, records: Records, types: Mapping[str, str], text: bool) -> Survey:
    """
    Look at a piece before it is read for good.

    :param types: the types that the user gave
    :param text: whether columns of text are to get the types that their values show
    :raises BadDataError: if a column is missing, an instant is not one, a key is null, or a value is not of its type
    """
    with reading(records.source, piece.place):
        rows = piece()
        schema = rows.collect_schema()
        records.check(schema)
        for name in set(types) - set(schema):
            raise BadDataError(
                f"source {records.source!r}: {piece.place} has no column {name!r}, which types names; "
                f"it has {', '.join(schema)}"
            )
        undated = {name: _refuse_unreadable(rows, records, name) for name in records.instants}
        known = records.known(rows)
        # A key stays as it is written: as numbers 0123 and 123 would be one thing.
        settled = {*types, *records.instants, *records.key}
        open_columns = [c for c in schema if text and schema[c] == pl.String and c not in settled]
        found = known.select(
            pl.len().alias("rows"),
            *(pl.col(name).null_count().alias(f"null {name}") for name in records.key),
            *(_unfit(name, schema[name], wanted, records).alias(f"unfit {name}") for name, wanted in types.items()),
            *(count for name in open_columns for count in _counts(name, records.decimal)),
        )
        counted = found.collect(engine="streaming").row(0, named=True)
    for name in records.key:
        if nulls := counted[f"null {name}"]:
            raise BadDataError(f"source {records.source!r}: {piece.place} has {nulls} rows whose key {name!r} is null")
    for name, wanted in types.items():
        if (example := counted[f"unfit {name}"]) is not None:
            raise BadDataError(
                f"source {records.source!r}: {piece.place} has {example!r} in column {name!r}, which is no {wanted}; "
                "correct it, or types"
            )
    numbers = {
        name: Numbers(*(counted[f"{what} {name}"] for what in ("values", "float64", "other", "long")))
        for name in open_columns
    }
    return Survey(schema, counted["rows"], {name: _shown(name, counted) for name in open_columns}, undated, numbers)


def converted(name: str, dtype: pl.DataType, wanted: str, records: Records) -> pl.Expr:
    """Convert a column to another type, as the source writes it; null where a value does not fit."""
    column, target = pl.col(name), TYPES[wanted]
    if wanted == "datetime":
        return instant(name, dtype, records.time_zone)
    if dtype == pl.String and wanted == "date":
        return column.str.to_date(strict=False)
    if isinstance(dtype, pl.Datetime) and wanted == "date":
        # A cast would give the day in UTC.
        zone = records.time_zone if dtype.time_zone is not None else None
        return (column.dt.convert_time_zone(zone) if zone else column).dt.date()
    if dtype == pl.String and wanted == "boolean":
        # With the numbers that a column of numbers may hold, for one that holds both is text.
        lower = column.str.to_lowercase()
        return pl.when(lower.is_in(["true", "false", "1", "0"])).then(lower.is_in(["true", "1"]))
    if dtype == pl.String and target.is_numeric():
        column = numeral(column, records.decimal)
    if dtype == pl.String and target.is_integer():
        # A column of whole numbers that some program holds as floats is written 180.0.
        return column.str.replace(_NO_FRACTION, "").cast(target, strict=False)
    return column.cast(target, strict=False)


def common(shown: Mapping[str, Shown], other: Mapping[str, Shown]) -> dict[str, Shown]:
    """Return for each column the type that holds the values of both pieces."""
    result = dict(shown)
    for name, kind in other.items():
        before = result.get(name, "null")
        if "null" in (before, kind):
            result[name] = kind if before == "null" else before
        elif before != kind:
            result[name] = _COMMON.get(frozenset((before, kind)), "string")
    return result


def _refuse_unreadable(rows: pl.LazyFrame, records: Records, name: str) -> int:
    """
    Refuse a column that does not hold instants only.

    :return: in how many rows it holds nothing
    :raises BadDataError: where it holds something that is no instant
    """
    dtype, column = rows.collect_schema()[name], pl.col(name)
    unreadable = column.filter(records.instant(name, dtype).is_null() & column.is_not_null()).first().cast(pl.String)
    looked = rows.select(example=unreadable, missing=column.null_count()).collect(engine="streaming")
    example, missing = looked.row(0)
    if example is not None:
        setting = "event_time" if name == records.event_time else "created_time"
        where = f"ingest.sources.{records.source}"
        if records.epoch is not None:
            raise BadDataError(
                f"source {records.source!r}: {setting} {name!r} holds {example!r}, which is not an instant in "
                f"{records.epoch} since 1970; correct it, or {where}.epoch"
            )
        raise BadDataError(
            f"source {records.source!r}: {setting} {name!r} holds {example!r}, which is not an instant; write it in "
            f"ISO 8601 with its offset, e.g. 2013-01-31T10:00:00Z, or set {where}.time_zone for times and dates "
            f"without one, or {where}.epoch for numbers since 1970"
        )
    return int(missing)


def _unfit(name: str, dtype: pl.DataType, wanted: str, records: Records) -> pl.Expr:
    """Return the first value that is not of the wanted type, as text."""
    column = pl.col(name)
    unfit = column.is_not_null() & converted(name, dtype, wanted, records).is_null()
    if (dtype.is_float() or dtype.is_decimal()) and TYPES[wanted].is_integer():
        unfit |= column != column.round()  # a cast would cut the fraction off
    if dtype.is_numeric() and wanted == "boolean":
        unfit |= (column != 0) & (column != 1)  # a cast would make all others true
    return column.filter(unfit).first().cast(pl.String, strict=False)


def _counts(name: str, decimal: str) -> list[pl.Expr]:
    column = pl.col(name)
    number = numeral(column, decimal)
    # NaN is no number here: it counts as one neither for the type nor for the note that says why the column is text.
    is_number = number.cast(pl.Float64, strict=False).is_not_nan().fill_null(False)
    return [
        column.count().alias(f"values {name}"),
        number.cast(pl.Int64, strict=False).count().alias(f"int64 {name}"),
        column.filter(is_long(number)).first().str.slice(0, 80).alias(f"long {name}"),
        is_number.sum().alias(f"float64 {name}"),
        column.filter(~is_number & column.is_not_null()).first().str.slice(0, 80).alias(f"other {name}"),
        column.is_in(["true", "false", "True", "False", "TRUE", "FALSE"]).sum().alias(f"boolean {name}"),
    ]


def _shown(name: str, counted: Mapping[str, Any]) -> Shown:
    values = counted[f"values {name}"]
    if values == 0:
        return "null"
    has_long = counted[f"long {name}"] is not None
    if counted[f"int64 {name}"] == values:
        return "long" if has_long else "int64"
    # Long whole numbers are names of something: as floats they would lose digits, and two be one.
    if counted[f"float64 {name}"] == values and not has_long:
        return "float64"
    return "boolean" if counted[f"boolean {name}"] == values else "string"
