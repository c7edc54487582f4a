"""
Point-in-time joins: a value is joined as it was known at the row's own time, never later.

Both functions take and return lazy frames, and add columns to ``rows`` without changing their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import polars as pl

_ROW = "__row"


def last_known(
    rows: pl.LazyFrame,
    observations: pl.LazyFrame,
    *,
    time: str,
    observed: str,
    by: Sequence[str],
    tolerance: timedelta,
) -> pl.LazyFrame:
    """
    Add the columns of the newest observation strictly before each row's time.

    :param time: column of ``rows`` with the instant
    :param observed: column of ``observations`` with the instant; dropped from the result
    :param by: key columns of both
    :param tolerance: older observations count as missing
    :return: ``rows`` with the observations' columns, null where nothing was known; in the order of ``rows``
    """
    return (
        rows.with_row_index(_ROW)
        .sort(time, _ROW)
        .join_asof(
            # Sorting by everything settles which of two observations of one instant is taken.
            observations.drop_nulls(observed).sort(observed, pl.all().exclude(observed)),
            left_on=time,
            right_on=observed,
            by=list(by),
            strategy="backward",
            allow_exact_matches=False,
            tolerance=tolerance,
            coalesce=False,
            check_sortedness=False,
        )
        .sort(_ROW)
        .drop(_ROW, observed)
    )


def trailing_sums(
    rows: pl.LazyFrame,
    events: pl.LazyFrame,
    *,
    day: str,
    days: int,
    by: Sequence[str],
    sums: Mapping[str, pl.Expr],
) -> pl.LazyFrame:
    """
    Add sums over the events of a row's key on the ``days`` calendar days before the row's own day.

    Sums are integers: a running sum of floats would depend, in its last bits, on how far back the events reach, and
    the same day would then differ between two nightly snapshots. Means and shares are quotients of sums.

    :param day: date column of both; events of the row's own day and later are not seen
    :param by: key columns of both
    :param sums: name of the new column to an integer or boolean expression over ``events``; null counts as 0
    :return: ``rows`` with the sums, 0 where there were no events; in the order of ``rows``
    """
    keys = [*by, day]
    # Used twice below: without the cache, a chain of n such joins would run the first one 2^n times.
    rows = rows.cache()
    daily = events.group_by(keys).agg(expr.cast(pl.Int64).sum().alias(name) for name, expr in sums.items())
    # The rows' own days are made part of the series, so that a key that has events on other days only is found too.
    asked = rows.select(keys).unique().with_columns(pl.lit(0, pl.Int64).alias(name) for name in sums)
    series = pl.concat([daily.select(*keys, *sums), asked]).group_by(keys).agg(pl.col(list(sums)).sum())
    # closed="left" is [day - days, day). By name, as rolling_sum_by sums a run in its given order.
    window = series.sort(*by, day).with_columns(
        pl.col(name).rolling_sum_by(day, window_size=f"{days}d", closed="left", min_samples=0).over(by).fill_null(0)
        for name in sums
    )
    return rows.join(window, on=keys, how="left", nulls_equal=True, maintain_order="left")
