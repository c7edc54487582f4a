"""Ingest against a plain Polars copy of the same rows, and what a second night adds to the store."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.data.programs.tables import END, sessions
from benchmarks.data.programs.timing import in_turn
from mlops.contract.sections.ingest import TimeSplit
from mlops.contract.sources import FileSource
from mlops.data.snapshots.snapshot import write_snapshot
from mlops.data.snapshots.transform import rows_in_window
from mlops.data.sources import read_source
from mlops.data.sources.window import Window
from mlops.store import Store

NUM_DAYS = 30
ROWS_PER_DAY = 100_000


def ingest(file: Path, store: Store, scratch: Path, end: datetime, num_days: int) -> int:
    """What the ingest step does with one Parquet source; bytes that were new to the store."""
    scratch.mkdir()
    window = Window.before(end, num_days, "UTC")
    before = stored_bytes(store)
    settings = FileSource(path=str(file), event_time="at")
    source = read_source(
        "sessions",
        settings,
        home=file.parent,
        scratch=scratch,
        window=window,
        engine="polars",
    )
    rows = rows_in_window(source.rows, "at", window, sources={"sessions": source}, transform=None)
    write_snapshot(
        store,
        rows,
        name="sessions",
        window=window,
        event_time="at",
        sources={"sessions": source.provenance},
        split=TimeSplit(),
        creator={},
        engine="polars",
        scratch=scratch,
    )
    source.finish()
    shutil.rmtree(scratch)
    return stored_bytes(store) - before


def stored_bytes(store: Store) -> int:
    folder = Path(store.uri.removeprefix("file://"))
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(scratch: Path) -> list[dict[str, Any]]:
    file = scratch / "sessions.parquet"
    number = iter(range(1000))
    records = []
    for name, whole_seconds in (("ingest_tied", True), ("ingest", False)):
        table = sessions(NUM_DAYS + 1, ROWS_PER_DAY, whole_seconds=whole_seconds)
        table.write_parquet(file)
        megabytes = table.estimated_size() * NUM_DAYS / (NUM_DAYS + 1) / 1e6
        del table

        def ours() -> None:
            folder = scratch / f"store-{next(number)}"
            ingest(file, Store(f"file://{folder}"), scratch / "work", END, NUM_DAYS)
            shutil.rmtree(folder)

        def plain() -> None:
            copy = scratch / "copy.parquet"
            start = END - timedelta(days=NUM_DAYS)
            pl.scan_parquet(file).filter(pl.col("at") >= start, pl.col("at") < END).sink_parquet(copy)
            copy.unlink()

        seconds, plain_seconds = in_turn([ours, plain], rounds=5)
        records.append(
            {
                "name": f"data.{name}", "unit": "MB/s", "ours": megabytes / seconds, "better": "higher", "target": 0.8,
                "baseline": "Polars scan_parquet to sink_parquet", "baseline_value": megabytes / plain_seconds,
            }
        )  # fmt: skip
    store = Store(f"file://{scratch}/nights")
    first, second = (ingest(file, store, scratch / "work", END - timedelta(days=nights), NUM_DAYS) for nights in (1, 0))
    records.append(
        {
            "name": "data.second_night", "unit": "MB", "ours": second / 1e6, "better": "lower",
            "target": 1.1 / NUM_DAYS, "baseline": "what the first night stored", "baseline_value": first / 1e6,
        }
    )  # fmt: skip
    return records


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[2]))))
