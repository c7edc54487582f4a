"""
How often the check of the newest day cries wolf over a year of flights, and which faults of a day it sees.

``python -m benchmarks.data.programs.newest_day HOME SCRATCH``, in the validation runtime.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl

from benchmarks.data.programs.drift import flights
from mlops.contract.grain import Periods
from mlops.contract.sections.validate import Newest
from mlops.validation.anomalies import ColumnDistance
from mlops.validation.chance import deviations_for
from mlops.validation.columns import is_instant
from mlops.validation.newest_period import Judged, period_distance
from mlops.validation.rows import Rows

WINDOW_DAYS: Final = 30
SIZES: Final = (0.1, 0.33, 1.0)
"""Shares of the flights: about 90, 300 and 920 of a day."""
NIGHTS_APART: Final = 28
"""Faults are planted into so many days' distance, each weekday in turn."""
ZONE: Final = "America/New_York"
AT_MOST: Final = 1.0
"""False alarms in a hundred nights, of all columns together."""
SEEN: Final = 0.9
"""Share of the planted faults that should be seen."""
_ROW = pl.int_range(pl.len())
FAULTS: Final[Mapping[str, pl.Expr]] = {
    "all flights of one carrier": pl.lit("UA").alias("carrier"),
    "carriers in lower case": pl.col("carrier").str.to_lowercase(),
    "carrier missing in a third": pl.when(_ROW % 3 > 0).then("carrier").alias("carrier"),
    "one airport's flights under another name": pl.col("origin").replace("JFK", "NYC"),
    "all from one airport": pl.lit("JFK").alias("origin"),
    "destinations missing": pl.lit(None, pl.String).alias("dest"),
    "distances 0": (pl.col("distance") * 0).alias("distance"),
    "distances in kilometres": (pl.col("distance") * 1.609344).cast(pl.Int64).alias("distance"),
    "distances of one row": pl.col("distance").first().alias("distance"),
    "delays in seconds": (pl.col("dep_delay") * 60).alias("dep_delay"),
    "half of the delays missing": pl.when(_ROW % 2 > 0).then("dep_delay").alias("dep_delay"),
    "missing delays as 0": pl.lit(0, pl.Int64).alias("arr_delay"),
    "delays of the wrong sign": (-pl.col("dep_delay")).alias("dep_delay"),
    "every label 1": pl.lit(1, pl.Int8).alias("delayed"),
    "every label 0": pl.lit(0, pl.Int8).alias("delayed"),
    "labels turned round": (1 - pl.col("delayed")).alias("delayed"),
    "air times times 100": (pl.col("air_time") * 100).alias("air_time"),
    "hours in UTC": ((pl.col("hour") + 5) % 24).alias("hour"),
    "minutes cut off": pl.lit(0, pl.Int64).alias("minute"),
    "one flight number": pl.lit(1, pl.Int64).alias("flight"),
}


def year(home: Path) -> pl.DataFrame:
    """A year of flights with a label, and the calendar day of each."""
    return (
        flights(home)
        .with_columns(
            (pl.col("arr_delay") > 15).cast(pl.Int8).alias("delayed"),
            pl.col("time_hour").dt.convert_time_zone(ZONE).dt.date().cast(pl.String).alias("on day"),
        )
        .sort("time_hour", maintain_order=True)
    )


def windows(table: pl.DataFrame, every: int) -> Iterator[Mapping[str, pl.DataFrame]]:
    """Iterate over the windows of a night and its days before, by day, oldest first."""
    by_day = {str(day): part.drop("on day") for (day,), part in table.group_by("on day", maintain_order=True)}
    for last in list(by_day)[WINDOW_DAYS::every]:
        first = date.fromisoformat(last) - timedelta(days=WINDOW_DAYS - 1)
        yield {day: part for day, part in by_day.items() if str(first) <= day <= last}


def examined(window: Mapping[str, pl.DataFrame], columns: Sequence[str] | None = None) -> list[ColumnDistance]:
    """
    Hold the newest day of a window against those before it, as the validate step does.

    :param columns: those to look at; None for all
    """
    parts = [part if columns is None else part.select("time_hour", *columns) for part in window.values()]
    rows = Rows(
        whole=pl.concat(parts).lazy(),
        num_rows={day: part.height for day, part in window.items()},
        event_time="time_hour",
        kind=Periods("day", ZONE),
    )
    days, deviations = Judged.of(rows.periods, (), rows.periods[-1]), deviations_for(next(iter(window.values())).width)
    found = [
        period_distance(column, column.describe()[0], days, Newest(), deviations)
        for column in rows.columns()
        if not is_instant(column.dtype)
    ]
    return [distance for distance in found if distance is not None]


def alarms(table: pl.DataFrame, every: int = 1) -> tuple[int, dict[str, list[str]]]:
    """Return the number of nights, and for each with an alarm the columns that are far from the days before."""
    num_nights, found = 0, {}
    for window in windows(table, every):
        num_nights += 1
        if far := [each.column for each in examined(window) if each.distance > each.threshold]:
            found[list(window)[-1]] = far
    return num_nights, found


def seen(table: pl.DataFrame, fault: pl.Expr, every: int = NIGHTS_APART + 1) -> float:
    """Return the share of the nights on which a fault is seen in its column."""
    column, nights = fault.meta.output_name(), []
    for window in windows(table, every):
        newest = list(window)[-1]
        broken = {**window, newest: window[newest].with_columns(fault)}
        nights.append(any(each.distance > each.threshold for each in examined(broken, [column])))
    return sum(nights) / len(nights)


def main(home: Path) -> list[dict[str, Any]]:
    table = year(home)
    samples = [table.sample(fraction=share, seed=1).sort("time_hour") for share in SIZES]
    records = []
    for sample in samples:
        a_day = round(sample.height / sample["on day"].n_unique())
        num_nights, found = alarms(sample)
        print(f"{a_day} rows a day: alarms on {found}", file=sys.stderr)
        rates = {name: seen(sample, fault) for name, fault in FAULTS.items()}
        print(f"{a_day} rows a day: seen {rates}", file=sys.stderr)
        records += [
            {
                "name": f"data.newest_day_alarms_{a_day}",
                "unit": "in 100 nights",
                "ours": 100 * len(found) / num_nights,
                "baseline": f"at most, of {num_nights} nights of {sample.width - 2} columns, {a_day} rows a day",
                "baseline_value": AT_MOST,
                "better": "lower",
                "target": 1.0,
            },
            {
                "name": f"data.newest_day_seen_{a_day}",
                "unit": "of the faults",
                "ours": sum(rates.values()) / len(rates),
                "baseline": f"of {len(FAULTS)} faults, {a_day} rows a day",
                "baseline_value": SEEN,
                "better": "higher",
                "target": 1.0,
            },
        ]
    return records


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
