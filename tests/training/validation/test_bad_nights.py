"""
Ways in which a night's rows can be other than what is expected of them, each with what the user is told:
``golden/bad_nights.txt``. Of tables that cannot be read or used at all, see ``test_bad_tables.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mlops.validation.schema import Schema

GOLDEN = Path(__file__).parents[1] / "golden/bad_nights.txt"
NEWEST = "2013-02-09"
Change = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Case:
    newest: Change = lambda rows: rows
    """Of the newest day."""
    every: Change = lambda rows: rows
    """Of every day."""
    settings: Mapping[str, Any] = field(default_factory=dict)


def only(value: pl.Expr, column: str, share: int = 2) -> pl.Expr:
    """Another value in a row of so many."""
    return pl.when(pl.int_range(pl.len()) % share == 0).then(value).otherwise(column).alias(column)


CASES = {
    "a column renamed": Case(every=lambda rows: rows.rename({"carrier": "airline"})),
    "a column gone": Case(every=lambda rows: rows.drop("gust")),
    "a column more": Case(every=lambda rows: rows.with_columns(gate=pl.lit(3))),
    "whole numbers with fractions": Case(every=lambda rows: rows.with_columns(pl.col("distance") + 0.5)),
    "numbers as text": Case(every=lambda rows: rows.with_columns(pl.col("distance").cast(pl.String))),
    "text as numbers": Case(every=lambda rows: rows.with_columns(carrier=pl.lit(7))),
    "a flag as text": Case(every=lambda rows: rows.with_columns(pl.col("cancelled").cast(pl.String))),
    "a value that nobody knows": Case(lambda rows: rows.with_columns(only(pl.lit("ZZ"), "carrier", 10))),
    "values in other letters": Case(every=lambda rows: rows.with_columns(pl.col("carrier").str.to_lowercase())),
    "values with a space": Case(every=lambda rows: rows.with_columns(pl.col("carrier") + " ")),
    "miles that became metres": Case(lambda rows: rows.with_columns(pl.col("distance") * 1609)),
    "a number for what is missing": Case(lambda rows: rows.with_columns(only(pl.lit(-999), "distance", 10))),
    "no number": Case(lambda rows: rows.with_columns(only(pl.lit(float("nan")), "gust", 10))),
    "missing in every row": Case(lambda rows: rows.with_columns(carrier=pl.lit(None, pl.String))),
    "missing in some rows": Case(lambda rows: rows.with_columns(only(pl.lit(None, pl.Int64), "distance", 10))),
    "missing more often": Case(lambda rows: rows.with_columns(only(pl.lit(None, pl.Float64), "gust", 1))),
    "empty texts": Case(lambda rows: rows.with_columns(carrier=pl.lit(""))),
    "no rows": Case(lambda rows: rows.clear()),
    "few rows": Case(lambda rows: rows.head(30)),
    "all rows twice": Case(lambda rows: pl.concat([rows, rows])),
    "a key twice": Case(
        lambda rows: pl.concat([rows.head(98), rows.head(2)]), settings={"unique": [["departure"]]}
    ),
    "rows that are old": Case(
        lambda rows: rows.with_columns(pl.col("departure") - timedelta(hours=11)), settings={"max_age_hours": 12.0}
    ),
    "a carrier that is gone": Case(
        lambda rows: rows.with_columns(carrier=pl.lit("AA")), settings={"slices": ["carrier"]}
    ),
    "a slice of each row": Case(
        every=lambda rows: rows.with_columns(carrier=pl.format("{}", pl.int_range(pl.len()) + pl.col("distance") * 7)),
        settings={"slices": ["carrier"]},
    ),
    "a column that nobody has": Case(settings={"slices": ["carier"]}),
}  # fmt: skip


def golden() -> dict[str, str]:
    sections = GOLDEN.read_text().split("## ")[1:]
    return {title: message.strip() for title, _, message in (section.partition("\n") for section in sections)}


def told(case: Case, frames: Mapping[str, pl.DataFrame], days: list[str], schema: Schema, examined: Any) -> str:
    changed = {day: case.every(rows) for day, rows in frames.items()}
    changed[NEWEST] = case.newest(changed[NEWEST])
    try:
        verdict = examined(changed, days, schema, **case.settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "\n".join(anomaly.line for anomaly in verdict.anomalies) or "passed"


@pytest.mark.parametrize("name", CASES)
def test_the_user_is_told(
    name: str, frames: Mapping[str, pl.DataFrame], days: list[str], schema: Schema, examined: Any
) -> None:
    found = told(CASES[name], frames, days, schema, examined)
    assert found == golden()[name], f"if the change is meant, write it to {GOLDEN}"


def test_the_golden_file_has_each_case() -> None:
    assert list(golden()) == list(CASES)
