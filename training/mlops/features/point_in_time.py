"""
Point-in-time joins: a value is joined as it was known at the row's own time, never later.

Both functions take and return tables of either engine, and add columns to ``rows`` without changing their number. The
rows come in no particular order: a snapshot puts them into its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

import narwhals as nw
import polars as pl

from mlops.contract.step import BadConfigError
from mlops.data.engine.engines import Table, as_table, is_spark
from mlops.data.snapshots.canonical import sorted_by
from mlops.data.snapshots.internal_columns import taken_name

_RANK, _SEEN, _ROW, _FOUND = "__rank", "__seen", "__row", "__found"


def last_known(
    rows: Table,
    observations: Table,
    *,
    time: str,
    observed: str,
    by: Sequence[str],
    tolerance: timedelta,
    created: str | None = None,
) -> Table:
    """
    Add the columns of the newest observation strictly before each row's time.

    With ``created``, an observation is known to a row only if it was also written strictly before the row's time: of
    those known, the one observed last counts, however late it came; of several of that instant (an observation and
    its corrections), the one written last. What is still equal is settled by the other columns, the greatest value
    first, nulls last.

    :param time: column of ``rows`` with the instant; where it is null, nothing is known
    :param observed: column of ``observations`` with the instant that a value is of; dropped from the result, and so
        are observations without it
    :param by: key columns of both; a row with a null among them matches nothing
    :param tolerance: values of longer ago than this, by ``observed``, count as missing
    :param created: column of ``observations`` with the instant at which it was written; dropped from the result
    :return: ``rows`` with the observations' columns, null where nothing was known
    :raises BadConfigError: where both tables have a column of the same name that is not a key, or one has a name of the
        join's own columns
    """
    moments = [observed, *([created] if created else [])]
    values = [name for name in observations.collect_schema().names() if name not in (*moments, *by)]
    _no_common_columns(rows, [*moments, *values], by)
    join = _last_known_on_spark if is_spark(rows) else _last_known_on_polars
    return join(rows, observations, time=time, moments=moments, by=list(by), tolerance=tolerance, values=values)


def trailing_sums(
    rows: Table,
    events: Table,
    *,
    day: str,
    days: int,
    by: Sequence[str],
    sums: Mapping[str, nw.Expr],
) -> Table:
    """
    Add sums over the events of a row's key on the ``days`` calendar days before the row's own day.

    Sums are integers: a running sum of floats would depend, in its last bits, on how far back the events reach, and
    the same day would then differ between two nightly snapshots. Means and shares are quotients of sums.

    :param day: date column of both; events of the row's own day and later are not seen, nor events without a day
    :param by: key columns of both; null is a key like any other
    :param sums: name of the new column to an integer or boolean expression over ``events``; null counts as 0
    :return: ``rows`` with the sums, 0 where there were no events
    :raises BadConfigError: where ``rows`` has a column of a sum's name, or of the join's own columns
    """
    _no_common_columns(rows, list(sums), by)
    keys = [*by, day]
    daily = (
        events.filter(~nw.col(day).is_null())
        .group_by(keys)
        .agg(expression.cast(nw.Int64).sum().alias(name) for name, expression in sums.items())
    )
    add = _trailing_sums_on_spark if is_spark(rows) else _trailing_sums_on_polars
    return add(rows, daily, day=day, days=days, by=list(by), names=list(sums))


def _no_common_columns(rows: Table, added: Sequence[str], by: Sequence[str]) -> None:
    columns = rows.collect_schema().names()
    if (taken := taken_name([*columns, *added, *by])) is not None:
        raise BadConfigError(
            f"a point-in-time join is asked for with a column {taken!r}, a name that it gives to columns of its own; "
            "rename it before"
        )
    if common := [name for name in columns if name in added and name not in by]:
        raise BadConfigError(
            f"a point-in-time join would add a column {common[0]!r} that the rows have already; rename one of them"
        )


def _last_known_on_polars(
    rows: Table, observations: Table, *, time: str, moments: list[str], by: list[str], tolerance: timedelta,
    values: list[str],
) -> Table:  # fmt: skip
    observed = moments[0]
    # Sorting by everything settles which of two observations of one instant is taken: the last.
    in_order = partial(sorted_by, keys=[*moments, *values], nulls_last=False)
    known = observations.to_native().drop_nulls(moments).map_batches(in_order)
    if len(moments) == 1:
        seen = observed
    else:
        # Where an older observation comes in after a newer one, it never is the last known.
        newest = pl.col(_RANK).cum_max()
        known = (
            known.with_row_index(_RANK)
            .with_columns(pl.max_horizontal(moments).alias(_SEEN))
            .sort(_SEEN, _RANK)
            .filter(pl.col(_RANK) == (newest.over(by) if by else newest))
            .drop(_RANK)
        )
        seen = _SEEN
    joined = (
        rows.to_native()
        .sort(time)
        .join_asof(
            known,
            left_on=time,
            right_on=seen,
            by=by or None,
            strategy="backward",
            allow_exact_matches=False,
            tolerance=tolerance if seen == observed else None,
            coalesce=False,
            check_sortedness=False,
        )
    )
    if seen != observed:
        recent = pl.col(time) - pl.col(observed) <= tolerance
        joined = joined.with_columns(pl.when(recent).then(pl.col(values)))
    return as_table(joined.drop({*moments, seen}))


def _last_known_on_spark(
    rows: Table, observations: Table, *, time: str, moments: list[str], by: list[str], tolerance: timedelta,
    values: list[str],
) -> Table:  # fmt: skip
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = [F.col(name) for name in by]
    known = observations.to_native().dropna(subset=moments)
    # Structs compare field by field, nulls first: their maximum is the observation that counts.
    found = F.struct(*moments, *values)
    seen = F.greatest(*moments) if len(moments) > 1 else F.col(moments[0])
    both = (
        rows.to_native()
        .select(*keys, F.col(time).alias(_SEEN), F.struct("*").alias(_ROW))
        .unionByName(known.select(*keys, seen.alias(_SEEN), found.alias(_FOUND)), allowMissingColumns=True)
    )
    # At one instant the rows come before the observations, which are therefore not yet known to them.
    past = Window.partitionBy(*keys).orderBy(_SEEN, F.col(_FOUND).isNotNull()).rowsBetween(Window.unboundedPreceding, 0)
    latest = both.withColumn(_FOUND, F.max(_FOUND).over(past)).filter(F.col(_ROW).isNotNull())
    matches = F.col(_SEEN) <= F.col(_FOUND).getField(moments[0]) + F.lit(tolerance)
    for key in keys:
        matches = matches & key.isNotNull()
    columns = [F.when(matches, F.col(_FOUND).getField(name)).alias(name) for name in values]
    return as_table(latest.select(f"{_ROW}.*", *columns))


def _trailing_sums_on_polars(
    rows: Table, daily: Table, *, day: str, days: int, by: list[str], names: list[str]
) -> Table:
    keys = [*by, day]
    # Used twice below: without the cache, a chain of n such joins would run the first one 2^n times.
    lines = rows.to_native().cache()
    # The rows' own days are made part of the series, so that a key that has events on other days only is found too.
    asked = lines.select(keys).unique().with_columns(pl.lit(0, pl.Int64).alias(name) for name in names)
    series = pl.concat([daily.to_native().select(*keys, *names), asked]).group_by(keys).agg(pl.col(names).sum())
    # closed="left" is [day - days, day). By name, as rolling_sum_by sums a run in its given order.
    window = series.sort(*by, day).with_columns(
        pl.col(name).rolling_sum_by(day, window_size=f"{days}d", closed="left", min_samples=0).over(by).fill_null(0)
        for name in names
    )
    return as_table(lines.join(window, on=keys, how="left", nulls_equal=True))


def _trailing_sums_on_spark(
    rows: Table, daily: Table, *, day: str, days: int, by: list[str], names: list[str]
) -> Table:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = [F.col(name) for name in (*by, day)]
    # The rows are used once, not joined with sums made of them: in a chain of joins the plan would double each time.
    both = (
        rows.to_native()
        .select(*keys, F.struct("*").alias(_ROW))
        .unionByName(daily.to_native().select(*keys, *names), allowMissingColumns=True)
    )
    past = Window.partitionBy(*by).orderBy(F.unix_date(day)).rangeBetween(-days, -1)
    # Outside the window's projection a row's own columns and the sums never have the same name.
    summed = both.select(_ROW, *(F.coalesce(F.sum(name).over(past), F.lit(0)).alias(name) for name in names))
    return as_table(summed.filter(F.col(_ROW).isNotNull()).select(f"{_ROW}.*", *names))
