from __future__ import annotations

import json
import math
import random
import zlib
from datetime import UTC, date, datetime
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import polars as pl
import pytest

from mlops.contract.step import BadConfigError, BadDataError
from mlops.features.transforms import (
    Bucketise,
    Cross,
    Cyclical,
    Hash,
    Log,
    Passthrough,
    RobustScale,
    Standardise,
    Transform,
    Vocabulary,
)

HERE = r"test_transforms\.py:\d+: "


def frame(values: list[Any]) -> pl.DataFrame:
    return pl.DataFrame({"x": values}, strict=False)


def fitted(transform: Transform, *batches: pl.DataFrame) -> dict[str, Any]:
    for batch in batches:
        transform.check(batch.schema)
    measured = [transform.measure(batch) for batch in batches]
    return json.loads(json.dumps(transform.fit(reduce(add, measured))))  # type: ignore[arg-type]


def applied(transform: Transform, state: dict[str, Any], rows: pl.DataFrame) -> dict[str, list[float]]:
    encoder = transform.encoder(state)
    out = np.full((len(encoder.names), rows.height), 7, dtype=np.float32)
    encoder.write(rows, out)
    return {name: [round(float(v), 4) for v in row] for name, row in zip(encoder.names, out, strict=True)}


ABOUT_HALF = round(math.sqrt(0.5), 4)


@pytest.mark.parametrize(
    ("transform", "train", "served", "expected"),
    [
        pytest.param(Standardise("x"), [1, 3], [1, 2, 5], {"x": [-1, 0, 3]}, id="standardise"),
        pytest.param(Standardise("x"), [2, 2], [2, 3], {"x": [0, 1]}, id="standardise a constant"),
        pytest.param(Standardise("x"), [0.1] * 7, [0.1], {"x": [0]}, id="standardise a constant that is not exact"),
        pytest.param(
            Standardise("x", missing="indicator"),
            [1.0, 3.0, None, float("nan")],
            [3.0, None, float("nan")],
            {"x": [1, 0, 0], "x_missing": [0, 1, 1]},
            id="standardise with missing values",
        ),
        pytest.param(
            Standardise("x", missing=1.0), [1.0, None, 3.0, 3.0], [None], {"x": [-1]}, id="standardise filled"
        ),
        pytest.param(RobustScale("x"), [0, 1, 2, 3, 4], [2, 4, 1000], {"x": [0, 1, 499]}, id="robust scale"),
        pytest.param(RobustScale("x"), [5, 5, 5, 5, 9], [5, 6], {"x": [0, 1]}, id="robust scale of mostly one value"),
        pytest.param(Log("x"), [1.0], [0.0, math.e - 1, 1 - math.e], {"x_log": [0, 1, -1]}, id="log on both sides"),
        pytest.param(
            Log("x", missing="indicator"), [1], [None, 0], {"x_log": [0, 0], "x_missing": [1, 0]}, id="log with missing"
        ),
        pytest.param(Passthrough("x"), [True, False], [True, False], {"x": [1, 0]}, id="pass a flag through"),
        pytest.param(
            Bucketise("x", buckets=2, missing="indicator"),
            [0, 1, 2, 3, 4],
            [-9, 1, 2, 99, None],
            {"x_bucket_0": [1, 1, 0, 0, 0], "x_bucket_1": [0, 0, 1, 1, 0], "x_missing": [0, 0, 0, 0, 1]},
            id="bucketise",
        ),
        pytest.param(
            Bucketise("x", buckets=4),
            [0, 0, 0, 0, 0, 5, 6, 7],
            [0, 5],
            {"x_bucket_0": [1, 0], "x_bucket_1": [0, 1]},
            id="bucketise with a frequent value",
        ),
        pytest.param(
            Cyclical("x", period=8),
            [0],
            [0, 1, 2, 9, -1],
            {"x_sin": [0, ABOUT_HALF, 1, ABOUT_HALF, -ABOUT_HALF], "x_cos": [1, ABOUT_HALF, 0, ABOUT_HALF, ABOUT_HALF]},
            id="cyclical",
        ),
        pytest.param(
            Cyclical("x", period="hour"),
            [datetime(2024, 1, 1, tzinfo=UTC)],
            [datetime(2024, 1, 1, 6, tzinfo=UTC), datetime(2024, 1, 1, 1, 30, tzinfo=UTC)],
            {"x_hour_sin": [1, 0.3827], "x_hour_cos": [0, 0.9239]},
            id="hour of an instant",
        ),
        pytest.param(
            Cyclical("x", period="month", missing="indicator"),
            [date(2024, 3, 1)],
            [date(2024, 3, 1), date(2024, 12, 1), None],
            {"x_month_sin": [1, 0, 0], "x_month_cos": [0, 1, 0], "x_missing": [0, 0, 1]},
            id="month of a date",
        ),
        pytest.param(
            Cyclical("x", period="weekday"),
            [date(2024, 1, 7)],
            [date(2024, 1, 7)],  # a Sunday, the 7th day
            {"x_weekday_sin": [0], "x_weekday_cos": [1]},
            id="weekday of a date",
        ),
        pytest.param(
            Vocabulary("x", min_count=2, missing="indicator"),
            ["b", "b", "a", "a", "rare", None],
            ["a", "b", "rare", "new", None],
            {
                "x=a": [1, 0, 0, 0, 0],
                "x=b": [0, 1, 0, 0, 0],
                "x=<other>": [0, 0, 1, 1, 0],
                "x_missing": [0, 0, 0, 0, 1],
            },
            id="vocabulary",
        ),
        pytest.param(Vocabulary("x"), [10, 9], [9], {"x=9": [1], "x=10": [0], "x=<other>": [0]}, id="numbers in order"),
        pytest.param(
            # zlib.crc32 of "a", "b" and "7" are 3904355907, 1908338681 and 1790921346.
            Vocabulary("x", oov_buckets=2),
            ["k"],
            ["k", "a", "7"],
            {"x=k": [1, 0, 0], "x=<other 0>": [0, 0, 1], "x=<other 1>": [0, 1, 0]},
            id="vocabulary with buckets for the others",
        ),
        pytest.param(
            Vocabulary("x", encoding="id", missing="indicator"),
            ["b", "a"],
            [None, "new", "a", "b"],
            {"x_id": [0, 1, 2, 3]},
            id="vocabulary as ids",
        ),
        pytest.param(
            Vocabulary("x", encoding="id", missing="indicator", oov_buckets=2),
            ["k"],
            [None, "7", "a", "k"],
            {"x_id": [0, 1, 2, 3]},
            id="ids with buckets for the others",
        ),
        pytest.param(
            Hash("x", buckets=3, missing="indicator"),
            ["a"],
            ["a", "b", None],
            {"x_hash_0": [1, 0, 0], "x_hash_1": [0, 0, 0], "x_hash_2": [0, 1, 0], "x_missing": [0, 0, 1]},
            id="hash",
        ),
        pytest.param(Hash("x", buckets=2), [1], [7], {"x_hash_0": [1], "x_hash_1": [0]}, id="hash an integer"),
        pytest.param(
            Hash("x", buckets=3, encoding="id", missing="indicator"), ["a"], ["a", "b", None], {"x_id": [1, 3, 0]},
            id="hash as ids",
        ),
    ],
)  # fmt: skip
def test_transform(transform: Transform, train: list[Any], served: list[Any], expected: dict[str, list[float]]) -> None:
    """The numbers that a model is fed, through state that went over JSON."""
    assert applied(transform, fitted(transform, frame(train)), frame(served)) == expected


def test_crossed_categories_are_one_category() -> None:
    """A route is more than its two ends."""
    rows = pl.DataFrame({"origin": ["A", "A", "B", None], "stop": [1, 2, 1, 1]})
    vocabulary = Vocabulary(Cross("origin", "stop"), missing="indicator")
    hashed = Hash(Cross("origin", "stop"), buckets=100, encoding="id", missing="indicator")

    assert applied(vocabulary, fitted(vocabulary, rows[:2]), rows) == {
        "origin×stop=A×1": [1, 0, 0, 0],
        "origin×stop=A×2": [0, 1, 0, 0],
        "origin×stop=<other>": [0, 0, 1, 0],
        "origin×stop_missing": [0, 0, 0, 1],
    }
    assert applied(hashed, fitted(hashed, rows), rows)["origin×stop_id"] == [
        *(zlib.crc32(text.encode()) % 100 + 1 for text in ("A×1", "A×2", "B×1")), 0
    ]  # fmt: skip


@pytest.mark.parametrize(
    "transform",
    [
        Vocabulary("x", missing="indicator", min_count=2),
        Vocabulary("x", missing="indicator", min_count=2, oov_buckets=5, encoding="id"),
        Hash("x", missing="indicator", buckets=7),
        Hash("x", missing="indicator", buckets=7, encoding="id"),
    ],
    ids=lambda t: f"{type(t).__name__}-{t.encoding}",
)
def test_one_row_and_many_are_looked_up_alike(transform: Transform) -> None:
    """Otherwise a served row would have another category than in its batch: few rows are looked up another way."""
    chance = random.Random(1)
    rows = frame([chance.choice([None, *(f"v{i % 300}" for i in range(900))]) for _ in range(1000)])
    state = fitted(transform, rows[:400])

    batch = applied(transform, state, rows)
    alone = [applied(transform, state, rows[i : i + 1]) for i in range(rows.height)]

    assert batch == {name: [row[name][0] for row in alone] for name in batch}


NUMBERS = [Passthrough("x"), Standardise("x"), RobustScale("x"), Bucketise("x"), Log("x"), Cyclical("x", period=3)]


@pytest.mark.parametrize("transform", NUMBERS, ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("hole", [None, float("nan")], ids=["null", "nan"])
def test_a_missing_number_is_refused_where_nothing_is_said_of_it(transform: Transform, hole: float | None) -> None:
    """Otherwise a NaN would reach the model."""
    with pytest.raises(BadDataError, match=HERE + r".*'x'\): 1 of 3 values are missing"):
        fitted(transform, frame([1.0, hole, 2.0]))
    with pytest.raises(BadDataError, match=r"'x'\): 1 of 2 values are missing"):
        applied(transform, fitted(transform, frame([1.0, 3.0])), frame([1.0, hole]))


@pytest.mark.parametrize("transform", [Vocabulary("x"), Hash("x")], ids=lambda t: type(t).__name__)
def test_a_missing_category_is_refused_where_nothing_is_said_of_it(transform: Transform) -> None:
    with pytest.raises(BadDataError, match=HERE + r".*'x'\): 1 of 2 values are missing"):
        fitted(transform, frame(["a", None]))
    with pytest.raises(BadDataError, match=r"'x'\): 1 of 1 values are missing"):
        applied(transform, fitted(transform, frame(["a"])), frame([None]))


@pytest.mark.parametrize(
    ("transform", "values", "message"),
    [
        pytest.param(Standardise("x"), ["a"], "the column is String, not a number", id="text as number"),
        pytest.param(Vocabulary("x"), [1.5], "the column 'x' is Float64; categories are", id="float as category"),
        pytest.param(Cyclical("x", period=24), [date(2024, 1, 1)], "take a part of a date", id="number of a date"),
        pytest.param(Cyclical("x"), [date(2024, 1, 1)], "a date, which has no hours", id="hour of a date"),
    ],
)
def test_a_column_of_another_type_is_refused(transform: Transform, values: list[Any], message: str) -> None:
    with pytest.raises(BadConfigError, match=HERE + f".*{message}"):
        fitted(transform, frame(values))


@pytest.mark.parametrize(
    ("define", "message"),
    [
        pytest.param(lambda: Bucketise("x", buckets=1), "at least 2, got 1", id="one bucket"),
        pytest.param(lambda: Hash("x", buckets=1), "at least 2 and below .*, got 1", id="one hash bucket"),
        pytest.param(lambda: Vocabulary("x", min_count=0), "min_count must be at least 1, got 0", id="min_count"),
        pytest.param(lambda: Vocabulary("x", oov_buckets=0), "oov_buckets must be at least 1", id="oov_buckets"),
        pytest.param(lambda: Cyclical("x", period=0), "period must be above 0, got 0", id="period"),
        pytest.param(lambda: Cyclical("x", period="year"), "period must be a number, .*'year'", id="part of a date"),
        pytest.param(lambda: Vocabulary(Cross("x")), "a Cross needs at least two columns", id="cross"),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused_where_it_stands(define: Any, message: str) -> None:
    with pytest.raises(BadConfigError, match=HERE + f".*{message}"):
        define()


@pytest.mark.parametrize("values", [[1.0, math.inf], [1.0, 1e200]], ids=["infinite", "too large"])
def test_what_has_no_scale_is_refused(values: list[float]) -> None:
    with pytest.raises(BadDataError, match="infinite, or too large"):
        fitted(Standardise("x"), frame(values))


@pytest.mark.parametrize(
    "transform",
    [Standardise("x"), RobustScale("x"), Bucketise("x", buckets=7), Vocabulary("k", min_count=3)],
    ids=lambda t: type(t).__name__,
)
def test_state_does_not_depend_on_order_or_batches(transform: Transform) -> None:
    """Otherwise a rebuild, or Spark, could differ in the last digit, and every feature with it."""
    chance = random.Random(3)
    rows = pl.DataFrame(
        {
            # A mean near 0 of values that are not, and a small spread about a large one: where sums lose most.
            "x": [chance.choice([-1, 1]) * 10 ** chance.uniform(-9, 9) for _ in range(5000)] + [1e9 + 1e-6] * 7,
            "k": [f"k{int(chance.paretovariate(0.5)) % 900}" for _ in range(5007)],
        }
    )
    whole = fitted(transform, rows)

    for seed in range(5):
        shuffled = rows.sample(fraction=1, shuffle=True, seed=seed)
        cuts = sorted(chance.sample(range(1, rows.height), 6))
        parts = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, rows.height], strict=True)]
        assert fitted(transform, *parts) == whole


def test_quantiles_are_those_of_the_sorted_values() -> None:
    """Otherwise buckets would not be of equal size."""
    chance = random.Random(5)
    for num_values in (1, 2, 3, 10, 997):
        values = [chance.choice([chance.gauss(0, 1), 0.5]) for _ in range(num_values)]
        ordered = sorted(values)
        edges = {ordered[i * (num_values - 1) // 5] for i in range(1, 5)} - {ordered[0]}

        assert fitted(Bucketise("x", buckets=5), frame(values)) == {"edges": sorted(edges)}


def test_mean_and_deviation_are_right_where_naive_sums_are_not() -> None:
    """A year, or a timestamp, has a spread that is tiny beside its size."""
    values = [1e9 + i / 1000 for i in range(1000)]

    state = fitted(Standardise("x"), frame(values))

    assert state["mean"] == pytest.approx(1e9 + 0.4995, abs=1e-2)
    assert state["std"] == pytest.approx(np.std(np.arange(1000) / 1000), rel=1e-6)


@pytest.mark.parametrize("transform", [Standardise("x"), RobustScale("x")], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("value", [1700000000123456.0, -(2.0**53 - 1), 1e149, 0.1 + 1e-16])
def test_a_constant_becomes_0_however_large_it_is(transform: Transform, value: float) -> None:
    """Broken: a time in microseconds that is the same in all rows would be a feature of thousands."""
    rows = frame([value] * 7)
    assert applied(transform, fitted(transform, rows), rows) == {"x": [0.0] * 7}


def test_zeros_of_both_signs_leave_one_state() -> None:
    """Broken: the state would depend on the order of the rows."""
    states = [fitted(Standardise("x"), frame(values)) for values in ([0.0, -0.0], [-0.0, 0.0], [-0.0])]
    assert [str(state["mean"]) for state in states] == ["0.0"] * 3
