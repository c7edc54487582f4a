"""
What a checkpoint's index costs a rank of 1,024: FSDP2's state, thousands of tensors in 1,024 chunks each.

One process stands for a rank of such a group: torch's "fake" process group gives real DTensors on a mesh of 1,024, of
which this process holds one part. Nothing is read but the index.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.rounds import OURS, records
from mlops.store import Store
from mlops.trainer.checkpoint.index import Index, IndexWriter, TensorPart, _parsed
from mlops.trainer.checkpoint.loading import wanted_chunks

WORLD_SIZE: Final = 1024
RANK: Final = 517
SHAPES: Final = ((2048, 64), (6144, 8), (2048,), (8192, 16), (4096, 2048 // 16))
"""Small: what counts is how many there are, and that 1,024 divides their first dimension."""
NUM_TENSORS: Final = 4000
BOUND_SECONDS: Final = 0.2
ROUNDS: Final = 3


def keys() -> list[str]:
    return [f"model.layers.{number // 10}.part_{number % 10}.weight" for number in range(NUM_TENSORS)]


def parts(rank: int) -> list[TensorPart]:
    found, start = [], 0
    for number, key in enumerate(keys()):
        shape = SHAPES[number % len(SHAPES)]
        rows = shape[0] // WORLD_SIZE
        offsets, own = (rank * rows, *([0] * (len(shape) - 1))), (rows, *shape[1:])
        found.append(TensorPart(key, "float32", 4, shape, offsets, own, start))
        start += -(-torch.Size(own).numel() * 4 // 64) * 64
    return found


def state() -> dict[str, torch.Tensor]:
    """This rank's part of each tensor."""
    distributed.init_process_group("fake", rank=RANK, world_size=WORLD_SIZE, store=FakeStore())
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    locals_ = [torch.empty(shape[0] // WORLD_SIZE, *shape[1:]) for shape in SHAPES]
    return {
        key: DTensor.from_local(locals_[number % len(SHAPES)], mesh, [Shard(0)], run_check=False)
        for number, key in enumerate(keys())
    }


def main(scratch: Path) -> list[dict[str, Any]]:
    files = [parts(rank) for rank in range(WORLD_SIZE)]
    begin = time.process_time()
    writer = IndexWriter(files, {key: tuple(key.split(".")) for key in keys()})
    made = time.process_time()
    data = writer.dump([[123456789] * len(own) for own in files], {})
    once, each = made - begin, time.process_time() - made
    print(f"rank 0: {once:.2f} CPU s once, {each:.2f} CPU s a save, {len(data) / 1e6:.1f} MB", file=sys.stderr)
    del files, writer
    store = Store(f"file://{scratch}")
    saved: Any = SimpleNamespace(index=store.put_artifact("index", "index.bin", data))
    tensors = state()
    values: dict[str, list[float]] = {OURS: [], "bound": [BOUND_SECONDS] * ROUNDS}
    for _ in range(ROUNDS):
        _parsed.cache_clear()
        begin = time.process_time()
        wanted = wanted_chunks(Index(store, saved), tensors)
        values[OURS].append(time.process_time() - begin)
        assert len(wanted) == NUM_TENSORS
    baselines = {"bound": ("at most", 1.0)}
    return records("training.index_of_1024_ranks", values, unit="CPU s", baselines=baselines, better="lower")


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[2]))))
