"""The recipes that come with the project, on a small made-up year and on the real one."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import narwhals as nw
import polars as pl
import pytest
import torch
from feature_tables import fit
from turns import on_turn

from include.flight_arrival.dataset import flights as arrivals
from include.flight_arrival.features import FEATURES as ARRIVAL_FEATURES
from include.flight_delays.dataset import flights as delays
from include.flight_delays.features import FEATURES as DELAY_FEATURES
from include.flight_delays.model import build_model as build_classifier
from include.flight_ranking.dataset import OUTCOMES, WEATHER, documents, relevance
from include.flight_ranking.features import FEATURES as RANKING_FEATURES
from include.flight_ranking.model import build_model as build_scorer
from include.stdlib_lm.features import FEATURES as LIBRARY_FEATURES
from include.stdlib_lm.model import build_model as build_gpt
from mlops.data.engine.engines import Recipe, Table, collect, on_polars, on_spark, run_recipe, spark_session
from mlops.features.feature_set import FeatureSet
from mlops.features.parity import check_parity
from mlops.features.token_set import FittedTokens

FIRST_DAY = date(2013, 1, 1)
NUM_DAYS = 40
ALTERED = date(2013, 2, 2)

KEYS = ["scheduled_departure", "carrier", "flight", "origin", "dest"]
OUTCOMES_OF_A_FLIGHT = ("dep_time", "dep_delay", "arr_delay", "tailnum")


@pytest.fixture(scope="module")
def sources() -> dict[str, pl.DataFrame]:
    """Two origins, three destinations, four flights a route and day; some cancelled, and so without a tail number."""
    chance = random.Random(1)
    flights, weather = [], []
    for number in range(NUM_DAYS):
        day = FIRST_DAY + timedelta(days=number)
        for origin in ("EWR", "JFK"):
            weather += [
                {"origin": origin, "time_hour": instant(day, hour), **dict.fromkeys(WEATHER, chance.random())}
                for hour in range(5, 29)
            ]
            for place, dest in enumerate(("LAX", "MIA", "ORD")):
                for hour in (6, 9, 13, 19):
                    cancelled = chance.random() < 0.05
                    delay = None if cancelled else chance.randint(-30, 200)
                    flights.append(
                        {
                            "year": day.year, "month": day.month, "day": day.day, "hour": hour, "minute": 30,
                            "sched_arr_time": hour * 100 + 300, "time_hour": instant(day, hour + 5),
                            "carrier": "AA" if hour < 10 else "UA", "flight": 100 * place + hour,
                            "origin": origin, "dest": dest, "distance": 1000 + place,
                            "tailnum": None if cancelled else f"N{chance.randint(1, 5)}",
                            "dep_time": None if cancelled else hour * 100, "dep_delay": delay, "arr_delay": delay,
                        }
                    )  # fmt: skip
    planes = [
        {"tailnum": f"N{i}", "year": 1990 + i, "seats": 100 + i, "engines": 2, "manufacturer": "BOEING"}
        for i in range(5)
    ]
    return {"flights": pl.DataFrame(flights), "weather": pl.DataFrame(weather), "planes": pl.DataFrame(planes)}


def instant(day: date, hour: int) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(hours=hour)


def rows_of(dataset: Recipe, sources: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return collect(dataset({name: on_polars([frame.lazy]) for name, frame in sources.items()})).sort(KEYS)


RECIPES = pytest.mark.parametrize(
    ("dataset", "features", "outcomes"),
    [
        pytest.param(documents, RANKING_FEATURES, OUTCOMES, id="flight_ranking"),
        pytest.param(delays, DELAY_FEATURES, ["arr_delay", "delayed"], id="flight_delays"),
        pytest.param(arrivals, ARRIVAL_FEATURES, ["arr_delay"], id="flight_arrival"),
    ],
)


@RECIPES
def test_outcomes_of_a_day_change_nothing_that_was_known_of_it(
    dataset: Recipe, features: FeatureSet, outcomes: list[str], sources: dict[str, pl.DataFrame]
) -> None:
    """Otherwise the model would be given the answer, and be worth nothing when it is asked."""
    day = pl.date("year", "month", "day")
    altered = sources["flights"].with_columns(
        pl.when(day >= ALTERED).then(None).otherwise(pl.col(name)).alias(name) for name in OUTCOMES_OF_A_FLIGHT
    )
    before = rows_of(dataset, sources)
    after = rows_of(dataset, sources | {"flights": altered})

    seen = pl.col("day") <= ALTERED
    assert before.filter(seen).drop(outcomes).equals(after.filter(seen).drop(outcomes))
    # The change is one that later days do see, so that the comparison above means something.
    assert not before.filter(~seen).drop(outcomes).equals(after.filter(~seen).drop(outcomes))
    assert not before.filter(seen).select(outcomes).equals(after.filter(seen).select(outcomes))


@RECIPES
def test_rows_of_a_day_do_not_depend_on_later_days(
    dataset: Recipe, features: FeatureSet, outcomes: list[str], sources: dict[str, pl.DataFrame]
) -> None:
    """Otherwise the same day would be stored anew by every nightly snapshot."""
    early = {
        "flights": sources["flights"].filter(pl.date("year", "month", "day") <= ALTERED),
        "weather": sources["weather"].filter(pl.col("time_hour") < instant(ALTERED, 29)),
        "planes": sources["planes"],
    }

    assert rows_of(dataset, early).equals(rows_of(dataset, sources).filter(pl.col("day") <= ALTERED))


def leaks(dataset: Recipe, sources: dict[str, pl.DataFrame], outcomes: list[str]) -> set[str]:
    """
    Columns that come out otherwise when the recipe sees only what was known at a row's own time.

    Some rows are computed anew, each from sources cut off at its scheduled departure: the weather before it, the
    flights of the days before, and the schedule alone of its own day.
    """
    day = pl.date("year", "month", "day")
    rows = rows_of(dataset, sources).filter(pl.col("day") > FIRST_DAY + timedelta(days=3))
    found: set[str] = set()
    for row in rows.sample(25, seed=1).iter_slices(1):
        departure, own_day = row["scheduled_departure"].item(), row["day"].item()
        cut = sources | {
            "weather": sources["weather"].filter(pl.col("time_hour") < departure),
            "flights": sources["flights"]
            .filter(day <= own_day)
            .with_columns(pl.when(day < own_day).then(pl.col(name)).alias(name) for name in OUTCOMES_OF_A_FLIGHT),
        }
        as_known = rows_of(dataset, cut).join(row.select(KEYS), on=KEYS)
        found |= {name for name in row.columns if name not in outcomes and not row[name].equals(as_known[name])}
    return found


@RECIPES
def test_a_row_holds_only_what_was_known_at_its_time(
    dataset: Recipe, features: FeatureSet, outcomes: list[str], sources: dict[str, pl.DataFrame]
) -> None:
    """Otherwise the model would learn from what it will not be told when it is asked."""
    assert leaks(dataset, sources, outcomes) == set()


@RECIPES
def test_a_leak_is_found(
    dataset: Recipe,
    features: FeatureSet,
    outcomes: list[str],
    sources: dict[str, pl.DataFrame],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the test above would pass on recipes that leak."""
    recipe = dataset.__globals__
    last_known, trailing_sums = recipe["last_known"], recipe["trailing_sums"]

    def from_the_next_hour(rows: Table, observations: Table, *, observed: str, **how: Any) -> Table:
        earlier = observations.with_columns(nw.col(observed) - timedelta(hours=1))
        return last_known(rows, earlier, observed=observed, **how)

    def with_the_own_day(rows: Table, events: Table, *, day: str, **how: Any) -> Table:
        return trailing_sums(rows, nw.from_native(events.to_native().with_columns(pl.col(day).dt.offset_by("-1d"))),
                             day=day, **how)  # fmt: skip

    with monkeypatch.context() as patch:
        patch.setitem(recipe, "last_known", from_the_next_hour)
        assert "temp" in leaks(dataset, sources, outcomes)
    with monkeypatch.context() as patch:
        patch.setitem(recipe, "trailing_sums", with_the_own_day)
        assert {name for name in leaks(dataset, sources, outcomes) if name.startswith("route_")}


@on_turn(0, 2)
@pytest.mark.server
@RECIPES
def test_spark_makes_the_same_rows(
    dataset: Recipe, features: FeatureSet, outcomes: list[str], sources: dict[str, pl.DataFrame]
) -> None:
    """Otherwise a pipeline that outgrows one machine would train on other data."""
    days = {"flights": pl.date("year", "month", "day"), "weather": pl.col("time_hour").dt.date()}
    few = sources | {name: sources[name].filter(day < FIRST_DAY + timedelta(days=12)) for name, day in days.items()}
    tables = {name: on_spark([frame[::2].lazy, frame[1::2].lazy], spark_session()) for name, frame in few.items()}

    rows = collect(run_recipe(dataset, tables)).sort(KEYS)

    assert rows.schema == rows_of(dataset, few).schema
    assert rows.equals(rows_of(dataset, few))


def test_history_is_that_of_the_28_days_before(sources: dict[str, pl.DataFrame]) -> None:
    """The features mean what their names say; checked by hand for one route and day."""
    route = (pl.col("origin") == "EWR") & (pl.col("dest") == "MIA")
    past = sources["flights"].filter(
        route, pl.date("year", "month", "day").is_between(ALTERED - timedelta(days=28), ALTERED - timedelta(days=1))
    )
    row = rows_of(documents, sources).filter(route, pl.col("day") == ALTERED).to_dicts()[0]

    assert row["route_flights"] == past.height == 28 * 4
    assert row["route_mean_delay"] == pytest.approx(past["arr_delay"].clip(-60, 180).mean())
    assert row["route_on_time"] == pytest.approx((past["arr_delay"] <= 15).sum() / past.height)
    assert row["route_cancelled"] == pytest.approx(past["dep_time"].null_count() / past.height)


@pytest.mark.parametrize(
    ("arr_delay", "grade"),
    [(-20, 4), (0, 4), (1, 3), (15, 3), (16, 2), (45, 2), (46, 1), (120, 1), (121, 0), (None, 0)],
)
def test_relevance(arr_delay: int | None, grade: int) -> None:
    """The label's definition: what the model is made to learn."""
    frame = pl.DataFrame({"arr_delay": [arr_delay]}, schema={"arr_delay": pl.Int64})

    assert nw.from_native(frame).select(relevance(nw.col("arr_delay"))).item() == grade


@RECIPES
def test_features_are_served_as_they_are_stored(
    dataset: Recipe, features: FeatureSet, outcomes: list[str], sources: dict[str, pl.DataFrame]
) -> None:
    """Otherwise the model would be asked about other numbers than it has learnt from."""
    rows = rows_of(dataset, sources)

    assert check_parity(features, rows, fit(features, rows), num_samples=16) == 16


@pytest.mark.parametrize("build_model", [build_scorer, build_classifier], ids=["flight_ranking", "flight_delays"])
@pytest.mark.parametrize("shape", [(7,), (3, 5, 7)], ids=["one row", "padded queries"])
def test_models_score_the_last_dimension(build_model: Callable[[Any], torch.nn.Module], shape: tuple[int, ...]) -> None:
    """Trainer and evaluation call a model with one row or with padded queries alike."""
    model = build_model(SimpleNamespace(num_features=7, hidden=4))

    assert model(torch.ones(shape)).shape == shape[:-1]


def test_the_language_model_knows_only_what_came_before() -> None:
    """Broken: it would be told the token that it is to guess; the best perplexity, and no use."""
    tokens = FittedTokens.fit(LIBRARY_FEATURES, [])
    torch.manual_seed(0)
    model = build_gpt(SimpleNamespace(**tokens.description, width=16, num_blocks=2, num_heads=2))
    text = torch.from_numpy(tokens.encode("def f(number):\n    return number\n"))[None]
    changed = text.clone()
    changed[0, 20] = 0
    with torch.no_grad():
        before, after = model(text), model(changed)
    assert before.shape == (1, text.shape[1], 257)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.equal(before[:, 20:], after[:, 20:])
    loss = torch.nn.functional.cross_entropy(before[0], text[0])
    assert abs(float(loss) - torch.log(torch.tensor(257.0))) < 0.1, "knows nothing yet, and is sure of nothing"
