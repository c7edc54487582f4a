"""Shards of a bucket in a folder that several processes share."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mlops.contract.refs import Artifact
from mlops.contract.step import python_path
from mlops.data.shards.shard_cache import CacheFullError, OpenShards, ShardCache
from mlops.store import Store
from mlops.store_errors import DamagedObjectError, StoreError

CHECKOUT = Path(__file__).parents[4]
SIZE = 100_000

HOLDER = """
import sys
from pathlib import Path
from mlops.contract.refs import Artifact
from mlops.data.shards.shard_cache import ShardCache
from mlops.store import Store
uri, folder, key, sha256, num_bytes = sys.argv[1:]
shard = Artifact(key=key, sha256=sha256, num_bytes=int(num_bytes))
lease = ShardCache(Store(uri), Path(folder), 250_000).open(shard)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def store(s3: str, tmp_path: Path) -> Store:
    return Store(f"{s3}/{tmp_path.name}/store")


@pytest.fixture
def shards(store: Store) -> list[Artifact]:
    return [store.put_artifact("f", f"train-{number}.arrow", bytes([number]) * SIZE) for number in range(5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def hold(store: Store, folder: Path) -> Iterator[Callable[[Artifact], subprocess.Popen[str]]]:
    """Starts a process that opens a shard and keeps it."""
    holders = []

    def start(shard: Artifact) -> subprocess.Popen[str]:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, store.uri, str(folder), shard.key, shard.sha256, str(shard.num_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path(CHECKOUT)},
        )
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def opened(store: Store, folder: Path, shards: list[Artifact], max_bytes: int) -> OpenShards[bytes]:
    entries = [{"key": s.key, "sha256": s.sha256, "num_bytes": s.num_bytes} for s in shards]
    return OpenShards(ShardCache(store, folder, max_bytes), entries, lambda path, shard: path.read_bytes())


def test_the_least_recently_used_shards_make_room(store: Store, folder: Path, shards: list[Artifact]) -> None:
    """Broken: a node's disk would fill up, or shards of the current window be fetched again."""
    cache = ShardCache(store, folder, 3 * SIZE + 10)
    for number in (0, 1, 2, 0, 3):
        cache.open(shards[number])
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 * SIZE
    assert kept(folder) == {shards[number].sha256 for number in (0, 2, 3)}


def test_a_shard_in_use_stays(store: Store, folder: Path, shards: list[Artifact]) -> None:
    cache = ShardCache(store, folder, 2 * SIZE)
    leases = [cache.open(shards[0])]
    cache.open(shards[1])
    leases.append(cache.open(shards[2]))
    assert kept(folder) == {shards[0].sha256, shards[2].sha256}
    with pytest.raises(CacheFullError, match=f"may hold 200,000 bytes, .* no room for one of {SIZE:,}: allow it more"):
        cache.open(shards[3])
    leases.pop()
    cache.open(shards[3])
    assert kept(folder) == {shards[0].sha256, shards[3].sha256}


def test_a_shard_that_another_process_uses_stays_until_it_ends(
    store: Store, folder: Path, shards: list[Artifact], hold: Callable[[Artifact], subprocess.Popen[str]]
) -> None:
    """Broken: a rank would lose its shard to a neighbour, or a killed rank's shards would fill the disk for good."""
    holder = hold(shards[0])
    cache = ShardCache(store, folder, 250_000)
    for number in (1, 2, 3):
        cache.open(shards[number])
    assert kept(folder) == {shards[0].sha256, shards[3].sha256}
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    cache.open(shards[4])
    assert kept(folder) == {shards[3].sha256, shards[4].sha256}


def test_what_a_killed_fetch_left_is_replaced(store: Store, folder: Path, shards: list[Artifact]) -> None:
    """Broken: a model would be trained on half a shard."""
    cache = ShardCache(store, folder, 2 * SIZE)
    for number in (0, 1):
        (folder / f"{shards[number].sha256}.partial").write_bytes(b"half")
    lease = cache.open(shards[0])
    assert lease.path.read_bytes() == bytes(SIZE)
    assert cache.open(shards[2]).path.read_bytes() == bytes([2]) * SIZE
    assert kept(folder) == {shards[0].sha256, shards[2].sha256}


@pytest.mark.parametrize("looks", [0, 1])
def test_a_file_that_goes_while_room_is_made_is_passed_over(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Broken: of two ranks that fetch at the same time, one would end because the other is done."""
    cache = ShardCache(Store(f"file://{tmp_path}/store"), folder, SIZE)
    going = folder / "other.fetching"
    going.touch()
    look, seen = Path.stat, []

    def stat(path: Path, **options: Any) -> os.stat_result:
        if path == going and len(seen) == looks:
            going.unlink()
        seen.extend([path] if path == going else [])
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    cache._make_room(SIZE)
    assert not going.exists()


def test_many_readers_fetch_a_shard_once(store: Store, folder: Path, shards: list[Artifact]) -> None:
    """Broken: eight ranks of a node would read everything eight times."""

    class Counting(Store):
        reads = 0

        def read(self, artifact: Artifact) -> bytes:
            Counting.reads += 1
            return super().read(artifact)

    caches = [ShardCache(Counting(store.uri), folder) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        leases = list(threads.map(lambda cache: cache.open(shards[1]), caches))
    assert Counting.reads == 1
    assert {lease.path for lease in leases} == {folder / shards[1].sha256}


def test_a_damaged_shard_is_named(store: Store, folder: Path, shards: list[Artifact]) -> None:
    store.put(shards[1].key, b"x" * SIZE)
    cache = ShardCache(store, folder)
    cache.prefetch([shards[1]])
    with pytest.raises(DamagedObjectError, match=shards[1].key):
        cache.open(shards[1])
    assert kept(folder) == set()


def test_a_file_that_was_damaged_in_the_folder_is_fetched_again(
    store: Store, folder: Path, shards: list[Artifact], caplog: pytest.LogCaptureFixture
) -> None:
    """Broken: after a power cut a training reads what the disk had not written yet, and nobody would ever know."""
    path = ShardCache(store, folder).open(shards[2]).path
    os.truncate(path, SIZE // 2)
    os.truncate(path, SIZE)
    assert ShardCache(store, folder).open(shards[2]).path.read_bytes() == bytes([2]) * SIZE
    assert f"{shards[2].key} in the cache {folder} is damaged" in caplog.text


def test_a_full_disk_is_said(store: Store, folder: Path, shards: list[Artifact]) -> None:
    """A retry on another node can help: not the data's fault."""
    cache = ShardCache(store, folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        with pytest.raises(StoreError, match=f"cannot keep {shards[0].key} in the cache {folder}") as caught:
            cache.open(shards[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.retryable
    assert kept(folder) == set()


def test_a_hint_fetches_ahead_but_at_most_half_the_folder(store: Store, folder: Path, shards: list[Artifact]) -> None:
    """Broken: what was fetched for later would push out what is needed first."""
    split = opened(store, folder, shards, 4 * SIZE)
    split.prefetch(range(5))
    split._cache._fetchers.shutdown(wait=True)
    assert kept(folder) == {shards[0].sha256, shards[1].sha256}


def test_shards_give_way_to_each_other_where_one_fits(store: Store, folder: Path, shards: list[Artifact]) -> None:
    """Slow, but a too small cache must not stop a training in its third week."""
    split = opened(store, folder, shards, SIZE + 10)
    for number in (0, 1, 0, 2):
        assert split[number] == bytes([number]) * SIZE
        assert kept(folder) == {shards[number].sha256}


def test_a_local_store_is_used_in_place_and_checked_once(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: every epoch would hash all shards again."""
    store = Store(f"file://{tmp_path}/store")
    shard = store.put_artifact("f", "train.arrow", b"x" * SIZE)
    cache = ShardCache(store, folder)
    assert cache.open(shard).path == tmp_path / "store" / shard.key
    store.put(shard.key, b"y" * SIZE)
    assert cache.open(shard, checked=True).path.read_bytes() == b"y" * SIZE
    with pytest.raises(DamagedObjectError, match=shard.key):
        cache.open(shard)
    assert kept(folder) == set()
