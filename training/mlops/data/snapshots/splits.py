"""
Splits of a snapshot: which rows the model is fitted on, which choose its best epoch, and which judge it.

By time, what is held out is newer than everything that is fitted on, as it will be in production. By key, it is other
entities: all rows of a user, say, are in one split, and stay in it in every later snapshot. By row, it is any rows,
which stay in their split likewise. Or the data says itself what is held out.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import polars as pl

from mlops.contract.grain import Grain, counted
from mlops.contract.sections.ingest import (
    SPLIT_COLUMN,
    AnySplit,
    GivenSplit,
    KeySplit,
    RowSplit,
    SourceSplit,
    TimeSplit,
)
from mlops.contract.step import BadDataError
from mlops.data.engine.dtypes import instance_of

SPLITS: Final = ("train", "validation", "test")
_WHOLE_IN_JSON: Final = r"(\d)\.0([,\]}]|$)"
INDEX: Final = "split"
"""Name of the column of an index: the name of each row's split."""


def periods_of(periods: Sequence[str], split: TimeSplit, grain: Grain) -> dict[str, list[str]]:
    """
    Deal out a snapshot's periods.

    :param periods: names of those that have rows
    :return: periods of ``train``, ``validation`` and ``test``, oldest first; none is in two of them
    :raises BadDataError: where none is left to train on
    """
    ordered = sorted(set(periods))
    num_train = len(ordered) - split.validation - split.test
    if num_train < 1:
        raise BadDataError(
            f"the snapshot has {counted(len(ordered), grain)} with rows, too few for a validation of "
            f"{split.validation}, a test of {split.test}, and one to train on; raise ingest.window, or start the "
            "pipeline where its sources reach further back"
        )
    test_start = len(ordered) - split.test
    return {
        "train": ordered[:num_train],
        "validation": ordered[num_train:test_start],
        "test": ordered[test_start:],
    }


def index_of(rows: pl.DataFrame, split: AnySplit, period: str) -> pl.DataFrame:
    """
    Return the split of each row, which follows from the row alone: it is the same on any day and machine.

    :return: one column, :data:`INDEX`
    :raises BadDataError: where a column that the split needs is missing, no text or whole number, or null; or says
        something that is no split
    """
    match split:
        case KeySplit() | RowSplit():
            keys = _texts(rows, split.key, "key", period) if isinstance(split, KeySplit) else _as_texts(rows)
            return _dealt(keys, {"test": split.test, "validation": split.validation})
        case GivenSplit():
            said = _texts(rows, split.column, "column", period)
            unknown = said.filter(~said.is_in(list(split.names)))
            if len(unknown):
                raise BadDataError(
                    f"ingest.split.column {split.column!r} is {unknown[0]!r} in {len(unknown)} of {period}'s "
                    f"{rows.height} rows; say in ingest.split.names what that means, e.g. {{{unknown[0]}: validation}}"
                )
            given = said.replace_strict(split.names, return_dtype=pl.String)
        case SourceSplit():
            given = rows[SPLIT_COLUMN]
        case _:
            raise TypeError(f"{type(split).__name__} deals out whole periods")
    if split.validation is None:
        return given.alias(INDEX).to_frame()
    keys = _as_texts(rows) if split.key is None else _texts(rows, split.key, "key", period)
    drawn = _dealt(keys, {"validation": split.validation})[INDEX]
    return pl.select(pl.when(given == "train").then(drawn).otherwise(given).alias(INDEX))


def _texts(rows: pl.DataFrame, column: str, setting: str, period: str) -> pl.Series:
    """
    Return a column as text.

    :param setting: that names it
    """
    if column not in rows.columns:
        raise BadDataError(
            f"the table has no column {column!r}, which ingest.split.{setting} names; it has {', '.join(rows.columns)}"
        )
    values = rows[column]
    if not (values.dtype == pl.String or values.dtype.is_integer()):
        raise BadDataError(
            f"ingest.split.{setting} {column!r} is {values.dtype}; a {setting} is text or a whole number"
        )
    if num_nulls := values.null_count():
        raise BadDataError(
            f"ingest.split.{setting} {column!r} is null in {num_nulls} of {period}'s {rows.height} rows; "
            f"leave them out in ingest.transform, or give them a {setting}"
        )
    return values.cast(pl.String)


def _as_texts(rows: pl.DataFrame) -> pl.Series:
    """
    Return each row as text, without instants: an undated table has another one every night. A whole number is the same
    text in a column of floats: one fraction more in a column of whole numbers changes that row alone.
    """
    kept = [name for name, dtype in rows.schema.items() if not isinstance(dtype, pl.Datetime)] or rows.columns
    parts = []
    for has_floats, names in itertools.groupby(kept, lambda name: _holds_floats(rows.schema[name])):
        if has_floats:
            parts += [_fields_with_floats(name, rows.schema[name]) for name in names]
        else:
            parts.append(
                _fields(pl.col(name).bin.encode("hex") if rows.schema[name] == pl.Binary else name for name in names)
            )
    return rows.select("{" + pl.concat_str(parts, separator=",") + "}").to_series()


def _holds_floats(dtype: pl.DataType) -> bool:
    match dtype:
        case pl.Struct(fields=fields):
            return any(_holds_floats(instance_of(each.dtype)) for each in fields)
        case pl.List(inner=inner) | pl.Array(inner=inner):
            return _holds_floats(instance_of(inner))
    return dtype.is_float()


def _fields(columns: Iterable[str | pl.Expr]) -> pl.Expr:
    """Return the fields of a row's JSON, without the braces."""
    return pl.struct(*columns).struct.json_encode().str.strip_prefix("{").str.strip_suffix("}")


def _fields_with_floats(name: str, dtype: pl.DataType) -> pl.Expr:
    field = _fields([name])
    if not dtype.is_float():
        return field.str.replace_all(_WHOLE_IN_JSON, "$1$2")
    value = pl.col(name)
    # NaN and the infinities are not below the bound; each whole float below it is an integer of 64 bits.
    is_whole = (value == value.floor()) & (value.abs() < 2.0**63)
    key = pl.select(_fields([pl.lit(None).alias(name)])).item().removesuffix("null")
    whole = pl.lit(key) + value.cast(pl.Int64, strict=False).cast(pl.String)
    return pl.when(is_whole).then(whole).otherwise(field)


def _dealt(keys: pl.Series, shares: Mapping[str, float]) -> pl.DataFrame:
    """
    Deal keys out to splits; what is left of them is to train on.

    :param shares: of the keys, by split
    """
    text = keys.alias("key").to_frame()
    distinct = text.unique()
    # Where a key lies among all keys. Not by Polars' hash, which may change with its version.
    digests = [hashlib.sha256(key.encode()).digest()[:8] for key in distinct["key"].to_list()]
    place = pl.Series(digests, dtype=pl.Binary).bin.reinterpret(dtype=pl.UInt64, endianness="big")
    split, upper = pl.lit("train"), 0.0
    bounds = {}
    for name, share in shares.items():
        upper += share
        bounds[name] = int(upper * 2**64)
    for name in reversed(bounds):
        split = pl.when(place < bounds[name]).then(pl.lit(name)).otherwise(split)
    names = distinct.with_columns(split.alias(INDEX))
    return text.join(names, on="key", how="left", maintain_order="left").select(INDEX)
