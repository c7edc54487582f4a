"""
True and false beside numbers in JSON: as no type holds both, such a field is text.

Polars makes 1 of true beside whole numbers, and text beside fractions; beside both it is one or the other by chance,
which would give equal rows another version at each read.
"""

from __future__ import annotations

import polars as pl

from mlops.data.engine.dtypes import instance_of
from mlops.data.sources.long_numbers import FieldPath, leaves


def boolean_fields(documents: pl.Series, decoded: pl.Series) -> set[FieldPath]:
    """
    Return the fields that hold true or false, except beside words, where they are text anyway.

    :param documents: JSON objects
    :param decoded: the same, as structs; booleans that stand beside numbers are numbers or text already
    """
    kinds = dict(leaves(decoded))
    found = {
        path
        for path, values in kinds.items()
        if values.dtype == pl.Boolean or (values.dtype == pl.String and _is_mixed(values))
    }
    numeric = {path for path, values in kinds.items() if values.dtype.is_numeric()}
    some = documents.filter(documents.str.contains("true|false"))
    if not numeric or some.is_empty():
        return found
    # Once more, with numbers as text, in which a true among them is still one.
    written = some.str.json_decode(_numbers_as_text(decoded.dtype))
    return found | {path for path, values in leaves(written) if path in numeric and _booleans(values).any()}


def _is_mixed(values: pl.Series) -> bool:
    """Tell whether texts are both booleans and numbers, and nothing else."""
    booleans = _booleans(values)
    others = values.filter(~booleans)
    return bool(booleans.any() and len(others) and others.cast(pl.Float64, strict=False).is_not_null().all())


def _booleans(values: pl.Series) -> pl.Series:
    return values.is_in(["true", "false"]).fill_null(False)


def _numbers_as_text(dtype: pl.DataType) -> pl.DataType:
    match dtype:
        case pl.Struct(fields=fields):
            return pl.Struct({each.name: _numbers_as_text(instance_of(each.dtype)) for each in fields})
        case pl.List(inner=inner):
            return pl.List(_numbers_as_text(instance_of(inner)))
    return pl.String() if dtype.is_numeric() else dtype
