"""A difference must count what really changed: people decide by it whether a night can be trusted."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
from committed_snapshots import store_snapshot, visits

from mlops.contract.manifest import compare_columns, differing_periods
from mlops.contract.step import BadConfigError
from mlops.data.snapshots.snapshot import Snapshot
from mlops.data.snapshots.snapshot_diff import compare_period, compare_rows
from mlops.store import Store

DAY = "2024-01-01"


def change(rows: pl.DataFrame, visitor: int, **values: object) -> pl.DataFrame:
    return rows.with_columns(
        pl.when(pl.col("visitor") == visitor).then(pl.lit(value, rows.schema[name])).otherwise(name).alias(name)
        for name, value in values.items()
    )


def test_changed_rows_are_told_from_new_and_lost_ones() -> None:
    old = visits(1, per_day=50)
    new = change(change(old, 103, seconds=99.5), 104, seconds=None, page="/new")
    new = new.filter(pl.col("visitor") != 110).vstack(visits(2, per_day=3))

    found = compare_rows(DAY, old, new)

    assert (found.added, found.removed, found.changed) == (3, 1, 2)
    assert found.columns == {"seconds": 2, "page": 1}
    assert {example["before"]["seconds"] for example in found.examples} == {2.5, 3.0}
    assert {example["after"]["seconds"] for example in found.examples} == {99.5, None}
    assert all("page" not in example["after"] or example["after"]["page"] == "/new" for example in found.examples)


@pytest.mark.parametrize("seed", range(5))
def test_counts_hold_for_random_edits(seed: int) -> None:
    """Against a count by hand, with nulls, NaN, lists and wholly equal rows among them."""
    dice = random.Random(seed)
    old = pl.DataFrame(
        {
            "name": [f"n{i}" if i % 7 else None for i in range(40)],
            "number": list(range(40)),
            "value": [float("nan") if i % 5 == 0 else None if i % 6 == 0 else float(i) for i in range(40)],
            "tags": [[i, i + 1] if i % 3 else None for i in range(40)],
        }
    )
    old = old.vstack(old[:3])  # three rows occur twice
    numbers = dice.sample(range(3, 40), 12)
    edited, lost = numbers[:7], numbers[7:]
    new = old.filter(~pl.col("number").is_in(lost))
    new = new.with_columns(pl.when(pl.col("number").is_in(edited)).then(pl.lit(-1.0)).otherwise("value").alias("value"))
    new = new.vstack(old[:1]).sample(fraction=1.0, shuffle=True, seed=seed)  # one row now occurs three times

    found = compare_rows(DAY, old, new)

    assert (found.added, found.removed, found.changed) == (1, 5, 7)
    assert found.columns == {"value": 7}
    assert compare_rows(DAY, new, new).changed == compare_rows(DAY, new, new).added == 0


def test_a_given_key_decides_which_rows_belong_together() -> None:
    old = pl.DataFrame({"id": [1, 2], "seen": ["a", "b"], "n": [1, 2]})
    new = pl.DataFrame({"id": [1, 2], "seen": ["b", "a"], "n": [2, 1]})
    assert compare_rows(DAY, old, new, ["id"]).columns == {"seen": 2, "n": 2}
    assert compare_rows(DAY, old, new, ["seen"]).columns == {"id": 2}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (["visitors"], "share no column 'visitors' of one type, only at, page"),
        (["page"], "page does not tell the rows"),
    ],
)
def test_a_key_that_is_none_is_refused(key: list[str], message: str) -> None:
    old = visits(1)
    with pytest.raises(BadConfigError, match=message):
        compare_rows(DAY, old, old.with_columns(seconds=pl.col("seconds") + 1), key)


def test_rows_without_a_key_are_new_or_lost() -> None:
    old = pl.DataFrame({"value": [1.5, 2.5]})
    found = compare_rows(DAY, old, pl.DataFrame({"value": [1.5, 3.5]}))
    assert (found.added, found.removed, found.changed, found.key) == (1, 1, 0, ())


def test_only_days_with_other_blobs_are_read(tmp_path: Path) -> None:
    """A window of 30 days of millions of rows is compared in the time of the one day that changed."""
    store = Store(f"file://{tmp_path}/store")
    before = store_snapshot(store, visits(1, 2, 3), last_day=3)
    after = store_snapshot(store, change(visits(2, 3, 4), 301, page="/new"), last_day=4)
    days = differing_periods(before, after)
    assert days == ["2024-01-01", "2024-01-03", "2024-01-04"]
    for blob in before.partitions[1].blobs:
        Path(tmp_path, "store", blob.key).unlink()  # equal on both sides: not needed

    found = [compare_period(Snapshot(store, before), Snapshot(store, after), day) for day in days]

    assert [(day.added, day.removed, day.changed) for day in found] == [(0, 4, 0), (0, 0, 1), (4, 0, 0)]


def test_columns_that_came_went_or_changed_their_type(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    rows = visits(1)
    before = store_snapshot(store, rows, last_day=1)
    after = store_snapshot(
        store,
        rows.drop("page").with_columns(pl.col("visitor").cast(pl.String), lang=pl.lit("en")),
        last_day=1,
    )
    columns = compare_columns(before, after)
    assert (columns.added, columns.removed) == ({"lang": "String"}, {"page": "String"})
    assert columns.retyped == {"visitor": ("Int64", "String")}
    day = compare_period(Snapshot(store, before), Snapshot(store, after), DAY)
    assert (day.added, day.removed, day.changed) == (0, 0, 0), "the columns that both have hold the same"
