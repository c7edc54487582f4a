from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from training.store import Store
from training.trainer.checkpoint import Checkpoints, deserialise, serialise

CPU = torch.device("cpu")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(store=Store(f"file://{tmp_path}"), place="train/x")


def epoch_of(checkpoints: Checkpoints) -> int | None:
    artifact = checkpoints.newest()
    return None if artifact is None else int(checkpoints.load(artifact, CPU)["epoch"])


def file_of(checkpoints: Checkpoints, epoch: int, pattern: str) -> Path:
    root = Path(checkpoints.store.uri.removeprefix("file://"))
    (path,) = root.glob(f"train/x/checkpoints/epoch-{epoch:04d}/{pattern}")
    return path


def test_the_newest_checkpoint_comes_back(checkpoints: Checkpoints) -> None:
    assert epoch_of(checkpoints) is None
    for epoch in (1, 2, 10):
        checkpoints.save(epoch, {"epoch": epoch, "model": {"weight": torch.full((3,), float(epoch))}})
    assert epoch_of(checkpoints) == 10


@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "missing state", "broken marker", "no marker"])
def test_a_damaged_checkpoint_is_passed_over(checkpoints: Checkpoints, damage: str) -> None:
    """Broken: a training would go on from garbage, or not at all though an older checkpoint is whole."""
    for epoch in (1, 2):
        checkpoints.save(epoch, {"epoch": epoch, "model": {"weight": torch.zeros(100)}})
    state, marker = file_of(checkpoints, 2, "state.*.pt"), file_of(checkpoints, 2, "checkpoint.json")
    if damage == "flipped byte":
        data = bytearray(state.read_bytes())
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    elif damage == "truncated":
        state.write_bytes(state.read_bytes()[:50])
    elif damage == "missing state":
        state.unlink()
    elif damage == "broken marker":
        marker.write_text('{"key": "tr')
    else:
        marker.unlink()
    assert epoch_of(checkpoints) == 1


def test_equal_states_are_equal_bytes_whatever_their_storage() -> None:
    """Broken: two bit-identical trainings would have weights of different digests."""
    weights = torch.arange(12.0)
    whole = serialise({"w": weights.clone().reshape(3, 4), "b": weights[:4].clone()})
    views = serialise({"w": torch.arange(24.0)[:12].reshape(3, 4), "b": weights[:4]})
    assert whole == views
    assert deserialise(views, CPU)["b"].equal(weights[:4])


def test_a_checkpoint_whose_best_weights_are_damaged_is_passed_over(checkpoints: Checkpoints) -> None:
    """Broken: a training would go on to its end, find the weights damaged, and do so again at every try."""
    for epoch in (1, 2):
        weights = checkpoints.store.put_artifact("train/x", f"weights-{epoch}.pt", bytes([epoch]))
        checkpoints.save(epoch, {"epoch": epoch, "best": {"weights": asdict(weights)}})
    (damaged,) = Path(checkpoints.store.uri.removeprefix("file://")).glob("train/x/weights-2.*")
    damaged.write_bytes(b"")
    assert epoch_of(checkpoints) == 1
