"""The differences between the rows of two snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from mlops.contract.step import BadConfigError
from mlops.data.snapshots.snapshot import Snapshot

NUM_EXAMPLES: Final = 3
_COUNT: Final = "__count"
_AFTER: Final = "__after"


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsDiff:
    """Differences between the rows of one period in two snapshots, in the columns that both have with the same type."""

    period: str
    added: int
    removed: int
    changed: int
    """Rows with the same key and other values; they are not among the added and removed ones."""
    columns: Mapping[str, int]
    """Number of changed rows that differ in a column, by column; most first."""
    key: Sequence[str]
    """Columns whose values pair rows of the two snapshots; empty if no rows were paired."""
    examples: Sequence[Mapping[str, Mapping[str, Any]]]
    """
    Some changed rows: ``{"key": {column: value}, "before": {...}, "after": {...}}``, the last two with the differing
    columns.
    """


def compare_period(before: Snapshot, after: Snapshot, period: str, key: Sequence[str] = ()) -> RowsDiff:
    """
    Compare the rows of one period of two snapshots.

    :param key: columns that identify a row; where there are none they are inferred, see :func:`infer_key`
    :raises BadConfigError: if these columns do not identify a row
    """
    if period not in before.periods or period not in after.periods:
        added, removed = (
            sum(part.num_rows for part in snapshot.manifest.partitions if part.period == period)
            for snapshot in (after, before)
        )
        return _unpaired(period, added, removed)
    return compare_rows(period, before.read([period]), after.read([period]), key)


def compare_rows(period: str, old: pl.DataFrame, new: pl.DataFrame, key: Sequence[str] = ()) -> RowsDiff:
    """Compare two tables of one period's rows, as :func:`compare_period` does."""
    columns = [name for name in old.columns if new.schema.get(name) == old.schema[name]]
    if unknown := [name for name in key if name not in columns]:
        raise BadConfigError(f"the snapshots share no column {unknown[0]!r} of one type, only {', '.join(columns)}")
    if not columns:
        return _unpaired(period, new.height, old.height)
    old, new = old.select(columns), new.select(columns)
    removed, added = _surplus(old, new), _surplus(new, old)
    if key and (removed.n_unique(key) < removed.height or added.n_unique(key) < added.height):
        raise BadConfigError(f"{', '.join(key)} does not tell the rows of {period} apart: add columns to the key")
    chosen = list(key) or infer_key(old, new, removed, added)
    if not chosen:
        return _unpaired(period, added.height, removed.height)
    # Of rows that are wholly equal the first belongs to the first.
    old_rows, new_rows = (
        rows.with_columns(pl.int_range(pl.len()).over(chosen).alias(_COUNT)) for rows in (removed, added)
    )
    pairs = old_rows.join(
        new_rows, on=[*chosen, _COUNT], how="inner", nulls_equal=True, suffix=_AFTER, maintain_order="left"
    )
    values = [name for name in columns if name not in chosen]
    differs = pairs.select(pl.col(name).ne_missing(pl.col(name + _AFTER)).alias(name) for name in values)
    counts = {name: int(differs[name].sum()) for name in values}
    return RowsDiff(
        period=period,
        added=added.height - pairs.height,
        removed=removed.height - pairs.height,
        changed=pairs.height,
        columns=dict(sorted(((n, c) for n, c in counts.items() if c), key=lambda item: -item[1])),
        key=chosen,
        examples=[
            _example(pair, differ, chosen)
            for pair, differ in zip(
                pairs.head(NUM_EXAMPLES).iter_rows(named=True),
                differs.head(NUM_EXAMPLES).iter_rows(named=True),
                strict=True,
            )
        ],
    )


def infer_key(old: pl.DataFrame, new: pl.DataFrame, removed: pl.DataFrame, added: pl.DataFrame) -> list[str]:
    """
    Infer the columns that tell the rows of both tables apart, and differ least between the removed and the added rows.

    Columns are taken in the order of how many of their values stand on one side only, each that tells more rows apart,
    until all are told apart; then those that the others can do without are left out, the coarsest first. Numbers with a
    fraction measure something; they identify nothing.

    :return: the columns; empty if no columns do this, or if there is nothing to pair
    """
    if removed.is_empty() or added.is_empty():
        return []
    # Rows that are wholly equal cannot be told apart, and need not be.
    old, new = old.unique(), new.unique()
    candidates = [name for name, dtype in old.schema.items() if not (dtype.is_float() or dtype.is_nested())]
    one_sided = {
        name: removed.select(name).unique().join(added.select(name), on=name, how="anti", nulls_equal=True).height
        for name in candidates
    }
    key: list[str] = []
    told_apart = 1
    for name in sorted(candidates, key=lambda name: one_sided[name]):
        groups = old.n_unique([*key, name])
        if groups > told_apart:
            key.append(name)
            told_apart = groups
        if key and told_apart == old.height and new.n_unique(key) == new.height:
            break
    else:
        return []
    for name in sorted(key, key=lambda name: old[name].n_unique()):
        fewer = [other for other in key if other != name]
        if fewer and old.n_unique(fewer) == old.height and new.n_unique(fewer) == new.height:
            key = fewer
    return key


def _unpaired(period: str, added: int, removed: int) -> RowsDiff:
    return RowsDiff(period=period, added=added, removed=removed, changed=0, columns={}, key=(), examples=())


def _surplus(rows: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that occur more often here than in the other table, as many times as they do."""
    here, there = (frame.group_by(rows.columns).len(_COUNT) for frame in (rows, others))
    counted = here.join(there, on=rows.columns, how="left", nulls_equal=True, suffix=_AFTER).with_columns(
        pl.col(_COUNT).cast(pl.Int64) - pl.col(_COUNT + _AFTER).fill_null(0).cast(pl.Int64)
    )
    surplus = counted.filter(pl.col(_COUNT) > 0).sort(rows.columns)
    repeated = surplus.select(pl.int_range(pl.len()).repeat_by(_COUNT).explode().drop_nulls()).to_series()
    return surplus.select(rows.columns)[repeated]


def _example(pair: Mapping[str, Any], differs: Mapping[str, bool], key: Sequence[str]) -> dict[str, dict[str, Any]]:
    changed = [name for name, differ in differs.items() if differ]
    return {
        "key": {name: pair[name] for name in key},
        "before": {name: pair[name] for name in changed},
        "after": {name: pair[name + _AFTER] for name in changed},
    }
