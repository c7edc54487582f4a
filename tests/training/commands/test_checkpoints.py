"""``mlops checkpoints``, as its process: what people read, what scripts read, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from warm import run_warm

from mlops.contract.step import python_path
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.generation import LostGenerationError
from mlops.trainer.checkpoint.weights import deserialise
from mlops.trainer.parallel import Ranks

CHECKOUT = Path(__file__).parents[3]
PLACE = "pipelines/ranking/train/20130208T050000Z-0a1b2c"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def checkpoints(store: Store) -> Checkpoints:
    """Of steps 10, 20 and 30; 20 is the best."""
    checkpoints = Checkpoints(store=store, place=PLACE, ranks=Ranks())
    for epoch, metric in ((1, 0.5), (2, 0.75), (3, 0.7)):
        meta = {"epoch": epoch, "history": [{"validation_metric": metric}]}
        best = 10 * min(epoch, 2)
        checkpoints.save(10 * epoch, {"model": {"w": torch.full((1000,), epoch / 3)}}, meta, best_step=best)
        checkpoints.wait()
    return checkpoints


@pytest.fixture
def mlops(store: Store, checkpoints: Checkpoints) -> Run:
    paths = python_path(CHECKOUT)
    places = {"PYTHONPATH": paths, "MLOPS_HOME": str(CHECKOUT), "MLOPS_STORE": store.uri, "COLUMNS": "160"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlops.commands", "checkpoints", *arguments]
        return run_warm(command, env={**os.environ, **places}, timeout=60)

    return run


def newest(checkpoints: Checkpoints) -> int:
    saved = checkpoints.newest()
    assert saved is not None
    return saved.step


def test_list_tells_newest_and_best(mlops: Run, store: Store) -> None:
    store.put(f"{PLACE}/checkpoints/step-00000040-g0001/rank-0000.bin", b"half")
    done = mlops("list", "ranking")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == [PLACE]
    rows = [(line[0], line[-1]) for line in lines[2:]]
    copies = [("20", "weights"), ("10", "weights")]
    assert rows == [("40", "unfinished"), ("30", "newest"), ("20", "best"), copies[0], ("10", "complete"), copies[1]]
    assert lines[3][1] == "3", "the epoch"
    assert [line[-2] for line in lines[3::2]] == ["0.7000", "best", "earlier"]
    assert [line[-2] for line in lines[4::2]] == ["0.7500", "0.5000"]

    listed = json.loads(mlops("list", "ranking/2013", "--json").stdout)
    assert [(row["step"], row.get("world_size"), row.get("num_bytes")) for row in listed] == [
        (10, 1, 4000), (10, 1, 4000), (20, 1, 4000), (20, 1, 4000), (30, 1, 4000), (40, None, None),
    ]  # fmt: skip
    missing = mlops("list", "rankings")
    assert missing.returncode == 2
    assert "it has the pipelines ranking" in missing.stderr


def test_verify_names_the_damaged_file(mlops: Run, store: Store) -> None:
    whole = mlops("verify", "ranking")
    assert (whole.returncode, whole.stdout) == (0, "3 checkpoints and 2 copies of best weights are whole: 20.0 kB\n")
    (path,) = Path(store.uri.removeprefix("file://")).glob(f"{PLACE}/checkpoints/step-00000020-*/rank-*")
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    done = mlops("verify", "ranking")
    assert done.returncode == 1
    assert path.name in done.stdout
    assert mlops("verify", "ranking", "--step", "30").returncode == 0


def test_verify_of_a_step_looks_at_every_training_that_has_it(mlops: Run, store: Store) -> None:
    """Broken: the first training that ended early would hide that a later one's checkpoint is damaged."""
    early = Checkpoints(store=store, place=PLACE.replace("0208", "0207"), ranks=Ranks())
    early.save(10, {"model": {"w": torch.zeros(10)}}, {}, best_step=10)
    early.wait()
    for path in Path(store.uri.removeprefix("file://")).glob(f"{PLACE}/checkpoints/step-00000030-*/rank-*"):
        path.write_bytes(b"")
    done = mlops("verify", "ranking", "--step", "30")
    assert (done.returncode, "step-00000030" in done.stdout) == (1, True)
    assert mlops("verify", "ranking", "--step", "20").returncode == 0
    nowhere = mlops("verify", "ranking", "--step", "40")
    assert (nowhere.returncode, "has no checkpoint of step 40" in nowhere.stderr) == (2, True)


def test_restore_goes_back_and_forth(mlops: Run, store: Store, checkpoints: Checkpoints) -> None:
    """Broken: a training that went astray could not be taken back, or what it had done would be lost at once."""
    done = mlops("restore", "ranking", "10")
    assert done.returncode == 0, done.stderr
    assert "set aside: 20, 30" in done.stdout
    assert newest(checkpoints) == 10
    assert [line.split()[-1] for line in mlops("list", "ranking").stdout.splitlines()[2:4]] == ["aside", "aside"]
    assert mlops("restore", "ranking", "20").returncode == 0
    assert newest(checkpoints) == 20

    resumed = Checkpoints(store=store, place=PLACE, ranks=Ranks())
    assert newest(resumed) == 20
    resumed.save(25, {"model": {"w": torch.zeros(1000)}}, {}, best_step=20)
    resumed.wait()
    assert newest(resumed) == 25
    gone = mlops("restore", "ranking", "30")
    assert (gone.returncode, "it has 10, 20, 25" in gone.stderr) == (2, True)


def test_restore_brings_back_the_best_of_that_time(mlops: Run, store: Store, checkpoints: Checkpoints) -> None:
    """Broken: back and forth, the best would stay set aside, and the next save remove its weights for good."""
    assert mlops("restore", "ranking", "10").returncode == 0
    done = mlops("restore", "ranking", "30")
    assert done.returncode == 0, done.stderr
    assert newest(checkpoints) == 30
    best = checkpoints.choose_weights([20])
    assert best is not None
    assert "/step-" in best.folder


def test_restore_ends_a_training_that_still_runs(mlops: Run, checkpoints: Checkpoints) -> None:
    """Broken: its next save would take the place of what was restored."""
    assert mlops("restore", "ranking", "10").returncode == 0
    checkpoints.save(40, {"model": {"w": torch.zeros(1000)}}, {})
    with pytest.raises(LostGenerationError):
        checkpoints.wait()
    assert newest(checkpoints) == 10


def test_a_training_that_has_ended_is_not_restored(mlops: Run, store: Store, checkpoints: Checkpoints) -> None:
    """Broken: someone would wait for a retry that returns the old result."""
    store.put(f"{PLACE}/ref.json", b"{}")
    done = mlops("restore", "ranking", "10")
    assert done.returncode == 2
    assert "the training has ended" in done.stderr
    assert newest(checkpoints) == 30


def test_weights_are_exported(mlops: Run, tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    arguments = ("--weights", str(file), "--dtype", "bfloat16", "--compress")
    done = mlops("restore", "ranking", "20", *arguments)
    assert done.returncode == 0, done.stderr
    weights = deserialise(file.read_bytes(), torch.device("cpu"))
    assert torch.equal(weights["w"], torch.full((1000,), 2 / 3, dtype=torch.bfloat16))
