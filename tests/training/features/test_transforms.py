from __future__ import annotations

import json
from typing import Any

import narwhals as nw
import polars as pl
import pytest

from mlops_provider.step import BadConfigError, BadDataError
from training.features.transforms import Bucketise, Hash, Passthrough, Standardise, Transform, Vocabulary


def frame(values: list[Any]) -> nw.DataFrame[Any]:
    return nw.from_native(pl.DataFrame({"x": values}, strict=False), eager_only=True)


def transformed(transform: Transform, train: list[Any], served: list[Any]) -> dict[str, list[float]]:
    state = json.loads(json.dumps(transform.fit(frame(train))))
    rows = frame(served)
    table = rows.select(expr.alias(name) for name, expr in transform.columns(rows, state).items())
    return {name: [round(v, 4) for v in table[name].cast(nw.Float32).to_list()] for name in table.columns}


@pytest.mark.parametrize(
    ("transform", "train", "served", "expected"),
    [
        pytest.param(Standardise("x"), [1, 3], [1, 2, 5], {"x": [-1, 0, 3]}, id="standardise"),
        pytest.param(Standardise("x"), [2, 2], [2, 3], {"x": [0, 1]}, id="standardise a constant"),
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
        pytest.param(
            Vocabulary("x", encoding="id", missing="indicator"),
            ["b", "a"],
            [None, "new", "a", "b"],
            {"x_id": [0, 1, 2, 3]},
            id="vocabulary as ids",
        ),
        pytest.param(
            # zlib.crc32 of "a", "b" and "7" are 3904355907, 1908338681 and 1790921346.
            Hash("x", buckets=3, missing="indicator"),
            ["a"],
            ["a", "b", None],
            {"x_hash_0": [1, 0, 0], "x_hash_1": [0, 0, 0], "x_hash_2": [0, 1, 0], "x_missing": [0, 0, 1]},
            id="hash",
        ),
        pytest.param(Hash("x", buckets=2), [1], [7], {"x_hash_0": [1], "x_hash_1": [0]}, id="hash an integer"),
    ],
)
def test_transform(transform: Transform, train: list[Any], served: list[Any], expected: dict[str, list[float]]) -> None:
    """The numbers that a model is fed, through state that went over JSON."""
    assert transformed(transform, train, served) == expected


@pytest.mark.parametrize(
    "transform", [Passthrough("x"), Standardise("x"), Bucketise("x")], ids=lambda t: type(t).__name__
)
@pytest.mark.parametrize("hole", [None, float("nan")], ids=["null", "nan"])
def test_a_missing_number_is_refused_where_nothing_is_said_of_it(transform: Transform, hole: float | None) -> None:
    """Otherwise a NaN would reach the model."""
    with pytest.raises(BadDataError, match=r"'x'\): 1 of 3 values are missing"):
        transform.fit(frame([1.0, hole, 2.0]))


@pytest.mark.parametrize("transform", [Vocabulary("x"), Hash("x")], ids=lambda t: type(t).__name__)
def test_a_missing_category_is_refused_where_nothing_is_said_of_it(transform: Transform) -> None:
    with pytest.raises(BadDataError, match=r"'x'\): 1 of 2 values are missing"):
        transform.fit(frame(["a", None]))


@pytest.mark.parametrize(
    ("transform", "values", "message"),
    [
        pytest.param(Standardise("x"), ["a"], "the column is String, not a number", id="text as number"),
        pytest.param(Vocabulary("x"), [1.5], "the column is Float64; categories are", id="float as category"),
        pytest.param(Bucketise("x", buckets=1), [1.5], "at least 2, got 1", id="one bucket"),
        pytest.param(Hash("x", buckets=1), ["a"], "at least 2, got 1", id="one hash bucket"),
    ],
)
def test_a_definition_that_does_not_fit_is_refused(transform: Transform, values: list[Any], message: str) -> None:
    with pytest.raises(BadConfigError, match=message):
        transform.fit(frame(values))


def test_state_does_not_depend_on_the_order_of_rows() -> None:
    """Otherwise a rebuild could differ in the last bit of a mean."""
    values = [0.1 * i**1.5 for i in range(1000)]

    assert Standardise("x").fit(frame(values)) == Standardise("x").fit(frame(values[::-1]))
