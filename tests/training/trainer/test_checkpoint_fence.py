"""Two real process groups on one place: the older one was stopped, and goes on when the newer one is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.generation import LostGenerationError
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.parallel import Ranks

PLACE, LAST, BEST = "train", 240, 10


def start(store: Store, role: str, logs: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--log-dir", str(logs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, __file__, store.uri, role], env=environment, start_new_session=True)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 90
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.05)


@pytest.mark.gang
def test_of_two_process_groups_the_older_one_ends_and_nothing_is_lost(tmp_path: Path) -> None:
    """Broken: the older one's save would remove the newer one's; a flipped bit in the best would cost all the rest."""
    store = Store(f"file://{tmp_path}/store")
    older = start(store, "older", tmp_path)
    wait_for(tmp_path / "store/stopped-0")
    wait_for(tmp_path / "store/stopped-1")  # both ranks have stopped themselves, after step 230
    root = tmp_path / "store" / PLACE / "checkpoints"
    (best,) = root.glob(f"step-{BEST:08d}-*/rank-0000.*")
    data = bytearray(best.read_bytes())
    data[3] ^= 1
    best.write_bytes(data)
    newer = start(store, "newer", tmp_path)
    assert newer.wait(90) == 0
    assert store.get("resumed") == b"230"
    listed = read_listing(store, PLACE)
    assert [saved.step for saved in listed.complete] == [BEST, 220, 230, LAST]
    for rank in range(2):
        os.kill(int(store.get(f"stopped-{rank}")), signal.SIGCONT)
    assert older.wait(90) == 0
    assert [store.get(f"ended-{rank}") for rank in range(2)] == [b"LostGenerationError"] * 2
    after = read_listing(store, PLACE)
    assert [saved.folder for saved in after.complete] == [saved.folder for saved in listed.complete]
    alone = Checkpoints(store=store, place=PLACE, ranks=Ranks())
    saved = alone.newest()
    assert saved is not None
    assert torch.equal(alone.load_whole(saved)["model"]["w"], weights(LAST))
    copy = alone.choose_weights([BEST])
    assert copy is not None
    assert torch.equal(alone.load_whole(copy, "model")["model"]["w"], weights(BEST))


def weights(step: int) -> torch.Tensor:
    return torch.full((5000,), float(step))


def work(uri: str, role: str) -> None:
    distributed.init_process_group("gloo")
    rank, store = distributed.get_rank(), Store(uri)
    group = distributed.new_group(backend="gloo")
    checkpoints = Checkpoints(store=store, place=PLACE, ranks=Ranks(rank=rank, world_size=2, cpu_group=group))
    saved = checkpoints.newest()
    if role == "newer":
        assert saved is not None
        if rank == 0:
            store.put("resumed", str(saved.step).encode())
        save(checkpoints, LAST)
        return
    for step in (BEST, 210, 220, 230):
        save(checkpoints, step)
    store.put(f"stopped-{rank}", str(os.getpid()).encode())
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        save(checkpoints, 235)
    except LostGenerationError as error:
        store.put(f"ended-{rank}", type(error).__name__.encode())


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, {"model": {"w": weights(step)}}, {}, best_step=BEST, wait=True)
    checkpoints.wait()


if __name__ == "__main__":
    work(*sys.argv[1:])
