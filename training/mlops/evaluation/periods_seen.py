"""Held-out periods that a champion has seen, or the weights that a candidate started from."""

from __future__ import annotations

from mlops.contract.refs import INPUT, CheckpointRef, DatasetRef
from mlops.contract.step import StepInput
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


def periods_started_from(store: Store, candidate: CheckpointRef) -> int:
    """
    Count the candidate's held-out periods of which the weights that it started from have seen rows; of a version that
    started from another one, the most that any has seen. Of what a file has seen, nothing is known.
    """
    found, trained = 0, candidate
    while (told := trained.artifacts.get(INPUT)) is not None:
        baselines = StepInput.load(store.read(told).decode()).baselines
        if "initialise" not in baselines:
            break
        trained = baselines["initialise"].ancestor(CheckpointRef)
        found = max(found, periods_seen(store, trained, candidate))
    return found
