from __future__ import annotations

import multiprocessing
from pathlib import Path

import torch
from torch import distributed, nn

from mlops.trainer.parallel import Parallel, Ranks
from mlops.trainer.strategies.buffers import align_buffers, saved_buffers


def model(rank: int) -> nn.Module:
    """Statistics, counts and an odd buffer, which differ by rank."""
    made = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2))
    made.register_buffer("table", torch.zeros(2, 3).t())
    made.register_buffer("own", torch.zeros(2), persistent=False)
    for number, buffer in enumerate(made.buffers()):
        buffer.fill_(10 * rank + number)
    return made


def seat(rank: int, folder: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    ours = model(rank)
    align_buffers(ours, Ranks(rank=rank, world_size=2, parallel=Parallel(dp_replicate=2)))
    torch.save((saved_buffers(ours), ours.own), folder / f"{rank}.pt")


def test_every_rank_has_the_first_ones_buffers(tmp_path: Path) -> None:
    """Broken: each rank would validate with statistics of its own, and a resumed training would differ."""
    forks = multiprocessing.get_context("fork")
    ranks = [forks.Process(target=seat, args=(rank, tmp_path)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, 0]
    expected = saved_buffers(model(0))
    for rank in range(2):
        saved, own = torch.load(tmp_path / f"{rank}.pt")
        assert len(saved) == len(expected) == 7
        for found, wanted in zip(saved, expected, strict=True):
            assert found.dtype == wanted.dtype
            assert torch.equal(found, wanted)
        assert own.tolist() == model(rank).own.tolist(), "which no checkpoint holds"
