from __future__ import annotations

import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import pytest
from feature_tables import apply, apply_batches, arrange, fit

from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.feature_table import FeatureTable, concat
from mlops.features.applied import FittedFeatures
from mlops.features.derivation import Derivation
from mlops.features.feature_set import FeatureSet
from mlops.features.parity import check_parity
from mlops.features.transforms import Passthrough, Standardise, Vocabulary

HERE = r"test_feature_set\.py:{}: "

QUERIES = FeatureSet(
    label="grade",
    outcomes=("delay",),
    group_by=("query",),
    min_group_size=2,
    order_by=("item",),
    derived={"double": nw.col("x") * 2, "rank": nw.col("double").rank("min").over("query")},
    transforms=[Standardise("double"), Passthrough("rank"), Vocabulary("kind", missing="indicator")],
)


def line_of(text: str) -> int:
    """Of this file, counted from 1."""
    lines = open(__file__).read().splitlines()  # noqa: SIM115
    return next(number for number, line in enumerate(lines, 1) if text in line)


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


def equal(first: FeatureTable, second: FeatureTable) -> bool:
    return (
        np.array_equal(first.features.view(np.uint32), second.features.view(np.uint32))
        and np.array_equal(first.labels, second.labels, equal_nan=True)
        and np.array_equal(first.offsets, second.offsets)
    )


def test_rows_are_grouped_ordered_and_single_ones_left_out(rows: pl.DataFrame) -> None:
    """Otherwise scores could not be matched with the rows they belong to."""
    table = apply(QUERIES, rows, fit(QUERIES, rows))

    assert table.offsets.tolist() == [0, 2, 5]
    assert table.labels.tolist() == [4, 1, 0, 2, 0]
    arranged = arrange(QUERIES, rows)
    assert arranged["item"].to_list() == [1, 4, 0, 3, 5]
    assert arranged["grade"].to_list() == table.labels.tolist()


def test_features(rows: pl.DataFrame) -> None:
    """The numbers a model is fed: [N, F] float32, columns in the order of the definition."""
    state = fit(QUERIES, rows)
    table = apply(QUERIES, rows, json.loads(json.dumps(state)))

    names = ["double", "rank", "kind=a", "kind=b", "kind=<other>", "kind_missing"]
    assert FittedFeatures(QUERIES, state).feature_names == names
    assert table.features.dtype == np.float32
    double = np.array([2.0, 8.0, 0.0, 6.0, 10.0])  # q3 is no part of what is fitted
    np.testing.assert_allclose(table.features[:, 0], (double - double.mean()) / double.std(), rtol=1e-6)
    assert table.features[:, 1].tolist() == [1, 2, 1, 2, 3]
    assert table.features[:, 2:].tolist() == [[0, 1, 0, 0]] * 2 + [[1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]


def test_derived_columns_see_those_before_them(rows: pl.DataFrame) -> None:
    """They run together where they can; a column that takes the name of another must not be seen too early, or late."""
    features = FeatureSet(
        label="grade",
        order_by=("item",),
        derived={
            "before": nw.col("x") + 1,
            "x": nw.col("x") * 10,
            "after": nw.col("x") + 1,
            "last": nw.col("after") + nw.col("before"),
        },
        transforms=[Passthrough("before"), Passthrough("x"), Passthrough("after"), Passthrough("last")],
    )

    table = apply(features, rows, fit(features, rows))

    assert table.features[2].tolist() == [3, 20, 21, 24]


def test_where_leaves_rows_out_but_not_when_serving(rows: pl.DataFrame) -> None:
    """Otherwise a served row would be dropped because its outcome is not known yet."""
    features = FeatureSet(
        label="grade", outcomes=("delay",), where=nw.col("delay") < 9, order_by=("item",), transforms=[Passthrough("x")]
    )
    rows = rows.with_columns(delay=pl.col("item"))
    state = fit(features, rows)

    assert apply(features, rows.with_columns(delay=pl.col("item") * 3), state).num_samples == 3
    served = apply(features, rows.drop("grade", "delay"), state)
    assert served.num_samples == 6
    assert np.isnan(served.labels).all()


# Each stands on a line of its own, which the message must lead to.
TYPO = dataclasses.replace(
    QUERIES,
    derived={
        "double": nw.col("x"),
        "rank": nw.col("doubel") + 1,  # typo
    },
)
OUTCOME = dataclasses.replace(
    QUERIES,
    derived={
        "double": nw.col("delay") * 2,  # outcome
    },
)
OUTCOME_AS_INPUT = {"transforms": [Standardise("x"), Standardise("kin")]}  # a line of its own
TWICE = [
    Standardise("x"),
    Passthrough("x"),  # twice
]


@pytest.mark.parametrize(
    ("features", "line", "message"),
    [
        pytest.param(TYPO, "# typo", "derived column 'rank': .*'doubel'; did you mean 'double'?", id="derived"),
        pytest.param(OUTCOME, "# outcome", "'double': 'delay' is the label or an outcome", id="outcome"),
        pytest.param(
            dataclasses.replace(QUERIES, derived={"double": nw.col("kind") * 2.5}),  # text
            "# text", "derived column 'double'", id="arithmetic on text",
        ),
        pytest.param(
            dataclasses.replace(QUERIES, derived={"double": nw.all().mean()}),  # pattern
            "# pattern", "name each in a nw.col", id="all columns",
        ),
        pytest.param(
            dataclasses.replace(QUERIES, **OUTCOME_AS_INPUT), "OUTCOME_AS_INPUT = {",
            r"Standardise\('kin'\): there is no column 'kin'; did you mean 'kind'\?$", id="transform",
        ),
        pytest.param(
            dataclasses.replace(QUERIES, transforms=TWICE), "# twice", "already a feature 'x'", id="one name twice"
        ),
        pytest.param(
            dataclasses.replace(QUERIES, order_by=("zzz",)),  # order
            "# order", "FeatureSet.order_by: there is no column 'zzz'; there are query, item", id="order_by",
        ),
        pytest.param(
            dataclasses.replace(QUERIES, where=nw.col("gradee") > 1),  # where
            "# where", "FeatureSet.where: there is no column 'gradee'; did you mean 'grade'?", id="where",
        ),
    ],
)  # fmt: skip
def test_a_bad_definition_names_the_line_and_the_column(
    rows: pl.DataFrame, features: FeatureSet, line: str, message: str
) -> None:
    """The user must learn which line of features.py to change; a retry cannot help."""
    with pytest.raises(BadConfigError, match="^[^:]*" + HERE.format(line_of(line)) + f".*{message}"):
        fit(features, rows)


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
        pytest.param({"x": pl.lit("much")}, "column 'x' does not hold Float64", id="another type"),
        pytest.param({"item": pl.col("item") + 0.5}, "'item' does not hold Int64: .*no whole number", id="fraction"),
    ],
)
def test_bad_data_names_the_column(rows: pl.DataFrame, change: dict[str, pl.Expr], message: str) -> None:
    """Otherwise NaN, or rows in an order that changes from night to night, would reach the model."""
    state = fit(QUERIES, rows)

    with pytest.raises(BadDataError, match=message):
        apply(QUERIES, rows.with_columns(**change), state)


def test_a_column_that_is_gone_is_named(rows: pl.DataFrame) -> None:
    """As when the champion's features are made of a newer snapshot."""
    with pytest.raises(BadDataError, match="features are made of 'kind': there is no column 'kind'"):
        apply(QUERIES, rows.drop("kind"), fit(QUERIES, rows))


def test_types_are_those_that_were_fitted(rows: pl.DataFrame) -> None:
    """A column without values has no type, and whole numbers come as integers: the features must not change."""
    state = fit(QUERIES, rows)
    served = rows.with_columns(pl.col("x").cast(pl.Int32), pl.lit(None).alias("kind"))

    table = apply(QUERIES, served, state)

    assert equal(table, apply(QUERIES, rows.with_columns(pl.lit(None, pl.String).alias("kind")), state))


ANY_TYPE = FeatureSet(label="y", derived={"known": ~nw.col("x").is_null()}, transforms=[Passthrough("known")])
NOON, MIDNIGHT = datetime(2024, 1, 1, 12), datetime(2024, 1, 1)


def of_type(dtype: pl.DataType, value: object = None) -> pl.DataFrame:
    return pl.DataFrame({"x": pl.Series([value], dtype=dtype), "y": [0]})


def conformed(fitted: pl.DataType, given: pl.DataType, value: object) -> object:
    """A value, as features get it that were fitted to another type."""
    derivation = Derivation.of(ANY_TYPE, of_type(fitted).schema)
    return derivation.conform(of_type(given, value))["x"].item()


@pytest.mark.parametrize(
    ("fitted", "given", "value", "expected"),
    [
        (pl.Int64(), pl.String(), "7", 7),
        (pl.Int64(), pl.Boolean(), True, 1),
        (pl.Int64(), pl.Float64(), 7.0, 7),
        (pl.Int64(), pl.Decimal(10, 2), 7, 7),
        (pl.Float64(), pl.Int8(), 7, 7.0),
        (pl.String(), pl.Categorical(), "a", "a"),
        (pl.Date(), pl.Datetime("ms"), MIDNIGHT, MIDNIGHT.date()),
        (pl.Datetime("us"), pl.Date(), MIDNIGHT.date(), MIDNIGHT),
        (pl.Datetime("us"), pl.Datetime("ms"), NOON, NOON),
        (pl.Datetime("us", "UTC"), pl.Datetime("us", "Asia/Tokyo"), NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC)),
        (pl.Duration("us"), pl.Duration("ms"), timedelta(hours=1), timedelta(hours=1)),
        (pl.List(pl.Float64), pl.Array(pl.Int64, 2), [1, 2], [1.0, 2.0]),
        (pl.Float64(), pl.Null(), None, None),
        (pl.Int64(), pl.Datetime("us"), None, None),
    ],
    ids=str,
)
def test_a_column_of_another_type_keeps_what_its_values_mean(
    fitted: pl.DataType, given: pl.DataType, value: object, expected: object
) -> None:
    """Broken: a snapshot that another source wrote, with the same values, could not be predicted."""
    found = conformed(fitted, given, value)
    assert (found.to_list() if isinstance(found, pl.Series) else found) == expected


@pytest.mark.parametrize(
    ("fitted", "given", "value", "message"),
    [
        (pl.Int64(), pl.Datetime("us"), NOON, "to which these features were fitted: it is Datetime"),
        (pl.Int64(), pl.Date(), NOON.date(), "it is Date;"),
        (pl.Int64(), pl.Categorical(), "7", "it is Categorical;"),
        (pl.Float64(), pl.Enum(["7"]), "7", "it is Enum"),
        (pl.Float64(), pl.Duration("us"), timedelta(1), "it is Duration"),
        (pl.Int64(), pl.Decimal(10, 2), Decimal("7.5"), "7.50 is no whole number"),
        (pl.String(), pl.Int64(), 7, "it is Int64;"),
        (pl.Boolean(), pl.Int64(), 1, "it is Int64;"),
        (pl.Boolean(), pl.String(), "true", "it is String;"),
        (pl.Datetime("us"), pl.Datetime("us", "UTC"), NOON.replace(tzinfo=UTC), "it is Datetime"),
        (pl.Datetime("us", "UTC"), pl.Datetime("us"), NOON, "it is Datetime"),
        (pl.Datetime("us", "UTC"), pl.Date(), NOON.date(), "it is Date;"),
        (pl.Datetime("us"), pl.Int64(), 7, "it is Int64;"),
        (pl.Date(), pl.Datetime("us"), NOON, "Date: 2024-01-01 12:00:00 has a time of day"),
        (pl.Date(), pl.Datetime("us", "UTC"), MIDNIGHT.replace(tzinfo=UTC), "it is Datetime"),
        (pl.Date(), pl.String(), "2024-01-01", "it is String;"),
        (pl.Time(), pl.Datetime("us"), NOON, "it is Datetime"),
        (pl.Duration("us"), pl.Int64(), 7, "it is Int64;"),
        (pl.Binary(), pl.String(), "a", "it is String;"),
        (pl.List(pl.Float64), pl.Float64(), 7.0, "it is Float64;"),
        (pl.Float64(), pl.List(pl.Float64), [7.0], "it is List"),
    ],
    ids=str,
)
def test_a_column_of_values_that_mean_something_else_is_refused(
    fitted: pl.DataType, given: pl.DataType, value: object, message: str
) -> None:
    """Broken: an instant would be scored as its microseconds, a category as its code, one zone's hour as another's."""
    with pytest.raises(BadDataError, match=f"column 'x' does not hold .*{re.escape(message)}"):
        conformed(fitted, given, value)


def test_state_of_another_definition_is_refused(rows: pl.DataFrame) -> None:
    """Otherwise numbers of one feature would be scaled with the mean of another."""
    state = fit(QUERIES, rows)
    other = dataclasses.replace(QUERIES, transforms=[*reversed(QUERIES.transforms)])

    with pytest.raises(BadConfigError, match=r"Vocabulary\('kind'\): the state was fitted by Standardise"):
        apply(other, rows, state)
    with pytest.raises(BadConfigError, match="has format None, this release reads 2"):
        apply(QUERIES, rows, {"transforms": state["transforms"]})


@pytest.mark.parametrize("cuts", [(1, 2), (3,), (2, 2, 4)], ids=str)
def test_a_stream_of_batches_makes_the_same_rows(rows: pl.DataFrame, cuts: tuple[int, ...]) -> None:
    """Whatever fits into memory: a group that is cut between two batches is made whole."""
    state = fit(QUERIES, rows)
    ordered = rows.sort("query")
    frames = [ordered[a:b] for a, b in zip((0, *cuts), (*cuts, rows.height), strict=True)]

    assert equal(concat(list(apply_batches(QUERIES, frames, state))), apply(QUERIES, rows, state))


def test_a_group_that_comes_again_is_refused(rows: pl.DataFrame) -> None:
    """Otherwise its ranks would be those within its parts."""
    with pytest.raises(BadDataError, match="a group of equal query comes again"):
        list(apply_batches(QUERIES, [rows[:2], rows[2:4], rows[4:]], fit(QUERIES, rows)))


AT = FeatureSet(
    label="grade",
    order_by=("at",),
    derived={"minute": nw.col("at").dt.minute()},
    transforms=[Passthrough("minute"), Standardise("x", missing=0.0), Vocabulary("kind", missing="indicator")],
)


@pytest.fixture
def visits() -> pl.DataFrame:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return pl.DataFrame(
        {
            "at": [start.replace(minute=m) for m in (7, 8)],
            "x": [1, None],
            "kind": ["a", None],
            "extra": [1, 2],
            "grade": [0, 1],
        }
    )


@pytest.mark.parametrize("at", [datetime(2024, 1, 1, 0, 8, tzinfo=UTC), "2024-01-01T00:08:00+00:00"], ids=["", "text"])
def test_a_request_makes_the_row_of_the_batch(visits: pl.DataFrame, at: object) -> None:
    """A server has plain values, often out of JSON, and no table."""
    fitted = FittedFeatures(AT, fit(AT, visits))

    table = fitted.serve({"at": at, "x": None, "kind": None, "unasked": 1})

    assert table.features.tolist() == fitted.apply(visits).features[1:].tolist()
    assert fitted.serve([]).features.shape == (0, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"x": "much"}, "the request's 'x' is 'much', of type str; the column is Int64", id="type"),
        pytest.param({"x": 5.7}, "the request's 'x' is 5.7, of type float", id="fraction"),
        pytest.param({"x": True}, "the request's 'x' is True, of type bool", id="boolean"),
        pytest.param({"x": 2**70}, "the request does not have the columns' types", id="too large"),
        pytest.param({"kind": 1}, "the request's 'kind' is 1, of type int; the column is String", id="number for text"),
        pytest.param({"kind": "\ud800"}, "the request does not have the columns' types", id="no text"),
        pytest.param({"at": "2024-01-01T00:08:00"}, "without an offset from UTC; the column is Datetime", id="no zone"),
        pytest.param({"at": 1704067200}, "the request's 'at' is 1704067200, of type int", id="number for date"),
        pytest.param({"at": "yesterday"}, "the request's 'at' is 'yesterday', not ISO 8601", id="date"),
    ],
)
def test_a_bad_request_names_the_column(visits: pl.DataFrame, change: dict[str, Any], message: str) -> None:
    fitted = FittedFeatures(AT, fit(AT, visits))

    with pytest.raises(BadDataError, match=message):
        fitted.serve({"at": datetime(2024, 1, 1, tzinfo=UTC), "x": 1, "kind": "a"} | change)
    with pytest.raises(BadDataError, match="the request has no at, kind; give None where a value is not known"):
        fitted.serve({"x": 1})


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        pytest.param(["no", "yes", "no"], ("no", "yes"), id="text"),
        pytest.param([1, 3, 1], (1, 3), id="numbers"),
        pytest.param([False, True, False], (False, True), id="booleans"),
        pytest.param(pl.Series(["b", "a", "b"], dtype=pl.Categorical), ("b", "a", "c"), id="categories"),
    ],
)
def test_a_label_of_any_values_is_learnt_as_numbers_of_classes(label: Any, classes: tuple[object, ...]) -> None:
    rows = pl.DataFrame({"x": [1.0, 2.0, 3.0], "kept": label})
    features = FeatureSet(label="kept", classes=classes, transforms=[Passthrough("x")])
    assert apply(features, rows, fit(features, rows)).labels.tolist() == [0, 1, 0]


def test_a_label_that_is_no_class_is_named_with_its_value() -> None:
    """As on the night on which a new kind turns up."""
    rows = pl.DataFrame({"x": [1.0, 2.0, 3.0], "kept": ["no", "maybe", "yes"]})
    features = FeatureSet(
        label="kept",
        classes=("no", "yes"),  # two of three
        transforms=[Passthrough("x")],
    )
    place = HERE.format(line_of("# two of three"))
    with pytest.raises(BadDataError, match=place + "label 'kept' is 'maybe' in the first of 1 rows, which is none of"):
        apply(features, rows, fit(features, rows))
    with pytest.raises(BadDataError, match="label 'kept' is missing in 1 rows"):
        apply(features, rows.with_columns(kept=pl.Series(["no", None, "yes"])), fit(features, rows))
    plain = FeatureSet(label="kept", transforms=[Passthrough("x")])
    with pytest.raises(BadConfigError, match=r'say which values are classes: classes=\("maybe", "no", "yes"\)'):
        apply(plain, rows, fit(plain, rows))
    with pytest.raises(BadConfigError, match="must be at least two different values of the label"):
        FeatureSet(label="kept", classes=("no", "no"), transforms=[Passthrough("x")])


LABELS = pl.DataFrame({"x": [1.0, 2.0, 3.0], "hot": [1, 0, 1], "wet": [False, True, True], "old": [0.0, 0.0, 1.0]})


def test_several_labels_of_a_row_are_a_column_each() -> None:
    features = FeatureSet(label=("hot", "wet", "old"), transforms=[Passthrough("x")])
    state = fit(features, LABELS)
    assert apply(features, LABELS, state).labels.tolist() == [[1, 0, 0], [0, 1, 0], [1, 1, 1]]
    assert FittedFeatures(features, state).columns.names() == ["x"], "a request has none of them"
    served = FittedFeatures(features, state).serve({"x": 2.0})
    assert served.labels.shape == (1, 3)
    assert np.isnan(served.labels).all()
    assert np.isnan(apply(features, LABELS.select("x"), state).labels).all()
    assert check_parity(features, LABELS, state) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transforms": [Passthrough("wet")]}, "'wet' is the label or an outcome, unknown when the model is asked"),
        ({"derived": {"y": nw.col("old") * 2}, "transforms": [Passthrough("y")]}, "'old' is the label or an outcome"),
        ({"label": ("hot", "cold")}, "FeatureSet.label: there is no column 'cold'"),
        (
            {"label": ("hot",)},
            r"FeatureSet.label must be a column, or a list of at least two different ones, got \['hot",
        ),
        ({"label": ("hot", "hot")}, "at least two different ones"),
        ({"classes": (0, 1)}, "FeatureSet.classes are the values of one label, and label names 3 columns"),
    ],
)
def test_what_is_wrong_with_several_labels_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfigError, match=HERE.format("[0-9]+") + ".*" + message):
        fit(FeatureSet(**{"label": ("hot", "wet", "old"), "transforms": [Passthrough("x")], **change}), LABELS)


def test_a_part_of_the_labels_is_none() -> None:
    """Broken: rows of which a label is gone would be measured as if it were false."""
    features = FeatureSet(label=("hot", "wet", "old"), transforms=[Passthrough("x")])
    state = fit(features, LABELS)
    with pytest.raises(BadDataError, match="there is no column 'old'"):
        apply(features, LABELS.drop("old"), state)
    with pytest.raises(BadDataError, match="label 'wet' is missing in 1 rows"):
        apply(features, LABELS.with_columns(wet=pl.Series([None, True, False])), state)


ROWS = dataclasses.replace(QUERIES, group_by=(), min_group_size=1, derived={"double": nw.col("x") * 2},
    transforms=[Standardise("double"), Vocabulary("kind", missing="indicator")])  # fmt: skip


@pytest.mark.parametrize("order_by", [("item",), ()], ids=["keys", "none"])
def test_rows_that_are_alike_are_asked_for_in_one_request_and_without_keys(
    rows: pl.DataFrame, order_by: tuple[str, ...]
) -> None:
    """Broken: a client would have to invent a number for each row, and two customers alike could not be asked about."""
    features = dataclasses.replace(ROWS, order_by=order_by)
    fitted = FittedFeatures(features, json.loads(json.dumps(fit(features, rows))))
    assert list(fitted.columns) == ["x", "kind"]
    expected = fitted.apply(rows.sort("item")).features
    asked = [{"x": 5.0, "kind": "a"}, {"x": 0.0, "kind": "a"}, {"x": 5.0, "kind": "a"}]
    for served in (fitted.serve(asked), fitted.apply(pl.DataFrame(asked), request=True)):
        assert served.features.tolist() == expected[[5, 0, 5]].tolist(), "in the order of the request"
        assert served.num_samples == 3


def test_rows_without_keys_are_samples_each_of_its_own(rows: pl.DataFrame) -> None:
    """A table that somebody brings need not have a column that tells its rows apart, nor rows that differ."""
    features = dataclasses.replace(ROWS, order_by=())
    doubled = pl.concat([rows, rows[:2], rows[:1]])
    state = fit(features, doubled)
    table = apply(features, doubled, state)
    assert (table.num_rows, table.num_samples) == (9, 9)
    assert table.ids is not None
    assert len(set(table.ids.tolist())) == 6
    assert check_parity(features, doubled, state) == 6


@pytest.mark.parametrize("change", [{"group_by": ("query",)}, {"entity": ("query",)}], ids=str)
def test_where_rows_must_be_told_apart_an_order_is_asked_for(change: dict[str, Any]) -> None:
    with pytest.raises(BadConfigError, match=f"order_by is empty, and with {next(iter(change))} there must be one"):
        dataclasses.replace(ROWS, order_by=(), **change)


def test_parity_holds_for_row_and_group_features(rows: pl.DataFrame) -> None:
    assert check_parity(QUERIES, rows, fit(QUERIES, rows)) == 2


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
        check_parity(features, rows, fit(features, rows))


LEFT_OUT = dataclasses.replace(QUERIES, where=nw.col("grade") != 2)


def test_parity_names_the_feature_that_depends_on_rows_that_where_leaves_out(rows: pl.DataFrame) -> None:
    """Broken: a flight would be ranked among all of its day, by a model that has learnt from ranks among some."""
    with pytest.raises(BadConfigError, match=r"values of 'rank' differ .*: rows that FeatureSet.where leaves out of a"):
        check_parity(LEFT_OUT, rows, fit(LEFT_OUT, rows))
    by_column = dataclasses.replace(QUERIES, where=nw.col("item") != 3)
    with pytest.raises(BadConfigError, match=r"values of 'rank' differ .*: rows that FeatureSet.where leaves out of a"):
        check_parity(by_column, rows, fit(by_column, rows))


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        pytest.param({"derived": {"double": nw.col("x") * 2, "rank": nw.col("double") + 1}}, {}, id="rows alone"),
        pytest.param({"min_group_size": 3}, {}, id="group that is too small"),
        pytest.param({}, {"item": pl.when(pl.col("grade") != 2).then(pl.col("item"))}, id="left-out row without a key"),
        pytest.param({}, {"query": pl.when(pl.col("grade") != 2).then(pl.col("query"))}, id="left-out row of no group"),
    ],
)
def test_parity_holds_where_no_answer_depends_on_rows_that_where_leaves_out(
    rows: pl.DataFrame, change: dict[str, Any], columns: dict[str, pl.Expr]
) -> None:
    """Broken: a pipeline whose requests are answered alike, or refused, could not be trained."""
    more = pl.DataFrame({"query": ["q4"] * 3, "item": [7, 8, 9], "x": [1.0, 2.0, 3.0], "kind": ["a"] * 3,
                         "delay": [9] * 3, "grade": [0, 1, 3]})  # fmt: skip
    rows = pl.concat([rows, more]).with_columns(**columns)
    features = dataclasses.replace(LEFT_OUT, **change)
    assert check_parity(features, rows, fit(features, rows)) >= 1
