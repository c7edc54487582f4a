"""The newest day is held against the days before it: whatever a day holds moves a window of thirty by little."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import comb
from random import Random
from statistics import NormalDist
from typing import Any

import polars as pl
import pytest

from mlops.contract.sections.validate import Drift, Newest, Volume
from mlops.validation.anomalies import Anomaly
from mlops.validation.baselines import PREVIOUS, Reference
from mlops.validation.chance import most_by_chance
from mlops.validation.newest_period import NEWEST_PERIOD, Judged
from mlops.validation.schema import Schema

FIRST = date(2026, 1, 20)
NUM_DAYS = 30
DAYS = [str(FIRST + timedelta(days=number)) for number in range(NUM_DAYS)]
NEWEST = DAYS[-1]
SCHEMA = """
feature { name: "departure" type: INT time_domain { integer_format: UNIX_SECONDS } }
feature { name: "payment" type: BYTES }
feature { name: "fare" type: FLOAT }
feature { name: "distance" type: FLOAT }
feature { name: "tip" type: FLOAT }
feature { name: "tipped" type: INT }
"""


def trips(day: str, num_rows: int) -> pl.DataFrame:
    """Taxi trips of a day, which are fewer and longer on weekends."""
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    draw = Random(f"{day} {num_rows}")
    weekend = start.weekday() >= 5
    distance = [draw.lognormvariate(1.2 if weekend else 0.8, 0.7) for _ in range(num_rows)]
    fare = [round(3 + 2.5 * each + draw.gauss(0, 1), 2) for each in distance]
    tipped = [draw.random() < (0.35 if weekend else 0.3) for _ in range(num_rows)]
    return pl.DataFrame(
        {
            "departure": sorted(start + timedelta(seconds=draw.randrange(86_400)) for _ in range(num_rows)),
            "payment": draw.choices(["Cash", "Card", "App"], [0.3, 0.6, 0.1], k=num_rows),
            "fare": fare,
            "distance": distance,
            "tip": [0.2 * each if yes else None for each, yes in zip(fare, tipped, strict=True)],
            "tipped": list(map(int, tipped)),
        },
        schema_overrides={"tip": pl.Float64},
    )


Unlike = Callable[..., list[Anomaly]]


@pytest.fixture
def unlike(schema_of: Callable[[str], Schema], examined: Any) -> Unlike:
    """Examine thirty days, of which the newest was changed; return what is said of the newest."""

    def unlike(
        *changes: pl.Expr, num_rows: int = 500, every_day: Callable[[str], pl.Expr] | None = None, **settings: Any
    ) -> list[Anomaly]:
        frames: dict[str, pl.DataFrame] = {}
        for number, day in enumerate(DAYS):
            frame = trips(day, num_rows + number)
            frames[day] = frame.with_columns(every_day(day)) if every_day else frame
        frames[NEWEST] = frames[NEWEST].with_columns(changes)
        known = SCHEMA
        for name in set(frames[NEWEST].columns) - set(trips(NEWEST, 1).columns):
            kind = "BYTES" if frames[NEWEST].schema[name] == pl.String else "INT"
            known += f'feature {{ name: "{name}" type: {kind} }}\n'
        verdict = examined(frames, DAYS, schema_of(known), **{"volume": None, **settings})
        return [anomaly for anomaly in verdict.anomalies if anomaly.kind == NEWEST_PERIOD]

    return unlike


FAULTS: Mapping[str, tuple[str, pl.Expr]] = {
    "all paid in cash": ("payment", pl.lit("Cash").alias("payment")),
    "a value renamed": ("payment", pl.col("payment").replace("Card", "CARD")),
    "fares in cents": ("fare", pl.col("fare") * 100),
    "no distance": ("distance", pl.col("distance") * 0.0),
    "distances in miles": ("distance", pl.col("distance") / 1.609 / 1.609),
    "every label 1": ("tipped", pl.lit(1, pl.Int64).alias("tipped")),
    "every label 0": ("tipped", pl.lit(0, pl.Int64).alias("tipped")),
    "no tips": ("tip", pl.lit(None, pl.Float64).alias("tip")),
    "fares missing": ("fare", pl.when(pl.int_range(pl.len()) % 3 > 0).then("fare")),
    "one fare for all": ("fare", pl.lit(9.99).alias("fare")),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("num_rows", [100, 500, 5_000])
def test_a_broken_newest_day_is_seen(unlike: Unlike, fault: str, num_rows: int) -> None:
    """Broken: it would be learnt, one thirtieth of the rows at a time."""
    column, change = FAULTS[fault]
    found = unlike(change, num_rows=num_rows, drift=None)
    assert column in {anomaly.column for anomaly in found}
    [anomaly] = [each for each in found if each.column == column]
    assert anomaly.periods == (NEWEST,)
    assert anomaly.distribution is not None
    assert anomaly.distribution.found_name == NEWEST


@pytest.mark.parametrize("fault", ["all paid in cash", "fares in cents", "every label 1", "no distance"])
def test_the_window_alone_would_not_show_it(unlike: Unlike, fault: str) -> None:
    """Why the check is there: without it these days passed."""
    assert unlike(FAULTS[fault][1], newest=None, drift=Drift()) == []


@pytest.mark.parametrize("num_rows", [14, 100, 500, 5_000])
def test_a_day_like_the_others_passes(unlike: Unlike, num_rows: int) -> None:
    assert unlike(num_rows=num_rows) == []


@pytest.mark.parametrize(
    "of_the_day",
    [
        lambda day: pl.lit(date.fromisoformat(day).month).alias("month"),
        lambda day: pl.lit(date.fromisoformat(day).strftime("%Y-%m")).alias("month"),
        lambda day: pl.lit(date.fromisoformat(day).strftime("%B")).alias("month"),
        lambda day: pl.lit(date.fromisoformat(day).weekday()).alias("weekday"),
        lambda day: pl.lit(date.fromisoformat(day).isocalendar().week).alias("week"),
        lambda day: pl.int_range(pl.len()).add(10_000 * date.fromisoformat(day).toordinal()).alias("id"),
    ],
    ids=["month", "year and month", "name of the month", "weekday", "week", "a number that grows"],
)
def test_columns_that_tell_the_day_are_no_anomaly(
    unlike: Unlike, monkeypatch: pytest.MonkeyPatch, of_the_day: Callable[[str], pl.Expr]
) -> None:
    """Broken: each first day of a month would stop the pipeline."""
    first_of_a_month = [str(date(2026, 3, 1) - timedelta(days=number)) for number in reversed(range(NUM_DAYS))]
    monkeypatch.setattr(f"{__name__}.DAYS", first_of_a_month)
    monkeypatch.setattr(f"{__name__}.NEWEST", first_of_a_month[-1])
    assert unlike(every_day=of_the_day) == []


def test_another_price_list_is_one(unlike: Unlike) -> None:
    [anomaly] = unlike(every_day=lambda day: pl.lit("A" if day < NEWEST else "B").alias("tariff"))
    assert anomaly.column == "tariff"
    assert "A: 100% -> 0%" in anomaly.line


def test_columns_that_no_day_could_fail_are_said(schema_of: Callable[[str], Schema], examined: Any) -> None:
    """Broken: a report would show as compared what no fault can move, such as a number that only grows."""
    frames = {
        day: trips(day, 200).with_columns(id=pl.int_range(pl.len()) + 1_000 * number) for number, day in enumerate(DAYS)
    }
    schema = schema_of(SCHEMA + 'feature { name: "id" type: INT }\n')
    verdict = examined(frames, DAYS, schema, volume=None)
    assert verdict.passed
    [note] = verdict.notes
    assert note == (
        "Not held against the days before, which are so few or so far from each other that any would pass: id."
    )
    [comparison] = [each for each in verdict.comparisons if each.reference == "days before"]
    assert {column.column for column in comparison.columns} == {"payment", "fare", "distance", "tip", "tipped"}


def test_a_column_can_be_left_out(unlike: Unlike) -> None:
    assert unlike(pl.col("fare") * 100, newest=Newest(leave_out=["fare"])) == []


def test_of_many_columns_none_alarms_by_chance(schema_of: Callable[[str], Schema], examined: Any) -> None:
    """Broken: who has two thousand columns would be stopped every other night."""
    names = [f"x{number}" for number in range(1_000)]
    frames = {}
    for day in DAYS[:12]:
        start = datetime.fromisoformat(day).replace(tzinfo=UTC)
        draw = Random(day)
        values = {name: [draw.gauss() for _ in range(40)] for name in names}
        frames[day] = pl.DataFrame({"departure": [start + timedelta(minutes=row) for row in range(40)], **values})
    columns = "".join(f'feature {{ name: "{name}" type: FLOAT }}\n' for name in names)
    schema = schema_of(SCHEMA.partition('feature { name: "payment"')[0] + columns)
    assert examined(frames, list(frames), schema, volume=None).anomalies == ()


def test_few_days_say_nothing_of_what_is_usual(schema_of: Callable[[str], Schema], examined: Any) -> None:
    days = DAYS[:7]
    frames = {day: trips(day, 100) for day in days}
    frames[days[-1]] = frames[days[-1]].with_columns(fare=9.99)
    verdict = examined(frames, days, schema_of(SCHEMA), volume=None)
    assert verdict.passed
    [note] = [each.description for each in verdict.comparisons if not each.compared]
    assert note == "6 of them have rows, and it takes 7 to say how far days usually are apart"


PRESENCE = """
feature { name: "departure" type: INT time_domain { integer_format: UNIX_SECONDS } }
feature { name: "tip" type: FLOAT presence { min_fraction: 0.66 } }
feature { name: "fare" type: FLOAT presence { min_fraction: 1 } }
"""


@pytest.mark.parametrize(
    ("missing", "column", "fits"), [(6, "tip", True), (14, "tip", False), (0, "fare", True), (1, "fare", False)]
)
def test_a_small_day_may_lack_by_chance_more_than_the_window(
    schema_of: Callable[[str], Schema], examined: Any, missing: int, column: str, *, fits: bool
) -> None:
    """Broken: a schema that was proposed from a window would refuse its next night for six of fourteen rows."""
    frames = {}
    for day in DAYS:
        share = pl.int_range(pl.len()) % 4 > 0
        frames[day] = trips(day, 14).select("departure", tip=pl.when(share).then(1.0), fare=1.0)
    lacks = pl.when(pl.int_range(pl.len()) >= missing).then(column).alias(column)
    frames[NEWEST] = frames[NEWEST].with_columns(tip=1.0).with_columns(lacks)
    verdict = examined(frames, DAYS, schema_of(PRESENCE), volume=None, newest=None)
    assert verdict.passed == fits
    assert {anomaly.column for anomaly in verdict.anomalies} == (set() if fits else {column})


@pytest.mark.parametrize(
    ("num_rows", "share"),
    [(14, 0.34), (500, 0.01), (20, 0.5), (10, 0.0), (10, 1.0), (400, 0.92), (500, 0.9), (480, 0.95)],
)
def test_chance_is_the_binomial_distributions(num_rows: int, share: float) -> None:
    """Broken: with a few hundred rows nearly all of which have a value, chance would be said to do anything."""
    rest, hit = 1 - NormalDist().cdf(4), Fraction(share)
    above, most = Fraction(1), -1
    while above > rest:
        most += 1
        above -= comb(num_rows, most) * hit**most * (1 - hit) ** (num_rows - most)
    assert most_by_chance(num_rows, share, 4) == most


def test_chance_among_many_is_the_normal_distributions() -> None:
    """At the number from which on it is taken for that."""
    assert abs(most_by_chance(4_990, 0.1, 4) - most_by_chance(5_010, 0.1, 4)) <= 6


def passed_before(num_rows: Mapping[str, int]) -> Reference:
    return Reference(name=PREVIOUS, description="", num_rows=num_rows, expected=[*num_rows])


@pytest.mark.parametrize("nights", [1, 2, 5])
def test_a_day_that_failed_does_not_become_what_is_usual(
    schema_of: Callable[[str], Schema], examined: Any, nights: int
) -> None:
    """Broken: the pipeline would stop once, and learn from the same fault the night after."""
    broken = DAYS[-nights:]
    frames = {day: trips(day, 500) for day in DAYS}
    passed = Reference(
        name=PREVIOUS,
        description="",
        num_rows={day: frames[day].height for day in DAYS if day not in broken},
    )
    frames |= {day: frames[day].with_columns(pl.col("fare") * 100) for day in broken}
    verdict = examined(frames, DAYS, schema_of(SCHEMA), volume=None, drift=None, references=[passed])
    [anomaly] = verdict.anomalies
    assert (anomaly.column, anomaly.kind) == ("fare", NEWEST_PERIOD)
    assert set(anomaly.periods) <= set(broken)
    mended = {day: trips(day, 500) if day in broken else frame for day, frame in frames.items()}
    mended[broken[0]] = frames[broken[0]]
    verdict = examined(mended, DAYS, schema_of(SCHEMA), volume=None, drift=None, references=[passed])
    assert [anomaly.periods for anomaly in verdict.anomalies] == [(broken[0],)]


@pytest.mark.parametrize("place", [-2, -8])
def test_a_day_of_too_few_rows_stops_the_nights_after_it_too(
    schema_of: Callable[[str], Schema], examined: Any, place: int
) -> None:
    """Broken: the night after trains on half a day, and its repair is refused as a change of what has passed."""
    frames = {day: trips(day, 1_000) for day in DAYS}
    passed = Reference(name=PREVIOUS, description="", num_rows=dict.fromkeys(DAYS[:place], 1_000))
    settings: dict[str, Any] = {"volume": Volume(), "newest": None, "drift": None, "references": [passed]}
    assert examined(frames, DAYS, schema_of(SCHEMA), **settings).passed
    # A week before the newest it would be what that is compared with.
    frames[DAYS[place]] = frames[DAYS[place]].head(500)
    [anomaly] = examined(frames, DAYS, schema_of(SCHEMA), **settings).anomalies
    assert (anomaly.kind, anomaly.periods) == ("COMPARATOR_LOW_NUM_EXAMPLES", (DAYS[place],))


@pytest.mark.parametrize("num_days", [3, 8, 14])
def test_a_day_of_too_few_rows_stops_all_nights_of_a_short_window(
    schema_of: Callable[[str], Schema], examined: Any, num_days: int
) -> None:
    """Broken: after some nights the gate opens by itself, and the good day a week later is refused for the bad one."""
    bad = 14
    frames = {day: trips(day, 500 if number == bad else 1_000) for number, day in enumerate(DAYS)}
    passed = passed_before(dict.fromkeys(DAYS[bad - num_days : bad], 1000))
    settings: dict[str, Any] = {"volume": Volume(), "newest": None, "drift": None, "references": [passed]}
    for night in range(bad, bad + num_days + 1):
        window = DAYS[night - num_days + 1 : night + 1]
        verdict = examined({day: frames[day] for day in window}, window, schema_of(SCHEMA), **settings)
        found = [anomaly.periods for anomaly in verdict.anomalies]
        assert found == ([(DAYS[bad],)] if DAYS[bad] in window else []), DAYS[night]


def test_a_weekend_that_did_not_pass_for_its_schema_is_compared_with_the_one_before(
    schema_of: Callable[[str], Schema], examined: Any
) -> None:
    """Broken: the Saturday before has left the window, and a good Saturday has too few rows for a Friday."""
    rows = {day: 400 if date.fromisoformat(day).weekday() > 4 else 1_000 for day in DAYS}
    saturday = next(place for place, day in enumerate(DAYS) if place > 15 and date.fromisoformat(day).weekday() == 5)
    passed = passed_before({day: rows[day] for day in DAYS[saturday - 8 : saturday]})
    for night in range(saturday + 1, saturday + 4):
        window = DAYS[night - 7 : night + 1]
        verdict = examined(
            {day: trips(day, rows[day]) for day in window}, window, schema_of(SCHEMA),
            volume=Volume(), newest=None, drift=None, references=[passed],
        )  # fmt: skip
        assert verdict.anomalies == (), DAYS[night]


def test_in_a_longer_window_the_newest_day_is_compared_with_its_weekday(
    schema_of: Callable[[str], Schema], examined: Any
) -> None:
    """Broken: days that were in no window before count as failed, and a Saturday is compared with its Friday."""
    passed = passed_before(dict.fromkeys(DAYS[17:20], 1_000))
    window = DAYS[7:21]
    verdict = examined(
        {day: trips(day, 1_000) for day in window}, window, schema_of(SCHEMA),
        volume=Volume(), newest=None, drift=None, references=[passed],
    )  # fmt: skip
    assert (verdict.compared, verdict.notes) == (DAYS[13], ())


def test_a_day_that_is_right_passes_by_a_larger_tolerance_once(
    schema_of: Callable[[str], Schema], examined: Any
) -> None:
    """Broken: after a holiday every night has to be run by hand."""
    frames = {day: trips(day, 500 if day == DAYS[20] else 1_000) for day in DAYS}
    rows = {day: frame.height for day, frame in frames.items()}
    settings: dict[str, Any] = {"newest": None, "drift": None}

    def night(number: int, passed: int, tolerance: float) -> Any:
        before = passed_before({day: rows[day] for day in DAYS[passed - 14 : passed]})
        window = DAYS[number - 13 : number + 1]
        return examined(
            {day: frames[day] for day in window}, window, schema_of(SCHEMA),
            volume=Volume(tolerance=tolerance), references=[before], **settings,
        )  # fmt: skip

    (anomaly,) = night(20, 20, 0.2).anomalies
    assert "run this night with validate.volume.tolerance: 0.5; else" in anomaly.fix
    assert not night(21, 20, 0.2).passed
    assert night(22, 20, 0.5).passed
    for number in range(23, 29):
        assert night(number, number, 0.2).passed, "a week later too, where the last of its kind is the holiday"


def test_a_day_that_has_none_to_be_compared_with_is_said(schema_of: Callable[[str], Schema], examined: Any) -> None:
    """Broken: the half day passes once the day that it was compared with has left the window, without a word."""
    frames = {day: trips(day, 500 if day == DAYS[20] else 1_000) for day in DAYS}
    window = DAYS[14:22]
    passed = passed_before(dict.fromkeys(DAYS[14:20], 1_000))
    verdict = examined(
        {day: frames[day] for day in window}, window, schema_of(SCHEMA),
        volume=Volume(against=7), newest=None, drift=None, references=[passed],
    )  # fmt: skip
    (note,) = [note for note in verdict.notes if "were not compared" in note]
    assert DAYS[20] in note
    assert DAYS[21] not in note
    assert verdict.compared == DAYS[14]


def test_of_a_week_the_newest_day_is_judged_and_of_weeks_that_failed_all() -> None:
    assert Judged.of(DAYS, DAYS[:23], DAYS[23]) == Judged(DAYS[-1:], DAYS[:23])
    assert Judged.of(DAYS, DAYS[:16], DAYS[23]) == Judged([*DAYS[16:23], DAYS[-1]], DAYS[:16])
    assert Judged.of(DAYS, (), DAYS[-1]) == Judged(DAYS[-1:], DAYS[:-1])
