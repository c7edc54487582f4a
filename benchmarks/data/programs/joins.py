"""The point-in-time join against Polars' own ``join_asof`` on the same sorted frames."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from benchmarks.data.programs.tables import END
from benchmarks.data.programs.timing import in_turn
from mlops.features.point_in_time import last_known

NUM_ROWS = 2_000_000
NUM_OBSERVATIONS = 500_000
NUM_KEYS = 1_000
TOLERANCE = timedelta(days=2)


def frames() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows to be joined, in order of their times, and what was observed of their keys."""
    chance = np.random.default_rng(7)
    start = int((END - timedelta(days=30)).timestamp() * 1e6)

    def made(size: int) -> dict[str, Any]:
        moments = np.sort(chance.integers(0, 30 * 86_400, size)) * 1_000_000 + start
        return {"at": pl.Series(moments).cast(pl.Datetime("us", "UTC")), "key": chance.integers(0, NUM_KEYS, size)}

    rows = pl.DataFrame(made(NUM_ROWS) | {"amount": chance.random(NUM_ROWS)})
    seen = pl.DataFrame(made(NUM_OBSERVATIONS) | {f"value_{i}": chance.random(NUM_OBSERVATIONS) for i in range(3)})
    return rows, seen.rename({"at": "seen"})


def main() -> list[dict[str, Any]]:
    rows, seen = frames()

    def ours() -> pl.DataFrame:
        joined = last_known(
            nw.from_native(rows.lazy()), nw.from_native(seen.lazy()), time="at", observed="seen", by=["key"],
            tolerance=TOLERANCE,
        )  # fmt: skip
        frame: pl.DataFrame = joined.to_native().collect()
        return frame

    def plain() -> pl.DataFrame:
        return (
            rows.lazy()
            .sort("at")
            .join_asof(
                seen.lazy().sort("seen"), left_on="at", right_on="seen", by="key", strategy="backward",
                allow_exact_matches=False, tolerance=TOLERANCE, check_sortedness=False,
            )
            .collect()
        )  # fmt: skip

    seconds, plain_seconds = in_turn([ours, plain], rounds=5)
    return [
        {
            "name": "data.point_in_time_join", "unit": "M rows/s", "ours": NUM_ROWS / seconds / 1e6,
            "better": "higher", "target": 0.8, "baseline": "Polars sort and join_asof",
            "baseline_value": NUM_ROWS / plain_seconds / 1e6,
        },
    ]  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main()))
