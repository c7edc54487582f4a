"""
One row per flight, to tell before departure whether it will arrive more than 15 minutes late.

Known beforehand are the schedule, the history of route, carrier and hour up to the day before, and the weather as last
observed. ``arr_delay`` and ``delayed`` are the outcome; both are null where a flight was cancelled or diverted.
"""

from __future__ import annotations

from datetime import timedelta

import narwhals as nw

from mlops import Table, last_known, trailing_sums

LATE_MINUTES = 15
"""A flight later than this is not on time, by the definition of the US DOT."""
HISTORY_DAYS = 28
HISTORIES = {"route": ["origin", "dest"], "carrier": ["origin", "carrier"], "hour": ["origin", "hour"]}
WEATHER = ["temp", "wind_speed", "precip", "pressure", "visib"]


def flights(sources: dict[str, Table]) -> Table:
    """Flights with weather, history and outcome; ``scheduled_departure`` is the event time."""
    table = sources["flights"].with_columns(
        scheduled_departure=nw.col("time_hour") + nw.col("minute") * timedelta(minutes=1),
        day=(nw.col("year") * 10_000 + nw.col("month") * 100 + nw.col("day")).cast(nw.String).str.to_date("%Y%m%d"),
        delayed=(nw.col("arr_delay") > LATE_MINUTES).cast(nw.Int8),
    )
    rows = table.select(
        "scheduled_departure", "day", "hour", "carrier", "flight", "origin", "dest", "distance", "arr_delay", "delayed"
    )
    rows = last_known(
        rows,
        sources["weather"].select("origin", "time_hour", *(nw.col(name).cast(nw.Float64) for name in WEATHER)),
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
            sums={landed: ~nw.col("delayed").is_null(), late: nw.col("delayed")},
        ).with_columns(nw.when(nw.col(landed) > 0).then(nw.col(late) / nw.col(landed)).alias(late))
    return rows
