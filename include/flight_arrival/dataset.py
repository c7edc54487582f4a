"""
One row per flight, to tell before departure how many minutes late it will arrive; early is below 0.

Known beforehand are the schedule, how late the flights of route, carrier and hour were in the four weeks up to the day
before, and the weather as last observed. ``arr_delay`` is the outcome, null where a flight was cancelled or diverted.
"""

from __future__ import annotations

from datetime import timedelta

import narwhals as nw

from mlops import Table, last_known, trailing_sums

HISTORY_DAYS = 28
HISTORIES = {"route": ["origin", "dest"], "carrier": ["origin", "carrier"], "hour": ["origin", "hour"]}
WEATHER = ["temp", "wind_speed", "precip", "pressure", "visib"]


def flights(sources: dict[str, Table]) -> Table:
    """Flights with weather, history and outcome; ``scheduled_departure`` is the event time."""
    table = sources["flights"].with_columns(
        scheduled_departure=nw.col("time_hour") + nw.col("minute") * timedelta(minutes=1),
        day=(nw.col("year") * 10_000 + nw.col("month") * 100 + nw.col("day")).cast(nw.String).str.to_date("%Y%m%d"),
    )
    rows = table.select(
        "scheduled_departure", "day", "hour", "carrier", "flight", "origin", "dest", "distance", "arr_delay"
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
        landed, delay = f"{name}_landed", f"{name}_delay"
        rows = trailing_sums(
            rows,
            table,
            day="day",
            days=HISTORY_DAYS,
            by=by,
            sums={landed: ~nw.col("arr_delay").is_null(), delay: nw.col("arr_delay")},
        ).with_columns(nw.when(nw.col(landed) > 0).then(nw.col(delay) / nw.col(landed)).alias(delay))
    return rows
