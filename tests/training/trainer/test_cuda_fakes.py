"""
What is asked of CUDA, where there is none: fakes of torch's functions note the calls. Nothing here has run on a GPU;
``tests/training/test_gpu.py`` does, where there is one.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlops.contract.step import BadConfigError
from mlops.data.shards.batch import Batch
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.planning import CheckpointError
from mlops.trainer.checkpoint.staging import Staging
from mlops.trainer.outcome import Copied, packed
from mlops.trainer.parallel import Ranks, own_device
from mlops.trainer.strategies import transfer
from mlops.trainer.strategies.transfer import moved


class Cudart:
    """CUDA's runtime library, as far as it locks memory."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        if not self.code:
            self.pinned[address] = num_bytes
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


def plan_of(tmp_path: Path) -> Any:
    checkpoints = Checkpoints(store=Store(f"file://{tmp_path}"), place="x", ranks=Ranks())
    checkpoints.prepare({"weight": torch.zeros(1000, 70)})
    assert checkpoints._plan is not None
    return checkpoints._plan.mine


def test_memory_for_checkpoints_is_pinned_to_the_page_and_given_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Broken: each rank would hold up to twice its state in memory that nobody else can have, or never give it back."""
    cudart = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    plan = plan_of(tmp_path)
    staging = Staging(plan, pinned=True)
    assert list(cudart.pinned.values()) == [plan.file_bytes]
    assert plan.file_bytes < 1.02 * 1000 * 70 * 4
    staging.fill([torch.ones(1000, 70)])
    staging.wait()
    assert np.frombuffer(staging.memory[: 1000 * 70 * 4], np.float32).all()
    del staging
    gc.collect()
    assert not cudart.pinned


def test_memory_that_cannot_be_pinned_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Cudart(code=2))
    with pytest.raises(CheckpointError, match="cannot be pinned, CUDA error 2"):
        Staging(plan_of(tmp_path), pinned=True)


def test_a_checkpoint_is_written_after_the_copies_have_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Broken: the file would hold what was in memory before, with checksums that fit it."""
    fill = Staging.fill
    given: list[Any] = []
    # As a GPU's stream: nothing is copied before it is waited for.
    monkeypatch.setattr(Staging, "fill", lambda self, sources: given.append([source.clone() for source in sources]))
    monkeypatch.setattr(Staging, "wait", lambda self: fill(self, given.pop()))
    checkpoints = Checkpoints(store=Store(f"file://{tmp_path}"), place="x", ranks=Ranks())
    checkpoints.save(1, {"weight": torch.full((50,), 3.0)}, {})
    checkpoints.wait()
    saved = checkpoints.newest()
    assert saved is not None
    assert torch.equal(checkpoints.load_whole(saved)["weight"], torch.full((50,), 3.0))


class Stream:
    """Notes what it is told, in the order of the host."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def wait_stream(self, other: Stream) -> None:
        self.said.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        self.said.append(f"{self.name} copies")
        return self.name

    def wait_event(self, event: str) -> None:
        self.said.append(f"{self.name} waits for a copy of {event}")


def test_a_micro_batch_is_copied_one_ahead_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a batch would be used before it is there, or overwrite one in use, or all be on the GPU at once."""
    said: list[str] = []
    compute, side = Stream("compute", said), Stream("side", said)

    @contextmanager
    def on(_: Stream) -> Any:
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: compute)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(transfer, "_STREAMS", {})
    monkeypatch.setattr(torch, "empty_like", lambda tensor, device: torch.zeros(tensor.shape, dtype=tensor.dtype))
    batches = [
        Batch(
            features=torch.full((2, 3), 1.0 + number),
            labels=torch.ones(2),
            mask=torch.ones(2, 3, dtype=torch.bool),
            weights=torch.ones(2),
            samples=np.arange(2),
        )
        for number in range(3)
    ]
    for number, batch in enumerate(moved(batches, torch.device("cuda", 0))):
        for there, here in zip(batch.tensors(), batches[number].tensors(), strict=True):
            assert torch.equal(there, here)
        said.append(f"batch {number}")
    begin, arrive = ["side waits for compute", "side copies"], ["compute waits for a copy of side"]
    assert said == [
        *begin,
        *(*begin, *arrive, "batch 0"),
        *(*begin, *arrive, "batch 1"),
        *(*arrive, "batch 2"),
        "compute waits for side",
    ]


def test_numbers_of_a_step_are_packed_exactly() -> None:
    """Broken: on a GPU the trail of gradient norms, or a sum of losses, would be others than on the way by one."""
    numbers = [
        torch.tensor(0.1),
        torch.tensor(3e30, dtype=torch.float64) / 7,
        torch.tensor(65536.0),
        torch.tensor(-0.1),
    ]
    assert packed(numbers).tolist() == [float(number) for number in numbers] == Copied(numbers).read()


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: NCCL would say "duplicate GPU", or CUDA "invalid device ordinal"."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert own_device() == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(BadConfigError, match="4 processes on a node with 2 GPUs"):
        own_device()
