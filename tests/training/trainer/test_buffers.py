from __future__ import annotations

import copy
import multiprocessing
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn

from mlops.contract.step import BadConfigError
from mlops.data.shards.loader import Batch
from mlops.trainer.parallel import Parallel, Ranks
from mlops.trainer.strategies import ParallelStrategy
from mlops.trainer.strategies.buffers import align_buffers, refuse_other_shapes, saved_buffers, saved_shapes
from mlops.trainer.strategies.refusals import refuse_changed_buffers


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


class Taught(nn.Module):
    """Has a teacher that begins as a copy, and that each forward pass moves by :param move:."""

    def __init__(self, move: Callable[[nn.Parameter, nn.Parameter], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.teacher, self.backbone = copy.deepcopy(self.layer).requires_grad_(False), nn.Linear(3, 3)
        self.backbone.requires_grad_(False)
        self.move = move

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            self.move(self.teacher.weight, self.layer.weight)
        return (self.layer(self.backbone(rows)) - self.teacher(rows)).squeeze(-1)


def replace(theirs: nn.Parameter, ours: nn.Parameter) -> None:
    theirs.data = theirs.data * 0.9 + ours.data * 0.1


def in_place(theirs: nn.Parameter, ours: nn.Parameter) -> None:
    theirs.data.lerp_(ours.data, 0.1)


def squares(model: nn.Module, batch: Batch) -> Tensor:
    losses: Tensor = (model(batch.features) - batch.labels) ** 2
    return losses


def batch() -> Batch:
    features = torch.arange(12.0).view(4, 3)
    return Batch(
        features=features, labels=features[:, 0], mask=None, weights=torch.ones(4), samples=np.arange(4)
    )  # fmt: skip


@pytest.mark.parametrize("move", [replace, in_place])
def test_a_teacher_that_forward_passes_move_is_as_a_buffer(move: Callable[[nn.Parameter, nn.Parameter], None]) -> None:
    """Broken: an exact training would depend on the number of its processes, and a warm-up would leave its trace."""
    torch.manual_seed(0)
    model = Taught(move)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(BadConfigError, match=r"exact: .* changes the parameter teacher\.weight \(Linear\)$"):
        refuse_changed_buffers(model, batch(), squares, "exact")
    # A replica of one process.
    strategy = ParallelStrategy(model, Ranks(), replica=model)  # type: ignore[arg-type]
    assert strategy.warm_up(batch(), squares, finds_changing=True) == {"teacher.weight"}
    assert_same(model.state_dict(), before)
    assert strategy.warm_up(batch(), squares) == frozenset(), "nothing was looked for"
    assert_same(model.state_dict(), before)


def test_a_pass_that_fails_leaves_no_trace_either() -> None:
    """Broken: whoever catches the error goes on with other weights, or with random numbers that were drawn before."""
    torch.manual_seed(0)
    model = Taught(in_place)
    before, drawn = copy.deepcopy(model.state_dict()), random_states()

    def fail(model: nn.Module, batch: Batch) -> Tensor:
        squares(model, batch)
        np.random.random()
        random.random()
        torch.rand(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        refuse_changed_buffers(model, batch(), fail, "exact")
    assert_same(model.state_dict(), before)
    assert random_states() == drawn


def random_states() -> tuple[object, ...]:
    _, keys, position, *_ = np.random.get_state()
    return list(keys), position, random.getstate(), torch.random.get_rng_state().tolist()


def assert_same(state: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    assert {name: value.tolist() for name, value in state.items()} == {
        name: value.tolist() for name, value in before.items()
    }


def test_a_frozen_backbone_that_stays_is_not_refused() -> None:
    model = Taught(lambda theirs, ours: None)
    refuse_changed_buffers(model, batch(), squares, "exact")


def test_a_buffer_that_grows_is_refused_before_it_is_saved() -> None:
    """Broken: a training would write checkpoints, and be lost with the first process that has to go on from one."""
    bank = model(0)
    bank.register_buffer("later", None)
    built = saved_shapes(bank)
    bank.own = torch.zeros(9)
    refuse_other_shapes(bank, built)
    bank.later = torch.zeros(3)
    with pytest.raises(BadConfigError, match=r"the buffer later was not there when .* is of the shape \[3\] now: "):
        refuse_other_shapes(bank, built)
    bank.later, bank.table = None, torch.zeros(4, 2)
    with pytest.raises(BadConfigError, match=r"the buffer table was of the shape \[3, 2\] when .* \[4, 2\] now: "):
        refuse_other_shapes(bank, built)
