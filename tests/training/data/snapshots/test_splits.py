from __future__ import annotations

import polars as pl
import pytest

from mlops.contract.sections.ingest import KeySplit, TimeSplit
from mlops.contract.step import BadDataError
from mlops.data.snapshots.splits import days_of, index_of

DAYS = [f"2024-01-{day:02}" for day in range(1, 11)]
BY_USER = KeySplit(key="user", validation=0.2, test=0.1)


def test_the_newest_days_are_held_out() -> None:
    """Otherwise the model would be fitted on the future of what it is judged on."""
    parts = days_of(list(reversed(DAYS)), TimeSplit(validation_days=2, test_days=3))

    assert parts == {"train": DAYS[:5], "validation": DAYS[5:7], "test": DAYS[7:]}


@pytest.mark.parametrize("num_days", [0, 4, 5])
def test_a_window_without_a_day_to_train_on_is_refused(num_days: int) -> None:
    with pytest.raises(BadDataError, match=f"{num_days} days with rows, too few"):
        days_of(DAYS[:num_days], TimeSplit(validation_days=2, test_days=3))


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
