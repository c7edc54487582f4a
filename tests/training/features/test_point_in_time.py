from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from training.features.point_in_time import last_known, trailing_sums


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


OBSERVATIONS = pl.LazyFrame(
    {"station": ["a", "a", "b"], "seen": [at(8), at(10), at(9)], "temp": [1.0, 2.0, 3.0]},
)


@pytest.mark.parametrize(
    ("station", "time", "temp"),
    [
        pytest.param("a", at(9, 59), 1.0, id="newest before"),
        pytest.param("a", at(10), 1.0, id="not of the same instant"),
        pytest.param("a", at(10, 1), 2.0, id="a minute later"),
        pytest.param("b", at(10, 1), 3.0, id="of its own key"),
        pytest.param("a", at(7), None, id="nothing yet"),
        pytest.param("a", at(13, 1), None, id="too old"),
        pytest.param("c", at(10), None, id="unknown key"),
    ],
)
def test_last_known(station: str, time: datetime, temp: float | None) -> None:
    """Otherwise a row would be joined with what was not known at its time."""
    rows = pl.LazyFrame({"station": [station], "time": [time]})

    joined = last_known(
        rows, OBSERVATIONS, time="time", observed="seen", by=["station"], tolerance=timedelta(hours=3)
    ).collect()

    assert joined.columns == ["station", "time", "temp"]
    assert joined["temp"].to_list() == [temp]


def test_last_known_keeps_the_rows_in_their_order() -> None:
    rows = pl.LazyFrame({"station": ["a", "b", "a"], "time": [at(12), at(10), at(9)], "row": [0, 1, 2]})

    joined = last_known(
        rows, OBSERVATIONS, time="time", observed="seen", by=["station"], tolerance=timedelta(hours=3)
    ).collect()

    assert joined["row"].to_list() == [0, 1, 2]
    assert joined["temp"].to_list() == [2.0, 3.0, 1.0]


def sums_at(day: date, events: pl.LazyFrame) -> tuple[int, int]:
    rows = pl.LazyFrame({"key": ["a"], "day": [day]})
    summed = trailing_sums(
        rows, events, day="day", days=3, by=["key"], sums={"num": pl.col("x").is_not_null(), "total": pl.col("x")}
    ).collect()
    return summed.select("num", "total").row(0)


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        pytest.param(date(2024, 1, 1), (0, 0), id="not its own day"),
        pytest.param(date(2024, 1, 2), (1, 1), id="the day before"),
        pytest.param(date(2024, 1, 4), (2, 11), id="all three days"),
        pytest.param(date(2024, 1, 5), (1, 10), id="the oldest falls out"),
        pytest.param(date(2024, 1, 9), (0, 0), id="none left"),
    ],
)
def test_trailing_sums_see_the_days_before_only(day: date, expected: tuple[int, int]) -> None:
    """Otherwise a row would know the outcomes of its own day."""
    events = pl.LazyFrame(
        {
            "key": ["a", "a", "a", "b", "a"],
            "day": [date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 3), date(2024, 1, 2), date(2024, 1, 20)],
            "x": [1, 10, None, 500, 7],
        }
    )

    assert sums_at(day, events) == expected


def test_trailing_sums_against_a_plain_loop() -> None:
    """The fast way must count as the definition does, on many keys, days and ties."""
    days = [date(2024, 1, 1) + timedelta(days=i * i % 23) for i in range(300)]
    keys = [f"k{i * 7 % 11}" for i in range(300)]
    values = [i * 13 % 17 for i in range(300)]
    events = pl.LazyFrame({"key": keys, "day": days, "x": values})

    summed = trailing_sums(events, events, day="day", days=5, by=["key"], sums={"total": pl.col("x")}).collect()

    expected = [
        sum(v for k, d, v in zip(keys, days, values, strict=True) if k == key and timedelta() < day - d <= timedelta(5))
        for key, day in zip(keys, days, strict=True)
    ]
    assert summed["total"].to_list() == expected
    assert summed["x"].to_list() == values


def test_trailing_sums_of_a_missing_key_are_sums() -> None:
    """Null instead of a count would be taken for a missing value, not for a key of its own."""
    rows = pl.LazyFrame(
        {"key": [None, None], "day": [date(2024, 1, 1), date(2024, 1, 2)]}, schema_overrides={"key": pl.String}
    )
    summed = trailing_sums(rows, rows, day="day", days=3, by=["key"], sums={"num": pl.col("day").is_not_null()})
    assert summed.collect()["num"].to_list() == [0, 1]
