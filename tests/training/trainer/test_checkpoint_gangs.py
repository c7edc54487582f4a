"""Checkpoints of several processes: layouts, world sizes, ranks that fail or die."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import run_ranks
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.index import Index
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.checkpoint.planning import CheckpointError
from mlops.trainer.parallel import Ranks

pytestmark = pytest.mark.gang
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
Told = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(f"file://{tmp_path_factory.mktemp('gangs')}")


@pytest.fixture(scope="module")
def four(store: Store) -> Told:
    """What each rank of a gang of four tells of its work."""
    return run_gang("by_four", 4, store)


@pytest.fixture(scope="module")
def two(store: Store, four: Told) -> Told:
    return run_gang("by_two", 2, store)


def run_gang(program: str, processes: int, store: Store) -> Told:
    run_ranks(Path(__file__), processes, program, store.uri, timeout=600)
    return {rank: json.loads(store.get(f"told/{program}/{rank}")) for rank in range(processes)}


def alone(store: Store, place: str) -> Checkpoints:
    return Checkpoints(store=store, place=place, ranks=Ranks())


def test_a_checkpoint_is_the_same_in_every_world_size_and_layout(store: Store, four: Told, two: Told) -> None:
    """Broken: a training that is resized, or moved to another layout, would go on from other weights or moments."""
    listed = read_listing(store, "layouts").complete
    assert [saved.world_size for saved in listed] == [4, 4, 2, 2]
    checkpoints = alone(store, "layouts")
    digests = {digest(checkpoints.load_whole(saved)) for saved in listed}
    assert digests == {told["digest"] for told in (*four.values(), *two.values())}
    assert len(digests) == 1

    plain = state_of(*trained())
    checkpoints.load(listed[0], plain)
    assert {digest(plain)} == digests, "in place, by one process"


def test_replicas_share_the_writing(store: Store, two: Told) -> None:
    """Broken: under DDP one rank would write all, and take twice as long."""
    ddp = read_listing(store, "layouts").complete[-1]
    sizes = [sum(chunk.num_bytes for chunk in Index(store, ddp).chunks_in([rank])) for rank in (0, 1)]
    assert sum(sizes) == ddp.num_bytes
    assert min(sizes) > 0.4 * ddp.num_bytes


def test_ranks_of_a_pipeline_hold_different_tensors(store: Store, four: Told) -> None:
    """Broken: only rank 0's stage would be in the checkpoint."""
    (saved,) = read_listing(store, "stages").complete
    state = alone(store, "stages").load_whole(saved)
    assert {name: value.tolist() for name, value in state["model"].items()} == {f"stage{r}": [r] * 5 for r in range(4)}
    assert state["steps"] == {f"stage{r}": r for r in range(4)}


def test_damage_that_one_rank_sees_is_agreed_upon(two: Told) -> None:
    """Broken: ranks would go on from different steps, and train a mixture."""
    assert [told["newest"] for told in two.values()] == [1, 1]


def test_a_rank_that_cannot_write_costs_one_checkpoint(store: Store, two: Told) -> None:
    """Broken: half a checkpoint would be committed, or all later ones fail with it."""
    assert all("rank 1: cannot write" in told["full"] for told in two.values()), two
    assert [saved.step for saved in read_listing(store, "full").complete] == [1, 3]


def test_a_rank_that_hangs_is_given_up(store: Store, two: Told) -> None:
    """Broken: the others would wait for it for ever, or commit without its part."""
    assert all("ranks 1 have not written their part" in told["hung"] for told in two.values()), two
    assert two[0]["skipped"], "a save at which one rank is still writing the one before is no rank's"
    assert two[1]["skipped"]
    assert [saved.step for saved in read_listing(store, "hung").complete] == [1, 4]


class Net(nn.Module):
    """Sizes that four do not divide, and one that leaves a rank with nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x).relu())
        return out


def trained(layout: str = "plain") -> tuple[nn.Module, torch.optim.Optimizer]:
    """After two steps on the same data, so that Adam has moments."""
    torch.manual_seed(0)
    model: nn.Module = Net()
    if layout == "fsdp":
        fully_shard(model)
    elif layout == "fsdp x tp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"first": ColwiseParallel(), "last": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    elif layout == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.95))
    for seed in range(2):
        model(torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer, options=OPTIONS)
    return {"model": weights, "optimizer": moments}


def digest(state: dict[str, Any]) -> str:
    """Over all full tensors and values. All ranks."""
    found = hashlib.sha256()
    for part in sorted(state):
        for key, value in sorted(state[part].items()):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            content = whole.numpy().tobytes() if isinstance(whole, Tensor) else repr(whole).encode()
            found.update(f"{part}.{key}".encode() + content)
    return found.hexdigest()


def ranks(uri: str, place: str, **changes: Any) -> Checkpoints:
    changes = {"retry_seconds": 0.02, "keep_latest": 4, **changes}
    ranks = Ranks(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        cpu_group=distributed.new_group(backend="gloo"),
    )
    return Checkpoints(store=Store(uri), place=place, ranks=ranks, **changes)


def moved(checkpoints: Checkpoints, layout: str) -> dict[str, Any]:
    """The newest checkpoint in a model of some layout, through the model and back."""
    model, optimizer = trained(layout)
    state = state_of(model, optimizer)
    for value in (value for part in state.values() for value in part.values() if isinstance(value, Tensor)):
        value.zero_()
    saved = checkpoints.newest()
    assert saved is not None
    checkpoints.load(saved, state)
    weights, moments = state["model"], state["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=OPTIONS)
    return state_of(model, optimizer)


def by_four(uri: str) -> dict[str, Any]:
    checkpoints = ranks(uri, "layouts")
    state = state_of(*trained("fsdp"))
    checkpoints.save(1, state, {})
    checkpoints.wait()
    checkpoints.save(2, moved(checkpoints, "fsdp x tp"), {})
    checkpoints.wait()

    stages, rank = ranks(uri, "stages"), distributed.get_rank()
    name = f"stage{rank}"
    stages.save(1, {"model": {name: torch.full((5,), rank)}, "steps": {name: rank}}, {})
    stages.wait()
    return {"digest": digest(state)}


def by_two(uri: str) -> dict[str, Any]:
    checkpoints = ranks(uri, "layouts")
    for step, layout in ((3, "fsdp"), (4, "ddp")):
        state = moved(checkpoints, layout)
        checkpoints.save(step, state, {}, wait=True)
        checkpoints.wait()
    fsdp = state_of(*trained("fsdp"))
    skipped, hung = one_hangs(uri, fsdp)
    return {
        "digest": digest(state),
        "newest": after_damage(uri, fsdp),
        "full": one_has_no_space(uri, fsdp),
        "skipped": skipped,
        "hung": hung,
    }


def after_damage(uri: str, state: dict[str, Any]) -> int:
    checkpoints = ranks(uri, "damaged")
    for step in (1, 2):
        checkpoints.save(step, state, {}, wait=True)
    checkpoints.wait()
    if distributed.get_rank() == 0:
        (path,) = Path(uri.removeprefix("file://")).glob("damaged/checkpoints/step-00000002-*/rank-0001.*")
        data = bytearray(path.read_bytes())
        data[10] ^= 1
        path.write_bytes(data)
    distributed.barrier()
    saved = checkpoints.newest()
    assert saved is not None
    return saved.step


def one_has_no_space(uri: str, state: dict[str, Any]) -> str:
    checkpoints = ranks(uri, "full")
    checkpoints.save(1, state, {})
    checkpoints.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if distributed.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    checkpoints.save(2, state, {})
    with pytest.raises(CheckpointError) as caught:
        checkpoints.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    checkpoints.save(3, state, {})
    checkpoints.wait()
    return str(caught.value)


def one_hangs(uri: str, state: dict[str, Any]) -> tuple[bool, str]:
    """A pipe in the place of rank 1's file: writing stands still until someone reads."""
    checkpoints, rank = ranks(uri, "hung", timeout=timedelta(seconds=1)), distributed.get_rank()
    checkpoints.save(1, state, {})
    checkpoints.wait()
    root = Path(uri.removeprefix("file://")) / "hung/checkpoints"
    (path,) = root.glob("step-00000001-*/rank-0001.*")
    pipe = root / path.parent.name.replace("1-g", "2-g") / path.name.replace("-0.bin", "-1.bin")
    if rank == 1:
        pipe.parent.mkdir()
        os.mkfifo(pipe)
    checkpoints.save(2, state, {})
    if rank == 0:
        with pytest.raises(CheckpointError) as caught:
            checkpoints.wait()
    distributed.barrier()
    skipped = not checkpoints.save(3, state, {})
    if rank == 1:
        reader = os.open(pipe, os.O_RDONLY)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.wait()
        os.close(reader)
    distributed.barrier()
    checkpoints.save(4, state, {})
    checkpoints.wait()
    return skipped, str(caught.value)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    _, program, uri = sys.argv
    told = {"by_four": by_four, "by_two": by_two}[program](uri)
    Store(uri).put(f"told/{program}/{distributed.get_rank()}", json.dumps(told).encode())
    distributed.barrier()
    distributed.destroy_process_group()
