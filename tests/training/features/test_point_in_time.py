"""Point-in-time joins against a plain loop that says what they mean, on both engines."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import narwhals as nw
import polars as pl
import pytest

from mlops.contract.step import BadConfigError
from mlops.data.engine.engines import Table, collect, on_polars, on_spark, spark_session
from mlops.features.point_in_time import last_known, trailing_sums

Row = dict[str, Any]
MakeTable = Callable[[pl.DataFrame], Table]


@pytest.fixture(params=["polars", "spark"])
def table(request: pytest.FixtureRequest) -> MakeTable:
    """Puts a frame on one of the engines."""
    if request.param == "polars":
        return lambda frame: on_polars([frame.lazy])
    # In two pieces, so that rows of one key come from different tasks.
    return lambda frame: on_spark([frame[::2].lazy, frame[1::2].lazy], spark_session())


@pytest.fixture
def here() -> MakeTable:
    return lambda frame: on_polars([frame.lazy])


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


OBSERVATIONS = pl.DataFrame({"station": ["a", "a", "b"], "seen": [at(8), at(10), at(9)], "temp": [1.0, 2.0, 3.0]})


@pytest.mark.parametrize(
    ("station", "time", "temp"),
    [
        pytest.param("a", at(9, 59), 1.0, id="newest before"),
        pytest.param("a", at(10), 1.0, id="not of the same instant"),
        pytest.param("a", at(10, 1), 2.0, id="a minute later"),
        pytest.param("b", at(10, 1), 3.0, id="of its own key"),
        pytest.param("a", at(7), None, id="nothing yet"),
        pytest.param("a", at(13), 2.0, id="just recent enough"),
        pytest.param("a", at(13, 1), None, id="too old"),
        pytest.param("c", at(10), None, id="unknown key"),
    ],
)
def test_last_known(station: str, time: datetime, temp: float | None, here: MakeTable) -> None:
    """Otherwise a row would be joined with what was not known at its time."""
    rows = here(pl.DataFrame({"station": [station], "time": [time]}))

    joined = last_known(
        rows, here(OBSERVATIONS), time="time", observed="seen", by=["station"], tolerance=timedelta(hours=3)
    )

    assert collect(joined).to_dict(as_series=False) == {"station": [station], "time": [time], "temp": [temp]}


WRITTEN = pl.DataFrame(
    {
        "station": ["a"] * 4,
        "seen": [at(8), at(9), at(9), at(7)],
        # 8 o'clock at once; 9 o'clock an hour late, and corrected at noon; 7 o'clock only after all these.
        "written": [at(8), at(10), at(12), at(13)],
        "temp": [8.0, 9.0, 9.5, 7.0],
    }
)


@pytest.mark.parametrize(
    ("time", "temp"),
    [
        pytest.param(at(9, 30), 8.0, id="observed, not yet written"),
        pytest.param(at(10), 8.0, id="written at the same instant"),
        pytest.param(at(10, 1), 9.0, id="written since"),
        pytest.param(at(12), 9.0, id="corrected at the same instant"),
        pytest.param(at(12, 1), 9.5, id="corrected since"),
        pytest.param(at(13, 1), 9.5, id="an older observation that comes in late is not the newest"),
        pytest.param(at(14, 1), None, id="too old by the time observed, not written"),
    ],
)
def test_an_observation_is_known_only_once_it_was_written(time: datetime, temp: float | None, here: MakeTable) -> None:
    """Otherwise training would see values and corrections that serving, at the time, could not have had."""
    rows = here(pl.DataFrame({"station": ["a"], "time": [time]}))

    joined = last_known(
        rows, here(WRITTEN), time="time", observed="seen", created="written", by=["station"],
        tolerance=timedelta(hours=5),
    )  # fmt: skip

    assert collect(joined).to_dict(as_series=False) == {"station": ["a"], "time": [time], "temp": [temp]}


NUM_CASES = 60
TOLERANCE = timedelta(hours=5)


def some(chance: random.Random, *values: object) -> Any:
    return chance.choice([*values, None])


def observed_cases() -> tuple[list[Row], list[Row]]:
    """Many small tables in one, told apart by ``case``: few instants and values, so that ties and nulls abound."""
    chance = random.Random(5)
    rows: list[Row] = []
    observations: list[Row] = []
    for case in range(NUM_CASES):
        for _ in range(chance.randrange(12)):
            rows.append({"row": len(rows), "case": case, "key": some(chance, "x", "y"), "time": some(chance, *HOURS)})
        for _ in range(chance.randrange(16)):
            observations.append(
                {
                    "case": case,
                    "key": some(chance, "x", "y"),
                    "seen": some(chance, *HOURS),
                    "written": some(chance, *HOURS),
                    "number": some(chance, 1.5, -2.0, float("nan")),
                    "word": some(chance, "a", "B", "é", ""),
                }
            )
    return rows, observations


HOURS = [at(hour) for hour in range(12)]


def expected_last_known(row: Row, observations: list[Row], *, created: bool) -> Row:
    """The rule as :func:`last_known` words it."""

    def rank(value: Any) -> tuple[bool, bool, Any]:  # nulls first, NaN last
        return (value is not None, value != value, 0 if value is None or value != value else as_bytes(value))

    known = [
        (o["seen"], o["written"] if created else None, rank(o["number"]), rank(o["word"]), o)
        for o in observations
        if o["case"] == row["case"] and None not in (row["key"], row["time"], o["seen"]) and o["key"] == row["key"]
        and o["seen"] < row["time"] and (not created or (o["written"] is not None and o["written"] < row["time"]))
    ]  # fmt: skip
    if not known:
        return {"number": None, "word": None}
    newest = max(known, key=lambda item: item[:4] if created else (item[0], *item[2:4]))[-1]
    recent = row["time"] - newest["seen"] <= TOLERANCE
    return {name: newest[name] if recent else None for name in ("number", "word")}


def as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.server
@pytest.mark.parametrize("created", [False, True], ids=["by time observed", "and by time written"])
def test_last_known_against_a_plain_loop(table: MakeTable, created: bool) -> None:
    """The fast ways must do as the definition says on ties, duplicates, nulls and keys without observations."""
    rows, observations = observed_cases()
    seen = pl.DataFrame(observations)

    joined = collect(
        last_known(
            table(pl.DataFrame(rows)), table(seen if created else seen.drop("written")), time="time", observed="seen",
            created="written" if created else None, by=["case", "key"], tolerance=TOLERANCE,
        )
    ).sort("row")  # fmt: skip

    assert joined.columns == ["row", "case", "key", "time", "number", "word"]
    found = [{**row, "number": str(row["number"])} for row in joined.to_dicts()]
    wanted = [row | expected_last_known(row, observations, created=created) for row in rows]
    assert found == [{**row, "number": str(row["number"])} for row in wanted]
    # Ties, late arrivals and gaps are in it: a join that ignored the time written would differ.
    assert sum(row["word"] is not None for row in wanted) > 30


@pytest.mark.server
def test_last_known_without_keys(table: MakeTable) -> None:
    """A table with one series of observations (a calendar, an exchange rate) has no key to join by."""
    rows = table(pl.DataFrame({"time": [at(9), at(11)]}))

    joined = last_known(
        rows, table(OBSERVATIONS.drop("station")), time="time", observed="seen", by=[], tolerance=timedelta(hours=3)
    )

    assert sorted(collect(joined).rows()) == [(at(9), 1.0), (at(11), 2.0)]


@pytest.mark.server
def test_trailing_sums_against_a_plain_loop(table: MakeTable) -> None:
    """The fast ways must count as the definition does, on many keys, days, ties and nulls."""
    chance = random.Random(3)
    dates = [date(2024, 1, 1) + timedelta(days=i * i % 23) for i in range(40)]
    events = [
        {"key": some(chance, "a", "b"), "kind": chance.randrange(3), "day": some(chance, *dates),
         "x": some(chance, 1, -4, 10), "late": some(chance, True, False)}
        for _ in range(400)
    ]  # fmt: skip
    rows = [
        {"row": i, "key": some(chance, "a", "b", "z"), "kind": chance.randrange(3), "day": some(chance, *dates)}
        for i in range(120)
    ]
    # Spark takes the types of the whole frame, not of the values that a piece happens to have.
    kinds = {"key": pl.String, "day": pl.Date}

    summed = collect(
        trailing_sums(
            table(pl.DataFrame(rows, schema_overrides=kinds)), table(pl.DataFrame(events, schema_overrides=kinds)),
            day="day", days=5, by=["key", "kind"],
            sums={"num": ~nw.col("x").is_null(), "total": nw.col("x"), "num_late": nw.col("late")},
        )
    ).sort("row")  # fmt: skip

    for row, found in zip(rows, summed.to_dicts(), strict=True):
        past = [
            e for e in events
            if (e["key"], e["kind"]) == (row["key"], row["kind"]) and None not in (e["day"], row["day"])
            and timedelta() < row["day"] - e["day"] <= timedelta(days=5)
        ]  # fmt: skip
        wanted = {
            "num": sum(e["x"] is not None for e in past),
            "total": sum(e["x"] or 0 for e in past),
            "num_late": sum(e["late"] or False for e in past),
        }
        assert found == row | wanted
    assert summed["total"].n_unique() > 20


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
def test_trailing_sums_see_the_days_before_only(day: date, expected: tuple[int, int], here: MakeTable) -> None:
    """Otherwise a row would know the outcomes of its own day."""
    events = pl.DataFrame(
        {
            "key": ["a", "a", "a", "b", "a"],
            "day": [date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 3), date(2024, 1, 2), date(2024, 1, 20)],
            "x": [1, 10, None, 500, 7],
        }
    )

    summed = trailing_sums(
        here(pl.DataFrame({"key": ["a"], "day": [day]})), here(events), day="day", days=3, by=["key"],
        sums={"num": ~nw.col("x").is_null(), "total": nw.col("x")},
    )  # fmt: skip

    assert collect(summed).select("num", "total").row(0) == expected


def test_a_column_that_both_tables_have_is_refused(here: MakeTable) -> None:
    """Otherwise one of the two would silently stand for the other."""
    rows = here(pl.DataFrame({"station": ["a"], "seen": [at(9)]}))

    with pytest.raises(BadConfigError, match="'seen' that the rows have already; rename one of them"):
        last_known(rows, here(OBSERVATIONS), time="seen", observed="seen", by=["station"], tolerance=TOLERANCE)
    with pytest.raises(BadConfigError, match="'seen' that the rows have already"):
        trailing_sums(
            rows, here(OBSERVATIONS), day="seen", days=1, by=["station"], sums={"seen": nw.col("temp").cast(nw.Int64)}
        )


@pytest.mark.parametrize("name", ["__seen", "__rank", "__row"])
def test_a_column_with_a_name_of_the_joins_own_is_refused(here: MakeTable, name: str) -> None:
    """Broken: its values are overwritten and dropped, and nobody is told."""
    rows = here(pl.DataFrame({"station": ["a"], "at": [at(9)]}))
    clashing = here(OBSERVATIONS.rename({"temp": name}))
    with pytest.raises(BadConfigError, match=f"a column '{name}', a name that it gives to columns of its own; rename"):
        last_known(rows, clashing, time="at", observed="seen", by=["station"], tolerance=TOLERANCE)
