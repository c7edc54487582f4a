"""
Splits of a snapshot: which rows the model is fitted on, which choose its best epoch, and which judge it.

By time, what is held out is newer than everything that is fitted on, as it will be in production. By key, it is other
entities: all rows of a user, say, are in one split, and stay in it in every later snapshot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import polars as pl

from mlops.contract.sections.ingest import KeySplit, TimeSplit
from mlops.contract.step import BadDataError

SPLITS: Final = ("train", "validation", "test")
INDEX: Final = "split"
"""Name of the column of an index: the name of each row's split."""


def days_of(days: Sequence[str], split: TimeSplit) -> dict[str, list[str]]:
    """
    Deal out a snapshot's days.

    :param days: ``YYYY-MM-DD``, those that have rows
    :return: days of ``train``, ``validation`` and ``test``, oldest first; no day is in two of them
    :raises BadDataError: where no day is left to train on
    """
    ordered = sorted(set(days))
    num_train = len(ordered) - split.validation_days - split.test_days
    if num_train < 1:
        raise BadDataError(
            f"the snapshot has {len(ordered)} days with rows, too few for validation_days={split.validation_days}, "
            f"test_days={split.test_days} and one day to train on; raise ingest.window_days, or start the pipeline "
            "where its sources reach further back"
        )
    test_start = len(ordered) - split.test_days
    return {
        "train": ordered[:num_train],
        "validation": ordered[num_train:test_start],
        "test": ordered[test_start:],
    }


def index_of(rows: pl.DataFrame, split: KeySplit, day: str) -> pl.DataFrame:
    """
    Return the split of each row: a function of its key's text alone, so that a key never changes its split.

    :return: one column, :data:`INDEX`
    :raises BadDataError: where the key is missing, no text or whole number, or null
    """
    if split.key not in rows.columns:
        raise BadDataError(
            f"the table has no column {split.key!r}, which ingest.split.key names; it has {', '.join(rows.columns)}"
        )
    keys = rows[split.key]
    if not (keys.dtype == pl.String or keys.dtype.is_integer()):
        raise BadDataError(f"ingest.split.key {split.key!r} is {keys.dtype}; a key is text or a whole number")
    if num_nulls := keys.null_count():
        raise BadDataError(
            f"ingest.split.key {split.key!r} is null in {num_nulls} of {day}'s {rows.height} rows; "
            "leave them out in ingest.transform, or give them a key"
        )
    text = keys.cast(pl.String).alias("key").to_frame()
    distinct = text.unique()
    # Where a key lies among all keys. Not by Polars' hash, which may change with its version.
    digests = [hashlib.sha256(key.encode()).digest()[:8] for key in distinct["key"].to_list()]
    place = pl.Series(digests, dtype=pl.Binary).bin.reinterpret(dtype=pl.UInt64, endianness="big")
    names = distinct.with_columns(
        pl.when(place < int(split.test * 2**64))
        .then(pl.lit("test"))
        .when(place < int((split.test + split.validation) * 2**64))
        .then(pl.lit("validation"))
        .otherwise(pl.lit("train"))
        .alias(INDEX)
    )
    return text.join(names, on="key", how="left", maintain_order="left").select(INDEX)
