"""
One row per flight, to tell before departure whether it will arrive more than 15 minutes late.

Known beforehand are the schedule, the history of route, carrier and hour up to the day before, and the weather as last
observed. ``arr_delay`` and ``delayed`` are the outcome; both are null where a flight was cancelled or diverted.
"""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from training.features.point_in_time import last_known, trailing_sums

LATE_MINUTES = 15
"""A flight later than this is not on time, by the definition of the US DOT."""
HISTORY_DAYS = 28
HISTORIES = {"route": ["origin", "dest"], "carrier": ["origin", "carrier"], "hour": ["origin", "hour"]}
WEATHER = ["temp", "wind_speed", "precip", "pressure", "visib"]


def flights(sources: dict[str, pl.LazyFrame]) -> pl.LazyFrame:
    """Flights with weather, history and outcome; ``scheduled_departure`` is the event time."""
    table = sources["flights"].with_columns(
        scheduled_departure=pl.col("time_hour") + pl.duration(minutes="minute"),
        day=pl.date("year", "month", "day"),
        delayed=(pl.col("arr_delay") > LATE_MINUTES).cast(pl.Int8),
    )
    rows = table.select(
        "scheduled_departure", "day", "hour", "carrier", "flight", "origin", "dest", "distance", "arr_delay", "delayed"
    )
    rows = last_known(
        rows,
        sources["weather"].select("origin", "time_hour", *(pl.col(name).cast(pl.Float64) for name in WEATHER)),
        time="scheduled_departure",
        observed="time_hour",
        by=["origin"],
        tolerance=timedelta(hours=3),
    )
    for name, by in HISTORIES.items():
        landed, late = f"{name}_landed", f"{name}_late"
        rows = trailing_sums(
            rows,
            table,
            day="day",
            days=HISTORY_DAYS,
            by=by,
            sums={landed: pl.col("delayed").is_not_null(), late: pl.col("delayed")},
        ).with_columns(pl.when(pl.col(landed) > 0).then(pl.col(late) / pl.col(landed)).alias(late))
    return rows
