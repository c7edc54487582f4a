"""Polars types as text, and back: ``str`` gives the text that manifests hold."""

from __future__ import annotations

import ast

import polars as pl


def dtype_of(text: str) -> pl.DataType:
    """
    Return the type that ``str`` made the text of, e.g. ``Datetime(time_unit='us', time_zone='UTC')``.

    :raises ValueError: where it is not the text of a Polars type
    """
    dtype = _value(ast.parse(text, mode="eval").body)
    if isinstance(dtype, type) and issubclass(dtype, pl.DataType):
        return dtype()
    if not isinstance(dtype, pl.DataType):
        raise ValueError(f"{text!r} is not the text of a Polars type")
    return dtype


def instance_of(dtype: object) -> pl.DataType:
    """Return the type itself of what Polars has in a nested type: the type, or its class."""
    return dtype if isinstance(dtype, pl.DataType) else dtype()  # type: ignore[operator]


def zone_of(dtype: pl.DataType) -> str | None:
    """Return the time zone of instants; None for times without one, and for other types."""
    return dtype.time_zone if isinstance(dtype, pl.Datetime) else None


def _value(node: ast.expr) -> object:
    match node:
        case ast.Name(id=name) if isinstance(getattr(pl, name, None), type):
            return getattr(pl, name)
        case ast.Call(func=ast.Name() as name, args=args, keywords=keywords):
            kind = _value(name)
            assert isinstance(kind, type), "only types are called in the text of a type"
            return kind(*map(_value, args), **{str(k.arg): _value(k.value) for k in keywords})
        case ast.Dict(keys=keys, values=values):
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(map(_value, items))
        case ast.Constant(value=value):
            return value
    raise ValueError(f"{ast.unparse(node)!r} has no place in the text of a Polars type")
