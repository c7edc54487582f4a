"""Small snapshots, committed as the ingest step would, for tests of what people do with them."""

from __future__ import annotations

import tempfile
from datetime import UTC, date, datetime, time
from pathlib import Path
from zoneinfo import ZoneInfo

import narwhals as nw
import polars as pl

from mlops.contract.manifest import Manifest
from mlops.contract.refs import DatasetRef
from mlops.contract.sections.ingest import TimeSplit
from mlops.contract.step import place
from mlops.data.snapshots.garbage import confirm_blobs
from mlops.data.snapshots.snapshot import write_snapshot
from mlops.data.sources.window import Window
from mlops.store import Store

ZONE = "America/New_York"
RUN_ID = "scheduled__2024-01-03T05:00:00+00:00"


def visits(*days: int, per_day: int = 4) -> pl.DataFrame:
    """Rows of some days of January 2024: ``at``, ``page``, ``visitor``, ``seconds``."""
    return pl.DataFrame(
        [
            {
                "at": datetime(2024, 1, day, 15, i, tzinfo=UTC),
                "page": "/home" if i % 2 else "/cart",
                "visitor": day * 100 + i,
                "seconds": day + i / 2,
            }
            for day in days
            for i in range(per_day)
        ],
        schema={"at": pl.Datetime("us", "UTC"), "page": pl.String, "visitor": pl.Int64, "seconds": pl.Float64},
    )


def store_snapshot(store: Store, rows: pl.DataFrame, *, last_day: int, name: str = "visits") -> Manifest:
    """Write the blobs; no manifest, no ref."""
    end = datetime.combine(date(2024, 1, last_day + 1), time(), ZoneInfo(ZONE))
    with tempfile.TemporaryDirectory() as scratch:
        return write_snapshot(
            store,
            nw.from_native(rows.lazy()),
            name=name,
            window=Window.before(end, 7, ZONE),
            event_time="at",
            sources={"log": {"path": "visits.csv", "sha256": "5" * 64, "num_rows": rows.height}},
            split=TimeSplit.model_construct(validation=0, test=0),
            creator={"dag_id": name, "run_id": RUN_ID, "task_id": "ingest", "try_number": 1},
            engine="polars",
            scratch=Path(scratch),
        )


def commit_snapshot(
    store: Store, rows: pl.DataFrame, *, last_day: int, name: str = "visits", key: str = "a" * 12, owner: str = ""
) -> DatasetRef:
    """
    :param owner: folder of the store; the pipeline's where empty
    :raises StoreError: where garbage collection was in the way, as the step does; a retry helps
    """
    manifest = store_snapshot(store, rows, last_day=last_day, name=name)
    end = manifest.interval_end.replace("-", "").replace(":", "").replace("+0000", "Z")
    folder = f"{owner}/ingest/{end}-{key}" if owner else place(name, f"{end}-{key}", "ingest")
    ref = manifest.ref(folder, store.put_artifact(folder, "manifest.json", manifest.to_json()))
    confirm_blobs(store, manifest)
    committed = store.commit(ref)
    assert isinstance(committed, DatasetRef)
    return committed
