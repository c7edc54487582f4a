"""Held-out periods that a champion has seen."""

from __future__ import annotations

from mlops.contract.refs import CheckpointRef, DatasetRef
from mlops.data.snapshots.snapshot import Snapshot
from mlops.store import Store


def periods_seen(store: Store, champion: CheckpointRef, candidate: CheckpointRef) -> int:
    """
    Count the candidate's held-out periods of which the champion has seen rows: it was fitted on them, or its best epoch
    chosen by them.

    The result is 0 if both are split by the same setting, but by time: the champion has then never seen the keys or
    rows that are held out, in whatever period, as far as data that names them itself goes on naming the same.
    """
    seen, held = (Snapshot.open(store, checkpoint.ancestor(DatasetRef)) for checkpoint in (champion, candidate))
    by_time = set(seen.manifest.split) == {"validation", "test"}
    if not by_time and seen.manifest.split == held.manifest.split:
        return 0
    parts = [seen.split_periods(name) for name in ("train", "validation")]
    return len({period for periods in parts for period in periods} & {*held.split_periods("test")})
