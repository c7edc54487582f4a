"""The schema that the first run proposes: the data fits it, whatever it is, and its head says what is to be decided."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from mlops.contract.grain import Periods
from mlops.validation.first_schema import Described, first_schema
from mlops.validation.rows import Rows
from mlops.validation.schema import proposed_schema

DAYS = ("2013-02-07", "2013-02-08", "2013-02-09")


def any_column(draw: random.Random, num_rows: int, newest: int) -> pl.Series:
    """A column as somebody may bring it; often its newest day is another than those before."""
    make, dtype = draw.choice(
        [
            (lambda n: n, pl.Int64),
            (lambda n: n % 2 == 0, pl.Boolean),
            (lambda n: draw.choice([0.5 * n, math.nan]), pl.Float64),
            (lambda n: draw.choice([0.5 * n, math.inf, -math.inf]), pl.Float32),
            (lambda _: math.nan, pl.Float64),
            (lambda _: "same", pl.String),
            (lambda n: str(n % 60), pl.String),
            (lambda n: f'Köln }} # " {n % 7}\n', pl.String),
            (lambda _: "", pl.String),
            (lambda n: date(2013, 1, 1) + timedelta(days=n), pl.Date),
            (lambda n: timedelta(seconds=n), pl.Duration("us")),
            (lambda _: None, draw.choice([pl.Null, pl.String, pl.Float64, pl.Datetime("us", "UTC"), pl.Boolean])),
        ]
    )
    missing = draw.choice([0.0, 0.0, 0.01, 0.3, 0.97])
    values = [None if draw.random() < missing else make(row) for row in range(num_rows)]
    if draw.random() < 0.3:
        values[-newest:] = [None] * newest
    return pl.Series(values, dtype=dtype)


def described(columns: dict[str, pl.Series], sizes: tuple[int, ...]) -> Described:
    frames, start = {}, 0
    for day, size in zip(DAYS, sizes, strict=True):
        noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
        frame = pl.DataFrame({name: column.slice(start, size) for name, column in columns.items()})
        frames[day] = frame.with_columns(departure=pl.Series([noon + timedelta(seconds=row) for row in range(size)]))
        start += size
    rows = Rows(
        whole=pl.concat(frame.lazy() for frame in frames.values()),
        num_rows={day: frame.height for day, frame in frames.items()},
        event_time="departure",
        kind=Periods("day", "UTC"),
    )
    return Described.of(rows)


@pytest.mark.parametrize("seed", range(60))
def test_the_data_fits_what_was_proposed_from_it(seed):
    """Broken: the first run would fail for want of a better proposal."""
    draw = random.Random(seed)
    sizes = tuple(draw.choice([1, 3, 40, 400]) for _ in DAYS)
    columns = {f"column {number}": any_column(draw, sum(sizes), sizes[-1]) for number in range(8)}
    data = described(columns, sizes)
    text = first_schema(data)
    assert [anomaly.line for anomaly in data.anomalies(proposed_schema(text.encode(), "schema.pbtxt"))] == [], text


def test_what_a_person_must_decide_stands_at_the_head():
    rows = 300
    text = first_schema(
        described(
            {
                "tip": pl.Series([None] * rows, dtype=pl.Float64),
                "gate": pl.Series([1.0] + [None] * (rows - 1)),
                "nan": pl.Series([math.nan] * rows),
                "country": pl.Series(["CH"] * rows),
                "version": pl.Series([2] * rows),
                "city": pl.Series(["Zug"] + ["Bern", "Chur"] * (rows // 2))[:rows],
                "flag": pl.Series(["yes", "no"] * (rows // 2)),
                "fare": pl.Series(range(rows)),
            },
            (100, 100, 100),
        )
    )
    head = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    assert "columns tip, nan without any value" in head
    assert "column gate with a value in less than half of the rows" in head
    assert "columns country ('CH'), version (2) of which each value is the same" in head
    assert "column city ('Zug' in 1) with values in so few rows" in head
    assert "flag" not in head
    assert "fare" not in head
    assert max(len(line) for line in text.splitlines() if line.startswith("#")) <= 120
