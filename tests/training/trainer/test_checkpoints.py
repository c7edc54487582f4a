"""Checkpoints of one process: what comes back, whatever was damaged, killed or full meanwhile."""

from __future__ import annotations

import ctypes
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from mlops.contract.step import BadConfigError
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.generation import LostGenerationError
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.checkpoint.planning import CheckpointError
from mlops.trainer.checkpoint.weights import deserialise, export
from mlops.trainer.parallel import Ranks

PLACE = "pipelines/toy/train/x"


def checkpoints_in(store: Store, **changes: Any) -> Checkpoints:
    changes = {"retry_seconds": 0.02, **changes}
    return Checkpoints(store=store, place=PLACE, ranks=Ranks(), **changes)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    uri = f"file://{tmp_path}/store"
    return Store(uri if request.param == "local" else f"{request.getfixturevalue('s3')}/{tmp_path.name}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def checkpoints(folder: Path) -> Checkpoints:
    return checkpoints_in(Store(f"file://{folder}"))


def state_of(step: int) -> dict[str, Any]:
    """All kinds of leaves, a function of the step."""
    torch.manual_seed(step)
    return {
        "model": {
            "layer.weight": torch.randn(40, 30).t(),
            "layer.bias": torch.randn(7, dtype=torch.bfloat16),
            "mask": torch.rand(5) > 0.5,
            "none_yet": torch.empty(0, 3),
        },
        "optimizer": {
            "state.layer.weight.step": torch.tensor(float(step)),
            "state.layer.weight.exp_avg": torch.randn(30, 40, dtype=torch.float64),
            "param_groups.layer.weight.betas": (0.9, 0.1 + step / 3),
            "param_groups.layer.weight.lr": 1e-3 / step,
            "param_groups.layer.weight.fused": None,
            "groups": [{"lr": torch.tensor(0.1), "names": ["a", "b"]}, {"lr": math.inf, "names": []}],
        },
        "seen": step,
    }


def assert_same(left: Any, right: Any) -> None:
    """Equal to the bit, and of the same types."""
    if isinstance(right, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(right, dict):
        assert list(left) == list(right) or sorted(left) == sorted(right)
        for key in right:
            assert_same(left[key], right[key])
    elif isinstance(right, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert (type(left), left) == (type(right), right)


def save(checkpoints: Checkpoints, *steps: int, best: int | None = None) -> None:
    """:param best: the best one from this step on"""
    for step in steps:
        best_step = None if best is None or step < best else best
        assert checkpoints.save(step, state_of(step), {"epoch": step}, best_step=best_step)
        checkpoints.wait()


def steps_in(checkpoints: Checkpoints) -> list[int]:
    return [saved.step for saved in read_listing(checkpoints.store, PLACE).complete]


def newest_step(checkpoints: Checkpoints) -> int | None:
    saved = checkpoints.newest()
    return None if saved is None else saved.step


def best_weights(checkpoints: Checkpoints, step: int) -> dict[str, Any] | None:
    """Those of a step, from wherever they are whole."""
    saved = checkpoints.choose_weights([step])
    return None if saved is None else checkpoints.load_whole(saved, "model")["model"]


def folders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / PLACE / "checkpoints").iterdir() if path.name != "generations")


def only(folder: Path, pattern: str) -> Path:
    (path,) = (folder / PLACE / "checkpoints").glob(pattern)
    return path


@pytest.mark.server
def test_what_was_saved_comes_back(store: Store) -> None:
    """Broken: a resumed training would differ from the undisturbed one, or not start."""
    checkpoints = checkpoints_in(store)
    assert checkpoints.newest() is None
    save(checkpoints, 3)
    saved = checkpoints.newest()
    assert saved is not None
    assert (saved.step, saved.meta, saved.world_size) == (3, {"epoch": 3}, 1)
    state = state_of(4)
    checkpoints.load(saved, state)
    assert_same(state, state_of(3))
    assert_same(checkpoints.load_whole(saved), state_of(3))
    assert_same(checkpoints.load_whole(saved, "model"), {"model": state_of(3)["model"]})


@pytest.mark.server
def test_a_large_state_goes_in_parts(store: Store) -> None:
    """Broken: above one part of a multipart upload, or one read, bytes would be lost or mixed up."""
    checkpoints = checkpoints_in(store)
    state = {"model": {name: torch.randn(5_000_011) for name in "abcd"}}
    checkpoints.save(1, state, {})
    checkpoints.wait()
    saved = checkpoints.newest()
    assert saved is not None
    assert saved.num_bytes == 80_000_176
    assert_same(checkpoints.load_whole(saved), state)


def test_the_state_may_change_as_soon_as_save_returns(checkpoints: Checkpoints) -> None:
    """Broken: a checkpoint would hold a mixture of two steps."""
    state = {"weight": torch.zeros(3_000_000)}
    for step in (1, 2, 3):
        checkpoints.save(step, state, {}, wait=True)
        state["weight"] += 1
    checkpoints.wait()
    for saved in read_listing(checkpoints.store, PLACE).complete:
        assert checkpoints.load_whole(saved)["weight"].unique().tolist() == [saved.step - 1]


def test_a_state_of_another_structure_is_planned_anew(checkpoints: Checkpoints) -> None:
    """Broken: the optimizer's state, which comes with the first step, would be missing from later checkpoints."""
    checkpoints.prepare({"model": torch.ones(3)})
    checkpoints.save(1, {"model": torch.ones(3)}, {})
    checkpoints.save(2, {"model": torch.ones(3), "momentum": torch.ones(4)}, {}, wait=True)
    checkpoints.wait()
    saved = checkpoints.newest()
    assert saved is not None
    assert_same(checkpoints.load_whole(saved), {"model": torch.ones(3), "momentum": torch.ones(4)})


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def claim_another_epoch(path: Path) -> None:
    path.write_text(path.read_text().replace('"epoch": 2', '"epoch": 3'))


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "flipped byte": ("rank-*.bin", flip),
    "truncated": ("rank-*.bin", lambda path: path.write_bytes(path.read_bytes()[:-4096])),
    "empty": ("rank-*.bin", lambda path: path.write_bytes(b"")),
    "missing": ("rank-*.bin", Path.unlink),
    "other epoch": ("checkpoint.json", claim_another_epoch),
    "half a marker": ("checkpoint.json", lambda path: path.write_text(path.read_text()[:100])),
    "no marker": ("checkpoint.json", Path.unlink),
    "flipped index": ("index.*", flip),
    "no index": ("index.*", Path.unlink),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(checkpoints: Checkpoints, folder: Path, damage: str) -> None:
    """Broken: a training would go on from garbage, or not at all though an older checkpoint is whole."""
    save(checkpoints, 1, 2)
    pattern, strike = DAMAGES[damage]
    strike(only(folder, f"step-00000002-*/{pattern}"))
    resumed = checkpoints_in(checkpoints.store)
    assert newest_step(resumed) == 1
    # The next save need not be of the same step: the damaged one must not come back after it.
    save(resumed, 1)
    assert set(steps_in(resumed)) == {1}


def test_a_damaged_object_in_a_bucket_is_passed_over(s3: str, tmp_path: Path) -> None:
    """Broken: as above; ranges beyond an object's end are an error of their own there."""
    store = Store(f"{s3}/{tmp_path.name}")
    checkpoints = checkpoints_in(store)
    save(checkpoints, 1, 2, 3)
    for step, data in ((3, b"short"), (2, None)):
        keys = store.list(f"{PLACE}/checkpoints")
        (key,) = (key for key in keys if f"/step-{step:08d}-" in key and key.endswith(".bin"))
        store.delete([key]) if data is None else store.put(key, data)
        assert newest_step(checkpoints) == step - 1


@pytest.mark.parametrize("first", ["step", "best"])
def test_the_best_weights_have_two_lives(checkpoints: Checkpoints, folder: Path, first: str) -> None:
    """Broken: one flipped bit would lose the best model; or one be registered whose weights nobody trained."""
    save(checkpoints, 1, 2, best=1)
    copies = [only(folder, f"{name}-00000001-*/rank-*.bin") for name in ("step", "best")]
    assert copies[0].stat().st_ino != copies[1].stat().st_ino, "a hard link is no copy"
    for path in copies if first == "step" else reversed(copies):
        assert_same(best_weights(checkpoints, 1), state_of(1)["model"])
        data = bytearray(path.read_bytes())
        data[5] ^= 1  # the weights come first
        path.write_bytes(data)
    assert best_weights(checkpoints, 1) is None


@pytest.mark.server
def test_the_newest_three_and_the_best_are_kept(store: Store) -> None:
    """Broken: the disk would fill up, or the best weights be gone at the end."""
    checkpoints = checkpoints_in(store)
    save(checkpoints, 1, 2, 3, 4, 5, 6, best=2)
    assert steps_in(checkpoints) == [2, 4, 5, 6]
    save(checkpoints, 7, best=7)
    assert steps_in(checkpoints) == [2, 5, 6, 7], "6 could not be gone on from without 2, were 7 damaged"
    save(checkpoints, 8, 9, best=7)
    assert steps_in(checkpoints) == [7, 8, 9]
    assert not [key for key in store.list(f"{PLACE}/checkpoints") if "-00000002-" in key]
    assert [saved.step for saved in read_listing(store, PLACE).copies] == [7]


def test_leftovers_of_killed_saves_are_removed(checkpoints: Checkpoints, folder: Path) -> None:
    """Broken: each kill would leave a checkpoint's worth of bytes for good."""
    save(checkpoints, 1)
    for step in (2, 9):
        left = folder / PLACE / f"checkpoints/step-0000000{step}-g0001/rank-0000.dead.bin"
        left.parent.mkdir()
        left.write_bytes(bytes(10))
    resumed = checkpoints_in(checkpoints.store)
    assert newest_step(resumed) == 1
    save(resumed, 3)
    assert folders_in(folder) == ["step-00000001-g0001", "step-00000003-g0002"]


def test_a_damaged_best_costs_nothing_else(checkpoints: Checkpoints, folder: Path) -> None:
    """Broken: one flipped bit would start the training anew, and its first save remove all that is whole."""
    save(checkpoints, 10, 210, 220, 230, best=10)
    flip(only(folder, "step-00000010-*/rank-*.bin"))
    resumed = checkpoints_in(checkpoints.store)
    assert newest_step(resumed) == 230
    assert_same(best_weights(resumed, 10), state_of(10)["model"])
    save(resumed, 240, best=10)
    assert steps_in(resumed) == [220, 230, 240], "the damaged one is gone, its copy is not"
    assert_same(best_weights(resumed, 10), state_of(10)["model"])


def test_what_is_damaged_does_not_count_as_kept(checkpoints: Checkpoints, folder: Path) -> None:
    """Broken: of the newest three, damaged ones among them, whole ones would be removed."""
    save(checkpoints, 1, 2, 3, 4, 5)
    flip(only(folder, "step-00000005-*/rank-*.bin"))
    only(folder, "step-00000004-*/rank-*.bin").unlink()  # as an expiry does
    resumed = checkpoints_in(checkpoints.store)
    assert newest_step(resumed) == 3
    save(resumed, 6)
    assert steps_in(resumed) == [3, 6]
    save(resumed, 7, 8)
    assert steps_in(resumed) == [6, 7, 8]


def test_who_is_overtaken_ends_and_removes_nothing(checkpoints: Checkpoints, folder: Path) -> None:
    """Broken: after a partition the old process group would remove what the new one has saved."""
    save(checkpoints, 100, 101, 102)
    living = checkpoints_in(checkpoints.store)
    assert newest_step(living) == 102
    save(living, 110, 120)
    checkpoints.save(103, state_of(103), {})
    with pytest.raises(LostGenerationError, match="generation 2") as caught:
        checkpoints.wait()
    assert not caught.value.retryable
    with pytest.raises(LostGenerationError):
        checkpoints.save(104, state_of(104), {})
    assert steps_in(living) == [102, 110, 120]
    save(living, 130)
    assert newest_step(checkpoints_in(checkpoints.store)) == 130


def test_a_process_group_of_an_overtaken_agent_does_not_begin(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the agent of an old one, which restarts it in place, would end the new one in turn, and so for ever."""
    for lineage, lost in (("a", False), ("a", False), ("b", False), ("a", True), ("b", False)):
        monkeypatch.setenv("MLOPS_LINEAGE", lineage)
        begun = checkpoints_in(checkpoints.store)
        if lost:
            with pytest.raises(LostGenerationError, match="generation 3"):
                begun.newest()
        else:
            begun.newest()


def test_a_checkpoint_that_is_being_removed_is_saved_again(checkpoints: Checkpoints, folder: Path) -> None:
    """Broken: what an old process group is about to remove would be all that a new one has."""
    save(checkpoints, 1, 2)
    flip(only(folder, "step-00000002-*/rank-*.bin"))
    (folder / PLACE / "checkpoints/step-00000001-g0001/retired.json").write_text("{}")
    resumed = checkpoints_in(checkpoints.store)
    saved = resumed.newest()
    assert saved is not None
    state = state_of(9)
    resumed.load(saved, state)
    checkpoints.store.delete([saved.marker])
    again = checkpoints_in(checkpoints.store).newest()
    assert again is not None
    assert_same(checkpoints.load_whole(again), state_of(1))


@contextmanager
def store_down(folder: Path) -> Iterator[None]:
    """Nothing can be read or written, as root too."""
    away = folder.with_name("away")
    away.write_text("no folder")
    _exchange(folder, away)
    try:
        yield
    finally:
        _exchange(folder, away)
        away.unlink()


def _exchange(one: Path, other: Path) -> None:
    """At once: a thread that writes would make the folder anew in a moment in which nothing is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, bytes(one), -100, bytes(other), 2):  # AT_FDCWD and RENAME_EXCHANGE, see rename(2)
        raise OSError(ctypes.get_errno(), "cannot exchange", str(one))


def test_a_store_that_comes_back_gets_its_checkpoint(folder: Path) -> None:
    """Broken: a moment's outage would cost the checkpoint; or the next save would overtake it, out of its memory."""
    checkpoints = checkpoints_in(Store(f"file://{folder}"), retry_seconds=0.5)
    save(checkpoints, 1)
    with store_down(folder):
        assert checkpoints.save(2, state_of(2), {})
        assert not checkpoints.save(3, state_of(3), {}), "the one before is in flight"
    checkpoints.wait()
    assert steps_in(checkpoints) == [1, 2]
    assert_same(checkpoints.load_whole(read_listing(checkpoints.store, PLACE).complete[-1]), state_of(2))


def test_a_store_that_stays_down_does_not_disturb_the_training(checkpoints: Checkpoints, folder: Path) -> None:
    """Broken: a training would end with its store, or not say at its end that its last checkpoint is lost."""
    save(checkpoints, 1)
    with store_down(folder):
        assert checkpoints.save(2, state_of(2), {})
        with pytest.raises(CheckpointError, match=r"cannot write .*step-00000002"):
            checkpoints.wait()
    save(checkpoints, 3)
    assert steps_in(checkpoints) == [1, 3]


def test_a_best_that_could_not_be_written_costs_nothing_else(checkpoints: Checkpoints, folder: Path) -> None:
    """Broken: a moment's outage would take the training back by many saves."""
    save(checkpoints, 1, 2, best=1)
    with store_down(folder):
        checkpoints.save(3, state_of(3), {"epoch": 3}, best_step=3)
        with pytest.raises(CheckpointError):
            checkpoints.wait()
    save(checkpoints, 4, 5, 6, 7, best=3)
    resumed = checkpoints_in(checkpoints.store)
    assert newest_step(resumed) == 7
    chosen = resumed.choose_weights([3, 2, 6, 7])
    assert chosen is not None
    assert chosen.step == 6, "the best of what is left"


def test_a_full_disk_costs_one_checkpoint_and_leaves_nothing_in_the_way(checkpoints: Checkpoints, folder: Path) -> None:
    """Broken: the half file would keep the disk full."""
    save(checkpoints, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        checkpoints.save(2, state_of(2), {})
        with pytest.raises(CheckpointError):
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((folder / PLACE / "checkpoints/step-00000002-g0001").glob("*"))
    assert newest_step(checkpoints) == 1
    save(checkpoints, 3)
    assert newest_step(checkpoints) == 3


def test_a_changed_model_is_refused_by_name(checkpoints: Checkpoints) -> None:
    """Broken: weights would be cut, or left as they were initialised."""
    save(checkpoints, 1)
    saved = checkpoints.newest()
    assert saved is not None
    with pytest.raises(BadConfigError, match=r"no model\.head"):
        checkpoints.load(saved, {"model": {"head": torch.zeros(3)}})
    with pytest.raises(BadConfigError, match=r"model\.mask is \[5\] in the checkpoint .* and \[6\]"):
        checkpoints.load(saved, {"model": {"mask": torch.zeros(6, dtype=torch.bool)}})


def test_what_would_need_pickle_is_refused_by_name(checkpoints: Checkpoints) -> None:
    """Broken: reading a checkpoint could run code."""
    with pytest.raises(BadConfigError, match=r"cannot hold optimizer\.hook, a set"):
        checkpoints.save(1, {"optimizer": {"hook": {1, 2}}}, {})


@pytest.mark.parametrize("compress", [False, True])
def test_exported_weights_are_half_as_large_and_load(compress: bool) -> None:
    """Broken: what is handed to serving could not be read, or would hold the optimizer's precision."""
    weights = {"w": torch.linspace(-1, 1, 100_000), "count": torch.tensor(3)}
    data = export(weights, dtype="bfloat16", compress=compress)
    assert len(data) < 0.51 * weights["w"].nbytes
    back = deserialise(data, torch.device("cpu"))
    assert_same(back, {"w": weights["w"].bfloat16(), "count": weights["count"]})


@pytest.mark.gang
def test_after_fifty_kills_there_is_always_a_whole_checkpoint(folder: Path) -> None:
    """Broken: a kill at the wrong moment would lose the training, or leave a checkpoint that is not what was saved."""
    command = [sys.executable, __file__, f"file://{folder}", "50"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    kills, last = map(int, done.stdout.split())
    assert kills == 50
    assert last >= 25, "a checkpoint was committed before each second kill"


def _kill_and_look(uri: str, kills: int) -> None:
    """Forks a training over and over, kills it, and looks from another fork: torch is imported only once."""
    draw = random.Random(3)
    last = 0
    for number in range(kills):
        reading, writing = os.pipe()
        begun = time.monotonic()
        if (child := os.fork()) == 0:
            _train(uri, writing)
        os.close(writing)
        if number % 2:  # somewhere in the first save, or before
            time.sleep(draw.uniform(0.0, 0.1))
        else:  # in one of those after it, however long they take on a busy machine
            os.read(reading, 1)
            time.sleep(draw.uniform(0.0, 2.0) * (time.monotonic() - begun))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.write(writing, str(_look(uri)).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            found = file.read()
        os.waitpid(child, 0)
        assert found, "the look failed"
        assert int(found) >= last, "a checkpoint that was there is gone"
        last = int(found)
    print(kills, last)


def _train(uri: str, saved_one: int) -> None:
    checkpoints = checkpoints_in(Store(uri), keep_latest=2)
    saved = checkpoints.newest()
    step = saved.step if saved else 0
    while True:
        step += 1
        checkpoints.save(step, state_of(step), {"epoch": step}, best_step=step // 5 * 5 or None, wait=True)
        os.write(saved_one, b".")


def _look(uri: str) -> int:
    checkpoints = checkpoints_in(Store(uri))
    saved = checkpoints.newest()
    if saved is None:
        return 0
    assert saved.meta == {"epoch": saved.step}
    assert_same(checkpoints.load_whole(saved), state_of(saved.step))
    if saved.step >= 5:
        best = saved.step // 5 * 5
        assert_same(best_weights(checkpoints, best), state_of(best)["model"])
    return saved.step


if __name__ == "__main__":
    torch.set_num_threads(1)
    _kill_and_look(sys.argv[1], int(sys.argv[2]))
