"""
Whole numbers that a float would change: from 2^53 on floats are further apart than 1, so that two ids become one.

Where a column holds such numbers beside fractions, no type of numbers holds both, and it is text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import polars as pl

from mlops.data.engine.dtypes import instance_of

LIMIT: Final = 2**53
"""The first whole number of which a float cannot hold the next. Number and limit may be negative."""
_DIGITS: Final = r"\d{16}"
_WHOLE: Final = rf"^[+-]?{_DIGITS}\d*(\.0*)?$"

FieldPath = tuple[str | None, ...]
"""Names of fields from the outside in; None stands for the elements of a list."""


def is_long(number: pl.Expr) -> pl.Expr:
    """Tell which texts are whole numbers that a float would change; see :func:`mlops.data.sources.numerals.numeral`."""
    return number.str.contains(_WHOLE) & (number.cast(pl.Float64, strict=False).abs() >= LIMIT)


def long_fields(documents: pl.Series, fields: Mapping[FieldPath, pl.Series]) -> dict[FieldPath, int]:
    """
    Return the fields with whole numbers that a float would change, each with one of them.

    :param documents: JSON objects
    :param fields: their :func:`leaves`; numbers that stand beside fractions are floats already
    """
    found: dict[FieldPath, int] = {}
    for path, values in fields.items():
        if not values.dtype.is_numeric():
            continue
        long = values.filter((values >= LIMIT) | (values <= -LIMIT))
        if long.is_empty():
            continue
        if values.dtype.is_integer():
            found[path] = int(long[0])
            continue
        for document in documents.filter(documents.str.contains(_DIGITS)):
            written = _at(json.loads(document.removeprefix("\ufeff")), path)
            if (number := next((each for each in written if abs(each) >= LIMIT), None)) is not None:
                found[path] = number
                break
    return found


def with_text(
    schema: pl.Schema, long: Mapping[FieldPath, int], boolean: Set[FieldPath]
) -> tuple[pl.Schema, list[FieldPath]]:
    """
    Make text of those fields of which no type of numbers holds all values.

    :param long: fields with whole numbers that a float would change
    :param boolean: fields with true or false
    :return: the schema, and the fields of it that are text for that
    """
    changed: list[FieldPath] = []

    def exact(dtype: pl.DataType, path: FieldPath) -> pl.DataType:
        if (dtype.is_float() and path in long) or (dtype != pl.Boolean and path in boolean):
            changed.append(path)
            return pl.String()
        return dtype

    return pl.Schema({name: retyped(dtype, exact, (name,)) for name, dtype in schema.items()}), changed


def leaves(values: pl.Series, path: FieldPath = ()) -> Iterator[tuple[FieldPath, pl.Series]]:
    """Return the fields of structs that are no structs or lists themselves, each with its values."""
    match values.dtype:
        case pl.Struct(fields=fields):
            for field in fields:
                yield from leaves(values.struct.field(field.name), (*path, field.name))
        case pl.List():
            yield from leaves(values.explode(), (*path, None))
        case _:
            yield path, values


def retyped(
    dtype: pl.DataType, change: Callable[[pl.DataType, FieldPath], pl.DataType], path: FieldPath = ()
) -> pl.DataType:
    """Return a type with others for its :func:`leaves`, which ``change`` gives by type and path."""
    match dtype:
        case pl.Struct(fields=fields):
            return pl.Struct({f.name: retyped(instance_of(f.dtype), change, (*path, f.name)) for f in fields})
        case pl.List(inner=inner):
            return pl.List(retyped(instance_of(inner), change, (*path, None)))
    return change(dtype, path)


def _at(value: Any, path: Sequence[str | None]) -> Iterator[int]:
    """Return the whole numbers that stand at a path."""
    if not path:
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
        return
    name, *rest = path
    if name is None:
        for element in value if isinstance(value, list) else ():
            yield from _at(element, rest)
    elif isinstance(value, dict) and name in value:
        yield from _at(value[name], rest)
