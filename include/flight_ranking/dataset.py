"""
One row per flight: what a traveller's search could have known of it, and how it turned out.

A query is a route and a day. Known at ranking time are the schedule, the flight's last aircraft, the history of route,
carrier and hour up to the day before, and the weather as last observed before the scheduled departure. The outcome
columns (``arr_delay``, ``dep_delay``, ``cancelled``, ``relevance``) are for the label only. A day's outcomes count as
known when the day ends, also those of the few flights that land after midnight.
"""

from __future__ import annotations

from datetime import timedelta

import narwhals as nw

from mlops import Table, last_known, trailing_sums

HISTORY_DAYS = 28
"""Four whole weeks: every weekday counts alike."""
WEATHER_TOLERANCE = timedelta(hours=3)
MAX_DELAY = 180
"""Minutes. A longer delay counts as this in the history: one night's delay should not colour four weeks."""

HISTORIES = {
    "route": ["origin", "dest"],
    "carrier": ["origin", "carrier"],
    "route_carrier": ["origin", "dest", "carrier"],
    "hour": ["origin", "hour"],
    "flight": ["carrier", "flight", "origin", "dest"],
}
WEATHER = ["temp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
OUTCOMES = ["arr_delay", "dep_delay", "cancelled", "relevance"]


def documents(sources: dict[str, Table]) -> Table:
    """Flights with aircraft, weather, history and outcome; ``scheduled_departure`` is the event time."""
    flights = sources["flights"].with_columns(
        scheduled_departure=nw.col("time_hour") + nw.col("minute") * timedelta(minutes=1),
        day=(nw.col("year") * 10_000 + nw.col("month") * 100 + nw.col("day")).cast(nw.String).str.to_date("%Y%m%d"),
        cancelled=nw.col("dep_time").is_null(),
        relevance=relevance(nw.col("arr_delay")),
    )
    rows = flights.select(
        "scheduled_departure",
        "day",
        # On Spark narwhals counts a Sunday as 0.
        weekday=nw.when(nw.col("day").dt.weekday() == 0).then(7).otherwise(nw.col("day").dt.weekday()).cast(nw.Int8),
        scheduled_arrival=nw.col("sched_arr_time"),
        **{name: nw.col(name) for name in ("hour", "carrier", "flight", "origin", "dest", "distance")},
        **{name: nw.col(name) for name in OUTCOMES},
    )
    rows = _with_aircraft(rows, flights, sources["planes"])
    rows = last_known(
        rows,
        sources["weather"].select("origin", "time_hour", *(nw.col(name).cast(nw.Float64) for name in WEATHER)),
        time="scheduled_departure",
        observed="time_hour",
        by=["origin"],
        tolerance=WEATHER_TOLERANCE,
    )
    for name, by in HISTORIES.items():
        rows = _with_history(rows, flights, name, by)
    known = [name for name in rows.collect_schema().names() if name not in OUTCOMES]
    return rows.select(*known, *OUTCOMES)


def relevance(arr_delay: nw.Expr) -> nw.Expr:
    """
    Grade by minutes of arrival delay: 4 at most 0; 3 at most 15, which the US DOT counts as on time; 2 at most 45;
    1 at most 120; 0 later, cancelled or diverted (no arrival at the destination, hence null).
    """
    graded = (
        nw.when(arr_delay <= 0).then(4).when(arr_delay <= 15).then(3).when(arr_delay <= 45).then(2)
        .when(arr_delay <= 120).then(1).otherwise(0)
    )  # fmt: skip
    return graded.cast(nw.Int8)


def _with_aircraft(rows: Table, flights: Table, planes: Table) -> Table:
    """
    Add the aircraft that last flew this flight on an earlier day.

    Not the one of the day itself: only cancelled flights have no tail number, so that it gives the outcome away.
    """
    by = ["carrier", "flight", "origin", "dest"]
    flown = flights.filter(~nw.col("tailnum").is_null()).select(*by, "tailnum", flown=nw.col("scheduled_departure"))
    rows = last_known(
        rows, flown, time="scheduled_departure", observed="flown", by=by, tolerance=timedelta(days=HISTORY_DAYS)
    )
    aircraft = planes.select(
        "tailnum", built=nw.col("year"), seats=nw.col("seats"), engines=nw.col("engines"), maker=nw.col("manufacturer")
    )
    # Of two entries for one aircraft the same is taken every night, on either engine.
    aircraft = aircraft.unique("tailnum", keep="first", order_by=["built", "seats", "engines", "maker"])
    return rows.join(aircraft, on="tailnum", how="left")


def _with_history(rows: Table, flights: Table, name: str, by: list[str]) -> Table:
    """Add ``<name>_flights``, and null where there were none: ``_mean_delay``, ``_on_time`` and ``_cancelled``."""
    count, arrived, delay, on_time, cancelled = (
        f"{name}_{part}" for part in ("flights", "arrived", "delay_sum", "on_time_sum", "cancelled_sum")
    )
    rows = trailing_sums(
        rows,
        flights,
        day="day",
        days=HISTORY_DAYS,
        by=by,
        sums={
            count: ~nw.col("day").is_null(),
            arrived: ~nw.col("arr_delay").is_null(),
            delay: nw.col("arr_delay").clip(-60, MAX_DELAY),
            on_time: nw.col("arr_delay") <= 15,
            cancelled: nw.col("cancelled"),
        },
    )
    some, landed = nw.col(count) > 0, nw.col(arrived) > 0
    return rows.with_columns(
        nw.when(landed).then(nw.col(delay) / nw.col(arrived)).alias(f"{name}_mean_delay"),
        nw.when(some).then(nw.col(on_time) / nw.col(count)).alias(f"{name}_on_time"),
        nw.when(some).then(nw.col(cancelled) / nw.col(count)).alias(f"{name}_cancelled"),
    ).drop(arrived, delay, on_time, cancelled)
