"""
True and false beside numbers in JSON: as no type holds both, such a field is text.

Polars makes 1 of true beside whole numbers, and text beside fractions; beside both it is one or the other by chance,
which would give equal rows another version at each read.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from mlops.data.sources.long_numbers import FieldPath, leaves, retyped


def boolean_fields(documents: pl.Series, dtype: pl.DataType, fields: Mapping[FieldPath, pl.Series]) -> set[FieldPath]:
    """
    Return the fields that hold true or false, except beside words, where they are text anyway.

    :param documents: JSON objects
    :param dtype: the type that they were decoded to
    :param fields: their :func:`leaves`; booleans that stand beside numbers are numbers or text already
    """
    some = documents.filter(documents.str.contains("true|false"))
    if some.is_empty():
        return set()
    found = {
        path
        for path, values in fields.items()
        if values.dtype == pl.Boolean or (values.dtype == pl.String and _is_mixed(values))
    }
    numeric = {path for path, values in fields.items() if values.dtype.is_numeric()}
    if not numeric:
        return found
    # Once more, with numbers as text, in which a true among them is still one.
    written = some.str.json_decode(retyped(dtype, lambda leaf, _: pl.String() if leaf.is_numeric() else leaf))
    return found | {path for path, values in leaves(written) if path in numeric and _booleans(values).any()}


def _is_mixed(values: pl.Series) -> bool:
    """Tell whether texts are both booleans and numbers, and nothing else but nulls."""
    booleans = _booleans(values)
    if not booleans.any():
        return False
    others = values.filter(~booleans)  # without nulls, of which is_in says neither
    return bool(len(others) and others.cast(pl.Float64, strict=False).is_not_null().all())


def _booleans(values: pl.Series) -> pl.Series:
    return values.is_in(["true", "false"])
