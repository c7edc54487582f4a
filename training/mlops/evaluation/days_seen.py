"""Held-out days that a champion has seen."""

from __future__ import annotations

from mlops.contract.refs import CheckpointRef, DatasetRef
from mlops.data.snapshots.snapshot import Snapshot
from mlops.store import Store


def days_seen(store: Store, champion: CheckpointRef, candidate: CheckpointRef) -> int:
    """
    Count the candidate's held-out days of which the champion has seen rows: it was fitted on them, or its best epoch
    chosen by them.

    The result is 0 if both are split by the same setting, but by days: the champion has then never seen the keys or
    rows that are held out, on whatever day, as far as data that names them itself goes on naming the same.
    """
    seen, held = (Snapshot.open(store, checkpoint.ancestor(DatasetRef)) for checkpoint in (champion, candidate))
    by_time = "validation_days" in seen.manifest.split or not seen.manifest.split
    if not by_time and seen.manifest.split == held.manifest.split:
        return 0
    # A snapshot of the time before splits were its own tells only its days.
    parts = [seen.split_days(name) for name in ("train", "validation")] if seen.manifest.splits else [seen.days]
    return len({day for days in parts for day in days} & {*held.split_days("test")})
