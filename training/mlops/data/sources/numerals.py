"""Numbers as text, with a point or with a comma before their fraction."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

_WITH_COMMA: Final = r"^\s*[+-]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?([eE][+-]?\d+)?\s*$"
"""A number with a comma before its fraction, and points between thousands."""


def numeral(text: pl.Expr, decimal: str) -> pl.Expr:
    """
    Return text such as a cast to a number takes it.

    :param decimal: what stands before a fraction. With ``,`` points stand between thousands, and text with other points
        is no number: null
    """
    if decimal == ".":
        return text
    pointed = text.str.strip_chars().str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    fits = text.str.contains(_WITH_COMMA)
    return pl.when(fits).then(pointed).when(~text.str.contains(".", literal=True)).then(text)


def has_comma(text: str) -> bool:
    """Tell whether a text is a number with a comma."""
    return "," in text and re.search(_WITH_COMMA, text) is not None
