"""
How often the check of the newest day, or hour, cries wolf over a year of flights, and which faults of it are seen.

``python -m benchmarks.data.programs.newest_day HOME SCRATCH``, in the validation runtime.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from benchmarks.data.programs.drift import flights
from mlops.contract.grain import Grain, Periods
from mlops.contract.sections.validate import Newest
from mlops.validation.anomalies import ColumnDistance
from mlops.validation.chance import deviations_for
from mlops.validation.columns import is_instant
from mlops.validation.newest_period import Judged, period_distance
from mlops.validation.rows import Rows

WINDOWS: Final[Mapping[Grain, int]] = {"day": 30, "hour": 7 * 19}
"""Periods with rows of a window. Nobody flies at night: a day has 19 hours."""
SIZES: Final[Mapping[Grain, Sequence[float]]] = {"day": (0.1, 0.33, 1.0), "hour": (1.0,)}
"""Shares of the flights: about 90, 300 and 920 of a day, 49 of an hour."""
RUNS_APART: Final[Mapping[Grain, int]] = {"day": 1, "hour": 7}
"""Each night is looked at; of hours so many apart, each hour of a day in turn."""
FAULTS_APART: Final[Mapping[Grain, int]] = {"day": 29, "hour": 7 * 19 + 3}
"""Faults are planted so many periods apart, into each weekday, or hour, in turn."""
ZONE: Final = "America/New_York"
AT_MOST: Final = 1.0
"""False alarms in a hundred runs, of all columns together."""
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


def year(home: Path, grain: Grain) -> pl.DataFrame:
    """A year of flights with a label, and the period of each."""
    instant = pl.col("time_hour")
    of_day = instant.dt.convert_time_zone(ZONE).dt.date().cast(pl.String)
    return (
        flights(home)
        .with_columns(
            (pl.col("arr_delay") > 15).cast(pl.Int8).alias("delayed"),
            (of_day if grain == "day" else instant.dt.strftime(Periods("hour", ZONE).name_format)).alias("in period"),
        )
        .sort("time_hour", maintain_order=True)
    )


def windows(table: pl.DataFrame, grain: Grain, every: int) -> Iterator[Mapping[str, pl.DataFrame]]:
    """Iterate over the windows of a run and its periods before, by period, oldest first."""
    parts = [(str(name), part.drop("in period")) for (name,), part in table.group_by("in period", maintain_order=True)]
    size = WINDOWS[grain]
    for end in range(size + 1, len(parts) + 1, every):
        yield dict(parts[end - size : end])


def examined(
    window: Mapping[str, pl.DataFrame], grain: Grain, columns: Sequence[str] | None = None
) -> list[ColumnDistance]:
    """
    Hold the newest period of a window against those before it, as the validate step does.

    :param columns: those to look at; None for all
    """
    parts = [part if columns is None else part.select("time_hour", *columns) for part in window.values()]
    rows = Rows(
        whole=pl.concat(parts).lazy(),
        num_rows={name: part.height for name, part in window.items()},
        event_time="time_hour",
        kind=Periods(grain, ZONE),
    )
    periods = Judged.of(rows.periods, (), rows.periods[-1])
    deviations = deviations_for(next(iter(window.values())).width)
    found = [
        period_distance(column, column.describe()[0], periods, Newest(), deviations)
        for column in rows.columns()
        if not is_instant(column.dtype)
    ]
    return [distance for distance in found if distance is not None]


def alarms(table: pl.DataFrame, grain: Grain) -> tuple[int, dict[str, list[str]]]:
    """Return the number of runs, and for each with an alarm the columns that are far from the periods before."""
    num_runs, found = 0, {}
    for window in windows(table, grain, RUNS_APART[grain]):
        num_runs += 1
        if far := [each.column for each in examined(window, grain) if each.distance > each.threshold]:
            found[list(window)[-1]] = far
    return num_runs, found


def seen(table: pl.DataFrame, grain: Grain, fault: pl.Expr) -> float:
    """Return the share of the runs in which a fault is seen in its column."""
    column, runs = fault.meta.output_name(), []
    for window in windows(table, grain, FAULTS_APART[grain]):
        newest = list(window)[-1]
        broken = {**window, newest: window[newest].with_columns(fault)}
        runs.append(any(each.distance > each.threshold for each in examined(broken, grain, [column])))
    return sum(runs) / len(runs)


def main(home: Path) -> list[dict[str, Any]]:
    return [*measured(home, "day"), *measured(home, "hour")]


def measured(home: Path, grain: Grain) -> list[dict[str, Any]]:
    table = year(home, grain)
    records = []
    for share in SIZES[grain]:
        sample = table.sample(fraction=share, seed=1).sort("time_hour")
        size = round(sample.height / sample["in period"].n_unique())
        num_runs, found = alarms(sample, grain)
        print(f"{size} rows in each {grain}: alarms on {found}", file=sys.stderr)
        rates = {name: seen(sample, grain, fault) for name, fault in FAULTS.items()}
        print(f"{size} rows in each {grain}: seen {rates}", file=sys.stderr)
        records += [
            {
                "name": f"data.newest_{grain}_alarms_{size}",
                "unit": "in 100 runs",
                "ours": 100 * len(found) / num_runs,
                "baseline": f"at most, of {num_runs} runs of {sample.width - 2} columns, {size} rows in each {grain}",
                "baseline_value": AT_MOST,
                "better": "lower",
                "target": 1.0,
            },
            {
                "name": f"data.newest_{grain}_seen_{size}",
                "unit": "of the faults",
                "ours": sum(rates.values()) / len(rates),
                "baseline": f"of {len(FAULTS)} faults, {size} rows in each {grain}",
                "baseline_value": SEEN,
                "better": "higher",
                "target": 1.0,
            },
        ]
    return records


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
