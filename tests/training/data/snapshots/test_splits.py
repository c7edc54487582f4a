from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from pydantic import TypeAdapter, ValidationError

from mlops.contract.sections.ingest import AnySplit, KeySplit, Split, TimeSplit
from mlops.contract.step import BadDataError
from mlops.data.snapshots.splits import _as_texts, index_of, periods_of

DAYS = [f"2024-01-{day:02}" for day in range(1, 11)]
BY_USER = KeySplit(key="user", validation=0.2, test=0.1)


def test_the_newest_days_are_held_out() -> None:
    """Otherwise the model would be fitted on the future of what it is judged on."""
    parts = periods_of(list(reversed(DAYS)), TimeSplit(validation=2, test=3), "day")

    assert parts == {"train": DAYS[:5], "validation": DAYS[5:7], "test": DAYS[7:]}


@pytest.mark.parametrize("num_days", [0, 4, 5])
def test_a_window_without_a_day_to_train_on_is_refused(num_days: int) -> None:
    with pytest.raises(BadDataError, match=f"{num_days} days with rows, too few"):
        periods_of(DAYS[:num_days], TimeSplit(validation=2, test=3), "day")


def splits(users: pl.Series, split: KeySplit = BY_USER) -> list[str]:
    return index_of(users.rename("user").to_frame(), split, "2024-01-01")["split"].to_list()


def test_a_key_keeps_its_split() -> None:
    """On any machine and day, whatever its neighbours: else a model is judged on what the last one was fitted to."""
    users = pl.Series([f"user-{number}" for number in range(6, 12)])

    assert splits(users) == ["train", "test", "validation", "test", "train", "train"]
    assert splits(users.reverse()) == splits(users)[::-1]
    assert splits(users[1:4]) == splits(users)[1:4]
    numbers = pl.Series(range(50))
    assert splits(numbers) == splits(numbers.cast(pl.String)) == splits(numbers.cast(pl.UInt8))


def test_splits_have_their_shares_of_the_keys() -> None:
    found = pl.Series(splits(pl.Series(range(20_000)))).value_counts(normalize=True)

    shares = dict(found.iter_rows())
    assert shares["test"] == pytest.approx(0.1, abs=0.01)
    assert shares["validation"] == pytest.approx(0.2, abs=0.01)


def test_a_larger_test_split_keeps_the_keys_it_had() -> None:
    users = pl.Series(range(1000))
    larger = splits(users, KeySplit(key="user", validation=0.2, test=0.3))

    assert all(now == "test" for now, before in zip(larger, splits(users), strict=True) if before == "test")


@pytest.mark.parametrize(
    ("users", "message"),
    [
        pytest.param(pl.Series(["a", None]), "'user' is null in 1 of 2024-01-01's 2 rows", id="null"),
        pytest.param(pl.Series([0.5]), "'user' is Float64; a key is text or a whole number", id="type"),
    ],
)
def test_a_key_that_is_none_is_refused(users: pl.Series, message: str) -> None:
    with pytest.raises(BadDataError, match=message):
        splits(users)


def test_a_key_column_that_is_missing_is_named() -> None:
    with pytest.raises(BadDataError, match="no column 'user', which ingest.split.key names; it has at, usr"):
        index_of(pl.DataFrame({"at": [1], "usr": [2]}), BY_USER, "2024-01-01")


ROWS = pl.DataFrame({"query": [f"q{n // 4}" for n in range(2_000)], "x": [n / 7 for n in range(2_000)]})


def dealt(table: pl.DataFrame, /, **settings: object) -> list[str]:
    split: AnySplit = TypeAdapter(Split).validate_python(settings)
    # As the step's process reads it.
    again = TypeAdapter(Split).validate_json(split.model_dump_json())
    assert again == split
    return index_of(table, again, "2024-01-01")["split"].to_list()


def test_a_row_keeps_its_split_whatever_its_neighbours_and_the_night() -> None:
    """An undated table has another instant every night: else what was held out yesterday would be learnt today."""
    settings = {"rows": "hash", "validation": 0.2, "test": 0.3}
    found = dealt(ROWS, **settings)
    assert dealt(ROWS.reverse(), **settings) == found[::-1]
    for night in (1, 2):
        at = pl.lit(datetime(2024, 1, night, tzinfo=UTC))
        assert dealt(ROWS.with_columns(at=at), **settings) == found
    shares = dict(pl.Series(found).value_counts(normalize=True).iter_rows())
    assert shares["test"] == pytest.approx(0.3, abs=0.05)
    assert shares["validation"] == pytest.approx(0.2, abs=0.05)
    assert dealt(pl.concat([ROWS, ROWS]), **settings) == found * 2, "equal rows are in one split"


@pytest.mark.parametrize(
    "values",
    [[b"a", b"\xff"], [[1, 2], [3]], [{"a": 1}, {"a": 2}], [float("nan"), 1.0], [None, None], [True, False]],
    ids=["bytes", "lists", "structs", "NaN", "nothing", "booleans"],
)
def test_rows_of_any_type_are_dealt_out(values: list[object]) -> None:
    """Broken: Polars panics where bytes are to be JSON, and an image would end the step."""
    rows = pl.DataFrame({"x": values, "y": [1, 2]}, strict=False)
    found = dealt(rows, rows="hash")
    assert set(found) <= {"train", "validation", "test"}
    assert dealt(rows.reverse(), rows="hash") == found[::-1]


def test_a_row_keeps_its_split_where_its_column_becomes_one_of_floats() -> None:
    """Broken: one fraction in a CSV column of whole numbers deals all rows out anew, held out ones among them."""
    numbers = [*range(-500, 500), None, 2**53 - 1, -(2**62), 10**17]
    whole = pl.DataFrame({"id": [f"1.0, {n}" for n in numbers], 'a "b"': numbers, "text": ["x"] * len(numbers)})
    found = dealt(whole, rows="hash")
    assert set(found) == {"train", "validation", "test"}
    floats = whole.cast({'a "b"': pl.Float64})
    assert dealt(floats, rows="hash") == found
    fraction = floats.with_columns(pl.when(pl.int_range(pl.len()) == 7).then(0.5).otherwise('a "b"').alias('a "b"'))
    changed = [one != other for one, other in zip(dealt(fraction, rows="hash"), found, strict=True)]
    assert not any(changed[:7] + changed[8:])


@pytest.mark.parametrize("dtype", [pl.List, lambda inner: pl.Struct({"x": inner, "y": pl.List(inner)})])
def test_a_row_keeps_its_split_where_numbers_inside_become_floats(dtype: Callable[[Any], Any]) -> None:
    """Broken: as of columns of numbers, of lists and structs of them."""
    values: list[Any] = [[n, n * 10, None] for n in range(200)]
    if dtype is not pl.List:
        values = [{"x": each[0], "y": each} for each in values]
    tables = [pl.DataFrame({"a": values, "b": range(200)}, {"a": dtype(inner), "b": pl.Int64})
              for inner in (pl.Int64, pl.Float64)]  # fmt: skip
    assert dealt(tables[0], rows="hash") == dealt(tables[1], rows="hash")


def test_floats_that_are_no_whole_numbers_are_dealt_out_as_before() -> None:
    """Broken: an upgrade would put rows that were learnt into the test split."""
    special = [0.5, -1.25, math.nan, math.inf, -math.inf, 1e300, 2.0**63, -(2.0**63), 1e-7, None] * 3
    rows = pl.DataFrame({"n": range(len(special)), "x": special, "s": ["t"] * len(special)})
    text = rows.select(pl.struct(pl.all()).struct.json_encode()).to_series()
    assert _as_texts(rows).to_list() == text.to_list()
    zeros = pl.DataFrame({"x": [0.0, -0.0, 5.0], "y": pl.Series([1.0, 2.5, None], dtype=pl.Float32)})
    assert _as_texts(zeros).to_list() == ['{"x":0,"y":1}', '{"x":0,"y":2.5}', '{"x":5,"y":null}']


def test_a_column_says_what_is_held_out() -> None:
    rows = pl.DataFrame({"fold": [0, 1, 2, 3, 0]})
    names = {"0": "test", "1": "validation", "2": "train", "3": "train"}
    assert dealt(rows, column="fold", names=names) == ["test", "validation", "train", "train", "test"]
    named = pl.DataFrame({"part": ["train", "test", "validation"]})
    assert dealt(named, column="part") == ["train", "test", "validation"]


def test_a_share_of_what_is_to_train_on_is_for_the_validation() -> None:
    """As where only a test set is published; rows of one query stay together."""
    rows = ROWS.with_columns(part=pl.when(pl.int_range(pl.len()) < 400).then(pl.lit("test")).otherwise(pl.lit("train")))
    names = {"train": "train", "test": "test"}
    found = rows.with_columns(split=pl.Series(dealt(rows, column="part", names=names, validation=0.25, key="query")))
    assert found["split"][:400].unique().to_list() == ["test"]
    assert found[400:].group_by("query").agg(pl.col("split").n_unique())["split"].max() == 1
    share = (found["split"][400:] == "validation").mean()
    assert share == pytest.approx(0.25, abs=0.07)


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (
            {"part": ["train", "dev", "dev"]},
            {"column": "part"},
            r"'part' is 'dev' in 2 of 2024-01-01's 3 rows; say in ingest.split.names what that means, e.g. "
            r"\{dev: validation\}",
        ),
        ({"part": ["train", None]}, {"column": "part"}, "column 'part' is null in 1 of 2024-01-01's 2 rows"),
        ({"part": [0.5]}, {"column": "part"}, "column 'part' is Float64; a column is text or a whole number"),
        ({"x": [1]}, {"column": "part"}, "no column 'part', which ingest.split.column names; it has x"),
    ],
)
def test_a_column_that_says_something_else_is_refused(
    rows: dict[str, list[object]], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(BadDataError, match=message):
        dealt(pl.DataFrame(rows), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": "hash", "validation": 0.5, "test": 0.5}, "content with all rows"),
        ({"column": "x", "names": {"a": "train"}}, "given with names for test and validation too"),
        ({"column": "x", "names": {"a": "train", "b": "test"}}, "validation, the share of the rows to train on"),
        ({"column": "x", "names": {"a": "dev"}}, "'train', 'validation' or 'test'"),
        ({"sources": {"train": "a", "test": "b"}}, "given with sources.validation, or with validation as a share"),
    ],
)
def test_a_split_that_lacks_something_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(Split).validate_python(settings)
