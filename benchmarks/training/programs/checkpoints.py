"""
How long a save holds up the training, and until it would survive a power cut: ours beside a copy of the state,
``torch.save``, ``dcp.save`` and ``dcp.async_save``, of states of about 500 MB and 2 GB, to local disk.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from benchmarks.rounds import OURS, in_rotation, records
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.parallel import Ranks

SIZES: Final = {"500MB": (10, 3), "2GB": (40, 2)}
"""Matrices of 4 M weights, and rounds. With Adam's two states each is 50 MB."""
COPY: Final = "memcpy"
BLOCKED: Final = {
    COPY: ("one copy of the state into warm buffers", 1.2),
    "torch_save": ("torch.save", 1.0),
    "dcp_save": ("dcp.save", 1.0),
    "async_save": ("dcp.async_save", 1.0),
}
"""Description and target."""
DURABLE: Final = {name: baseline for name, baseline in BLOCKED.items() if name != COPY}


@dataclass(frozen=True, kw_only=True, slots=True)
class Took:
    """Seconds from the start of a save."""

    blocked: float
    durable: float


def state(num_matrices: int) -> dict[str, dict[str, Tensor]]:
    """A model and its optimizer's states, as ``torch.distributed.checkpoint.state_dict`` gives them."""
    model = {f"layers.{i}.weight": torch.randn(4096, 1024) for i in range(num_matrices)}
    moments = ("exp_avg", "exp_avg_sq")
    optimizer = {
        f"state.{name}.{moment}": torch.randn_like(weight) for name, weight in model.items() for moment in moments
    }
    return {"model": model, "optimizer": optimizer}


def ways(tensors: dict[str, dict[str, Tensor]], folder: Path) -> dict[str, Callable[[], Took]]:
    leaves = [tensor for part in tensors.values() for tensor in part.values()]
    buffers = [torch.zeros_like(leaf) for leaf in leaves]
    checkpoints = Checkpoints(store=Store(f"file://{folder}/store"), place="training", ranks=Ranks(), keep_latest=1)
    checkpoints.prepare(tensors)
    number = iter(range(1, 1000))

    def copy() -> Took:
        begin = time.perf_counter()
        for buffer, leaf in zip(buffers, leaves, strict=True):
            buffer.copy_(leaf)
        seconds = time.perf_counter() - begin
        return Took(blocked=seconds, durable=seconds)

    def ours() -> Took:
        begin = time.perf_counter()
        saved = checkpoints.save(next(number), tensors, {"epoch": 1})
        blocked = time.perf_counter() - begin
        checkpoints.wait()
        assert saved, "nothing else was in flight"
        return Took(blocked=blocked, durable=time.perf_counter() - begin)

    def torch_save() -> Took:
        begin = time.perf_counter()
        with (folder / "state.pt").open("wb") as file:
            torch.save(tensors, file)
            blocked = time.perf_counter() - begin
            file.flush()
            os.fsync(file.fileno())
        return Took(blocked=blocked, durable=time.perf_counter() - begin)

    def dcp_save() -> Took:
        begin = time.perf_counter()
        save(tensors, checkpoint_id=folder / "dcp")  # it syncs its files
        seconds = time.perf_counter() - begin
        return Took(blocked=seconds, durable=seconds)

    def dcp_async_save() -> Took:
        begin = time.perf_counter()
        future = cast(Future[Any], async_save(tensors, checkpoint_id=folder / "async"))
        blocked = time.perf_counter() - begin
        future.result()
        return Took(blocked=blocked, durable=time.perf_counter() - begin)

    return {OURS: ours, COPY: copy, "torch_save": torch_save, "dcp_save": dcp_save, "async_save": dcp_async_save}


def compare_ways(size: str, num_matrices: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    tensors = state(num_matrices)
    durable: dict[str, list[float]] = {}

    def timed(name: str, way: Callable[[], Took]) -> float:
        took = way()
        durable.setdefault(name, []).append(took.durable)
        # Each writes into an empty folder, onto a disk that has nothing else to do.
        for leftover in ("state.pt", "dcp", "async"):
            path = folder / leftover
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        os.sync()
        return took.blocked

    contenders: Mapping[str, Callable[[], float]] = {
        name: partial(timed, name, way) for name, way in ways(tensors, folder).items()
    }
    blocked = in_rotation(contenders, rounds)
    # The first round is not measured.
    later = {name: seconds[1:] for name, seconds in durable.items()}
    made = records(f"training.save_blocked_{size}", blocked, unit="s", baselines=BLOCKED, better="lower")
    return made + records(f"training.save_durable_{size}", later, unit="s", baselines=DURABLE, better="lower")


def main(scratch: Path) -> list[dict[str, Any]]:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    # async_save asks for a process group.
    distributed.init_process_group("gloo", init_method=f"file://{scratch}/group", rank=0, world_size=1)
    made = []
    for size, (num_matrices, rounds) in SIZES.items():
        folder = scratch / size
        folder.mkdir()
        made += compare_ways(size, num_matrices, rounds, folder)
        shutil.rmtree(folder)
    distributed.destroy_process_group()
    return made


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[2]))))
