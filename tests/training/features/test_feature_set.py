from __future__ import annotations

import dataclasses
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import pytest

from mlops_provider.step import BadConfigError, BadDataError
from training.features.feature_set import FeatureSet
from training.features.parity import check_parity
from training.features.transforms import Passthrough, Standardise, Vocabulary

QUERIES = FeatureSet(
    label="grade",
    outcomes=("delay",),
    group_by=("query",),
    min_group_size=2,
    order_by=("item",),
    derived={"double": nw.col("x") * 2, "rank": nw.col("double").rank("min").over("query")},
    transforms=[Standardise("double"), Passthrough("rank"), Vocabulary("kind", missing="indicator")],
)


@pytest.fixture
def rows() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "query": ["q2", "q1", "q2", "q3", "q1", "q2"],
            "item": [5, 4, 3, 2, 1, 0],
            "x": [5.0, 4.0, 3.0, 2.0, 1.0, 0.0],
            "kind": ["a", "b", None, "a", "b", "a"],
            "delay": [9, 9, 9, 9, 9, 9],
            "grade": [0, 1, 2, 3, 4, 0],
        }
    )


def test_rows_are_grouped_ordered_and_single_ones_left_out(rows: pl.DataFrame) -> None:
    """Otherwise scores could not be matched with the rows they belong to."""
    table = QUERIES.apply(rows, QUERIES.fit(rows))

    assert table.offsets.tolist() == [0, 2, 5]
    assert table.labels.tolist() == [4, 1, 0, 2, 0]
    arranged = QUERIES.arrange(rows)
    assert arranged["item"].to_list() == [1, 4, 0, 3, 5]
    assert arranged["grade"].to_list() == table.labels.tolist()


def test_features(rows: pl.DataFrame) -> None:
    """The numbers a model is fed: [N, F] float32, columns in the order of the definition."""
    state = QUERIES.fit(rows)
    table = QUERIES.apply(rows, state)

    assert QUERIES.names(rows, state) == ["double", "rank", "kind=a", "kind=b", "kind=<other>", "kind_missing"]
    assert table.features.dtype == np.float32
    double = np.array([2.0, 8.0, 0.0, 6.0, 10.0])  # q3 is no part of what is fitted
    np.testing.assert_allclose(table.features[:, 0], (double - double.mean()) / double.std(), rtol=1e-6)
    assert table.features[:, 1].tolist() == [1, 2, 1, 2, 3]
    assert table.features[:, 2:].tolist() == [[0, 1, 0, 0]] * 2 + [[1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]


def test_where_leaves_rows_out_but_not_when_serving(rows: pl.DataFrame) -> None:
    """Otherwise a served row would be dropped because its outcome is not known yet."""
    features = FeatureSet(
        label="grade", outcomes=("delay",), where=nw.col("delay") < 9, order_by=("item",), transforms=[Passthrough("x")]
    )
    rows = rows.with_columns(delay=pl.col("item"))
    state = features.fit(rows)

    assert features.apply(rows.with_columns(delay=pl.col("item") * 3), state).num_samples == 3
    served = features.apply(rows.drop("grade", "delay"), state)
    assert served.num_samples == 6
    assert np.isnan(served.labels).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"derived": {"double": nw.col("xx") * 2}}, "derived column 'double': .*xx", id="unknown column"),
        pytest.param({"derived": {"double": nw.col("delay") * 2}}, "derived column 'double': .*delay", id="outcome"),
        pytest.param({"derived": {"double": nw.col("kind") * 2.5}}, "derived column 'double'", id="arithmetic on text"),
        pytest.param({"transforms": [Standardise("y")]}, "transforms: there is no column 'y'", id="transform"),
        pytest.param({"transforms": [Standardise("x")] * 2}, "two transforms make a feature 'x'", id="twice"),
        pytest.param({"order_by": ("nothing",)}, "no column 'nothing'; there are query, item", id="order_by"),
        pytest.param({"where": nw.col("nothing") > 1}, "FeatureSet: where: .*nothing", id="where"),
    ],
)
def test_a_bad_definition_names_the_column(rows: pl.DataFrame, change: dict[str, Any], message: str) -> None:
    """The user must learn which line of features.py to change; a retry cannot help."""
    with pytest.raises(BadConfigError, match=message):
        dataclasses.replace(QUERIES, **change).fit(rows)


@pytest.mark.parametrize("column", ["grade", "delay"])
def test_the_outcome_cannot_be_a_feature(column: str) -> None:
    """Otherwise a model would look perfect until it is served."""
    with pytest.raises(BadConfigError, match="the label or an outcome"):
        dataclasses.replace(QUERIES, transforms=[Standardise(column)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"grade": pl.lit(None, pl.Int64)}, "label 'grade' is missing in 5 rows", id="label"),
        pytest.param({"query": pl.lit(None, pl.String)}, "'query' of group_by or order_by has missing", id="group"),
        pytest.param({"item": pl.lit(1)}, "the order is not decided", id="tie"),
        pytest.param({"x": pl.lit(float("inf"))}, "feature 'double' is ", id="infinite"),
    ],
)
def test_bad_data_names_the_column(rows: pl.DataFrame, change: dict[str, pl.Expr], message: str) -> None:
    """Otherwise NaN, or rows in an order that changes from night to night, would reach the model."""
    state = QUERIES.fit(rows)

    with pytest.raises(BadDataError, match=message):
        QUERIES.apply(rows.with_columns(**change), state)


def test_parity_holds_for_row_and_group_features(rows: pl.DataFrame) -> None:
    assert check_parity(QUERIES, rows, QUERIES.fit(rows)) == 2


@pytest.mark.parametrize(
    "expr",
    [
        pytest.param(nw.col("x") - nw.col("x").mean(), id="mean of all rows"),
        pytest.param(nw.col("x").shift(1).fill_null(0), id="row before"),
    ],
)
def test_parity_names_the_feature_that_depends_on_other_rows(rows: pl.DataFrame, expr: nw.Expr) -> None:
    """Otherwise the model would be served other numbers than it was trained on."""
    features = dataclasses.replace(
        QUERIES, derived={"double": expr}, transforms=[Standardise("x"), Passthrough("double")]
    )

    with pytest.raises(BadConfigError, match=r"served values of 'double' differ .*\.over\(query\)"):
        check_parity(features, rows, features.fit(rows))
