"""Garbage collection against ingests at work and its own death, on a folder and on an S3 server."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from committed_snapshots import commit_snapshot, store_snapshot, visits

from mlops.contract.refs import DatasetRef
from mlops.contract.step import RunIdentity, StepInput, python_path
from mlops.data.snapshots.catalog import read_catalog
from mlops.data.snapshots.garbage import collect
from mlops.data.snapshots.snapshot import Snapshot
from mlops.data.snapshots.snapshot_verification import find_damage
from mlops.process import ProcessSettings
from mlops.steps.execution import execute
from mlops.store import Store
from mlops.store_errors import DamagedObjectError, StoreError

WEEK = timedelta(hours=168)
NOW = timedelta(0)

INGESTS = """
import random, sys, time
import polars as pl
from committed_snapshots import commit_snapshot, store_snapshot, visits
from mlops.store import Store
from mlops.store_errors import StoreError

uri, seed, seconds = sys.argv[1:]
store, deadline, number, retries = Store(uri), time.monotonic() + float(seconds), 0, 0
while time.monotonic() < deadline:
    number += 1
    rows = visits(1, 2).with_columns(visitor=pl.col("visitor") + 1000 * int(seed) + 100_000 * number)
    store_snapshot(store, rows, last_day=2)  # an attempt that was killed: nothing names these blobs
    time.sleep(random.random() / 30)
    while True:
        try:
            commit_snapshot(store, rows, last_day=2, key=f"{int(seed):06d}{number:06d}")
            break
        except StoreError:
            retries += 1
print(number, retries)
"""

COLLECTIONS = """
import sys
from datetime import timedelta
from mlops.data.snapshots.garbage import collect
from mlops.store import Store

while True:
    done = collect(Store(sys.argv[1]), grace=timedelta(0))
    print(len(done.removed), len(done.restored), flush=True)
"""


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return Store(f"file://{tmp_path}/store")
    return Store(f"{request.getfixturevalue('s3')}/{uuid.uuid4().hex}")


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


def blobs(store: Store) -> set[str]:
    return set(store.list("blobs"))


def rows_of(store: Store, ref: DatasetRef) -> int:
    return Snapshot.open(store, ref).read().height


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    checkout = Path(__file__).parents[4]
    paths = f"{python_path(checkout)}:{checkout / 'tests'}"
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "POLARS_MAX_THREADS": "1"},
    )


@pytest.mark.server
def test_only_what_no_manifest_names_is_removed(store: Store) -> None:
    """The days that the next night shares must stay, though their first night's manifest is not alone any more."""
    first = commit_snapshot(store, visits(1, 2), last_day=2)
    second = commit_snapshot(store, visits(2, 3), last_day=3)
    named = blobs(store)
    store_snapshot(store, visits(5, 6, 7), last_day=7)

    done = collect(store, grace=NOW)

    assert {blob.key for blob in done.removed}.isdisjoint(named)
    assert (len(done.removed), done.named, done.young) == (3, 3, 0)
    assert blobs(store) == named
    assert list(store.list("garbage")) == []
    assert rows_of(store, first) == rows_of(store, second) == 8


def test_young_blobs_stay_for_the_ingest_that_wrote_them(folder: Store) -> None:
    store_snapshot(folder, visits(1), last_day=1)
    old = blobs(folder)
    for key in old:
        os.utime(Path(folder.uri.removeprefix("file://"), key), (time.time() - 200 * 3600,) * 2)
    store_snapshot(folder, visits(2), last_day=2)

    done = collect(folder, grace=WEEK)

    assert {blob.key for blob in done.removed} == old
    assert (done.young, len(blobs(folder))) == (1, 1)


@pytest.mark.server
def test_a_dry_run_removes_nothing(store: Store) -> None:
    store_snapshot(store, visits(1), last_day=1)
    assert len(collect(store, grace=NOW, dry_run=True).removed) == 1
    assert len(blobs(store)) == 1


@pytest.mark.server
def test_an_uncommitted_manifest_holds_its_blobs(store: Store) -> None:
    """Its ingest may be about to commit."""
    manifest = store_snapshot(store, visits(1), last_day=1)
    store.put_artifact("pipelines/visits/ingest/20240102T050000Z-bbbbbbbbbbbb", "manifest.json", manifest.to_json())
    assert collect(store, grace=NOW).removed == []


@pytest.mark.parametrize("harm", ["flipped", "deleted"])
@pytest.mark.parametrize("committed", [True, False])
def test_an_unreadable_manifest_stops_it_before_anything_is_removed(folder: Store, harm: str, committed: bool) -> None:
    """What such a manifest names is unknown: its blobs would pass for garbage."""
    ref = commit_snapshot(folder, visits(1), last_day=1)
    store_snapshot(folder, visits(5), last_day=5)
    manifest, root = ref.artifacts["manifest"].key, Path(folder.uri.removeprefix("file://"))
    if not committed:
        (root / ref.place / "ref.json").unlink()
    if harm == "flipped":
        text = (root / manifest).read_bytes()
        (root / manifest).write_bytes(text.replace(b"blobs", b"blobz"))
    else:
        (root / manifest).unlink()
        if not committed:
            return  # deleted with its ref, as the message below tells people to

    with pytest.raises(DamagedObjectError, match=manifest):
        collect(folder, grace=NOW)
    assert len(blobs(folder)) == 2


class Watched(Store):
    """A store that does something else in the middle of a collection: after the first ``copy``, or ``delete``."""

    def __init__(self, uri: str, moment: str, then: Callable[[], object]) -> None:
        super().__init__(uri)
        self.moment, self.then = moment, then

    def _reached(self, moment: str) -> None:
        if moment == self.moment:
            self.moment = ""
            self.then()

    def copy(self, key: str, to: str) -> bool:
        done = super().copy(key, to)
        self._reached("copied")
        return done

    def delete(self, keys: object) -> None:
        super().delete(keys)  # type: ignore[arg-type]
        self._reached("deleted")


class Losing(Store):
    """A store some of whose objects are removed by somebody else after they were listed, and before they are read."""

    losing: str = ""
    """The keys that are removed then begin with this, refs first."""

    def list(self, prefix: str) -> Iterator[str]:
        keys = list(super().list(prefix))
        if lost := [key for key in keys if self.losing and key.startswith(self.losing)]:
            self.delete(sorted(lost, key=lambda key: not key.endswith("/ref.json")))
        yield from keys


@pytest.mark.parametrize(
    ("lost", "num_removed"),
    [
        pytest.param("experiments/ann", 1, id="all results"),
        pytest.param("experiments/ann/ingest/20240102T050000Z-aaaaaaaaaaaa/ref.json", 0, id="a ref"),
    ],
)
def test_results_that_are_removed_at_the_same_time_do_not_stop_it(folder: Store, lost: str, num_removed: int) -> None:
    """Broken: a nightly collection would fail with "restore it from a backup" where an experiment was removed."""
    kept = commit_snapshot(folder, visits(2), last_day=2)
    commit_snapshot(folder, visits(1), last_day=1, owner="experiments/ann")
    store = Losing(folder.uri)
    store.losing = lost

    assert len(collect(store, grace=NOW).removed) == num_removed
    assert rows_of(folder, kept) == 4


def test_blobs_come_back_where_a_manifest_is_damaged_in_between(folder: Store) -> None:
    """Broken: a blob that an ingest had named and confirmed just before would be gone from a committed snapshot."""
    store_snapshot(folder, visits(1), last_day=1)
    other = commit_snapshot(folder, visits(2), last_day=2)
    refs: list[DatasetRef] = []

    def commit_and_damage() -> None:
        refs.append(commit_snapshot(folder, visits(1), last_day=1))
        late = commit_snapshot(folder, visits(2), last_day=2, key="c" * 12)
        folder.delete([late.artifacts["manifest"].key])

    with pytest.raises(DamagedObjectError, match="missing"):
        collect(Watched(folder.uri, "copied", commit_and_damage), grace=NOW)

    assert rows_of(folder, refs[0]) == 4
    assert rows_of(folder, other) == 4


@pytest.mark.server
def test_a_blob_that_an_ingest_commits_in_between_is_put_back(store: Store) -> None:
    """It was garbage when the collection looked, and a snapshot's day a moment later."""
    store_snapshot(store, visits(1), last_day=1)
    refs: list[DatasetRef] = []
    watched = Watched(store.uri, "copied", lambda: refs.append(commit_snapshot(store, visits(1), last_day=1)))

    done = collect(watched, grace=NOW)

    assert (done.removed, len(done.restored)) == ([], 1)
    assert rows_of(store, refs[0]) == 4
    assert list(store.list("garbage")) == []


@pytest.mark.server
def test_an_ingest_whose_blob_was_removed_fails_and_its_retry_succeeds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_snapshot(store, visits(1), last_day=1)
    publish, removed = Store.put_artifact, []

    def late(self: Store, place: str, name: str, data: bytes) -> object:
        if not removed:
            removed.extend(collect(store, grace=NOW).removed)
        return publish(self, place, name, data)

    monkeypatch.setattr(Store, "put_artifact", late)

    with pytest.raises(StoreError, match="garbage collection") as caught:
        commit_snapshot(store, visits(1), last_day=1)
    assert caught.value.retryable
    assert len(removed) == 1
    assert read_catalog(store).snapshots == []
    assert rows_of(store, commit_snapshot(store, visits(1), last_day=1)) == 4


def test_the_ingest_step_looks_for_its_blobs_before_it_commits(
    folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step itself, on a store where a collection takes its blobs just before its manifest is there."""
    visits(1, 2, 3).select("at", "visitor").write_csv(tmp_path / "visits.csv", datetime_format="%+")
    config = {
        "sources": {"visits": {"path": "visits.csv", "event_time": "at"}},
        "event_time": "at",
        "window": 3,
        "split": {"validation": 1, "test": 1},
    }
    run = RunIdentity(
        pipeline="visits", run_key="key", interval_start="2024-01-03T00:00:00+00:00",
        interval_end="2024-01-04T00:00:00+00:00", timezone="UTC", dag_id="visits", task_id="ingest",
        run_id="manual", try_number=1,
    )  # fmt: skip
    result = tmp_path / "result.json"
    deployment = ProcessSettings(home=tmp_path, store=folder.uri, tracking_uri="", result_path=result, rank=0)
    publish, removed = Store.put_artifact, []

    def late(self: Store, place: str, name: str, data: bytes) -> object:
        if not removed:
            removed.extend(collect(folder, grace=NOW).removed)
        return publish(self, place, name, data)

    monkeypatch.setattr(Store, "put_artifact", late)
    document = StepInput(step="ingest", run=run, config=config)

    with pytest.raises(StoreError, match="garbage collection removed"):
        execute(document, deployment)
    assert len(removed) == 3
    assert folder.committed(document.place) is None
    ref = execute(document, deployment)
    assert isinstance(ref, DatasetRef)
    assert rows_of(folder, ref) == 12


@pytest.mark.server
def test_the_next_collection_finishes_a_killed_one(store: Store) -> None:
    """It dies after the delete; one of its blobs was named in between, another is garbage still."""
    store_snapshot(store, visits(1, 2), last_day=2)
    refs: list[DatasetRef] = []

    def die() -> None:
        raise KeyboardInterrupt

    def commit_and_die() -> None:
        refs.append(commit_snapshot(store, visits(1), last_day=1))
        watched.moment, watched.then = "deleted", die

    watched = Watched(store.uri, "copied", commit_and_die)
    with pytest.raises(KeyboardInterrupt):
        collect(watched, grace=NOW)
    assert blobs(store) == set()

    done = collect(store, grace=WEEK)

    assert len(done.restored) == 1
    assert rows_of(store, refs[0]) == 4
    assert len(list(store.list("garbage"))) == 2, "their collection might be alive"
    collect(store, grace=NOW)
    assert list(store.list("garbage")) == []
    assert rows_of(store, refs[0]) == 4


@pytest.mark.server
def test_ingests_and_collections_at_once_lose_nothing(store: Store) -> None:
    """Two processes ingest what killed attempts left, while collections without grace are killed again and again."""
    store_snapshot(store, visits(1, 2, 3), last_day=3)  # something to remove for the first of them
    dice = random.Random(1)
    ingests = [start(INGESTS, store.uri, str(seed), "6") for seed in (1, 2)]
    removed = 0
    while any(ingest.poll() is None for ingest in ingests):
        collection = start(COLLECTIONS, store.uri)
        assert collection.stdout is not None
        first = collection.stdout.readline()
        time.sleep(dice.random() / 2)
        collection.send_signal(signal.SIGKILL)
        rest, _ = collection.communicate(timeout=120)
        removed += sum(int(line.split()[0]) for line in (first + rest).splitlines() if line.count(" ") == 1)
    counts = [ingest.communicate(timeout=120)[0].split() for ingest in ingests]
    assert all(ingest.returncode == 0 for ingest in ingests)
    assert removed > 0, "the collections were at work"
    collect(store, grace=NOW)

    catalog = read_catalog(store)

    assert catalog.damaged == []
    assert len(catalog.snapshots) == sum(int(number) for number, _ in counts)
    assert find_damage(store, catalog.snapshots, lambda done, total: None) == []
