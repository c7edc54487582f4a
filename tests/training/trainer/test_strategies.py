"""Models trained in every layout by real processes; see ``strategy_program.py``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import run_ranks
from torch import nn
from turns import on_turn

from mlops.contract.sections.train import Parallel
from mlops.contract.step import BadConfigError
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.mesh import coordinates, resolve
from mlops.trainer.parallel import Ranks
from mlops.trainer.strategies import build_strategy
from mlops.trainer.strategies.blocks import blocks
from mlops.trainer.strategies.cutting import cut_points, stage_of
from mlops.trainer.strategies.state_dicts import (
    load_training_state,
    optimizer_state,
    state_to_fill,
    training_state,
)

PROGRAM = Path(__file__).with_name("strategy_program.py")
TOLERANCE = 1e-6
"""Relative, of losses and norms of 8 steps in float32 against one process: other orders of summation."""

LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "ddp 2": (2, {}),
    "ddp 3": (3, {}),
    "fsdp 2": (2, {"dp_shard": 2}),
    "fsdp 4": (4, {"dp_shard": 4}),
    "hsdp 2x2": (4, {"dp_replicate": 2, "dp_shard": 2}),
    "tp 2": (2, {"tp": 2}),
    "pp 2": (2, {"pp": 2}),
    "fsdp 2 x tp 2": (4, {"dp_shard": 2, "tp": 2}),
    "dp 2 x tp 2": (4, {"dp_replicate": 2, "tp": 2}),
    "pp 2 x dp 2": (4, {"pp": 2}),
    "pp 2 x fsdp 2": (4, {"pp": 2, "dp_shard": 2}),
    "pp 2 x tp 2": (4, {"pp": 2, "tp": 2}),
}
RESUMED = ("ddp 3", "fsdp 4", "tp 2", "pp 2", "fsdp 2 x tp 2")
NORMED = ("ddp 2", "pp 2")
DRAWN = ("pp 2",)
RAGGED = ("pp 2 x dp 2", "pp 2 x fsdp 2")
WHOLE_MATRICES = ("Adafactor", "Muon")
HALF = ("ddp 2", "fsdp 2", "tp 2", "pp 2")


def cases(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What is run, by number of processes. The global batch of 11 is dealt out unevenly."""
    found: dict[int, list[dict[str, Any]]] = {1: [], 2: [], 3: [], 4: []}

    def add(name: str, strategy: str | None, **settings: Any) -> None:
        processes, parallel = (1, {}) if strategy is None else LAYOUTS[strategy]
        # Two micro batches on each rank, the last of some short, or of stand-ins only.
        micro_batch = -(-11 // (2 * processes // parallel.get("tp", 1) // parallel.get("pp", 1)))
        common = {"name": name, "parallel": parallel, "global_batch": 11, "micro_batch": micro_batch}
        found[processes].append(common | settings)

    add("gpt", None)
    add("rows", None, model="rows")
    add("dropout", None, dropout=0.1)
    add("recomputed", None, dropout=0.1, options={"activation_checkpointing": True})
    for strategy in LAYOUTS:
        add(strategy, strategy)
    for strategy in ("fsdp 2", "tp 2", "pp 2"):
        add(f"rows {strategy}", strategy, model="rows")
    for strategy in (None, *RAGGED):
        ragged = {"model": "rows", "ragged": True, "global_batch": 12, "micro_batch": 6 if strategy else 12}
        add(f"ragged {strategy}", strategy, **ragged)
    for kind, layouts, settings in (
        ("gpt", RESUMED, {"options": {"precision": "bf16", "activation_checkpointing": True}}),
        ("normed", NORMED, {"model": "rows normed"}),
        ("jitter", DRAWN, {"model": "rows jitter"}),
    ):
        for strategy in layouts:
            place, common = str(folder / f"{kind} {strategy}"), {"dropout": 0.1, **settings}
            add(f"{kind} {strategy} whole", strategy, steps=6, save=place, **common)
            add(f"{kind} {strategy} rest", strategy, steps=2, first_step=4, load=place, **common)
    for strategy in HALF:
        add(f"fp16 {strategy}", strategy, steps=4, options={"precision": "fp16"}, spoil_step=2)
    for first, then in (("fsdp 2 x tp 2", "pp 2 x fsdp 2"), ("pp 2 x tp 2", "hsdp 2x2")):
        place = str(folder / f"{first} then {then}")
        add(f"before {then}", first, steps=4, save=place)
        add(f"after {first}", then, steps=4, first_step=4, load=place)
    for optimizer in WHOLE_MATRICES:
        for strategy in (None, "fsdp 2", "tp 2"):
            add(f"{optimizer} {strategy}", strategy, model="rows", optimizer=optimizer, steps=4)
    for strategy in ("pp 2", "tp 2"):
        add(f"tied {strategy}", strategy, model="gpt tied")
    add("frozen tp 2", "tp 2", model="rows frozen", steps=2)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``results(processes)``: the results of all cases of that many processes, by name."""
    folder = tmp_path_factory.mktemp("layouts")
    planned = cases(folder)

    @cache
    def run(processes: int) -> dict[str, dict[str, Any]]:
        (folder / "cases.json").write_text(json.dumps(planned[processes]))
        launch(processes, str(folder / "cases.json"), str(folder / "results.json"))
        return json.loads((folder / "results.json").read_text())

    return run


def launch(processes: int, *arguments: str) -> None:
    run_ranks(PROGRAM, processes, *arguments, timeout=800)


@pytest.mark.gang
@pytest.mark.parametrize("strategy", LAYOUTS)
def test_a_layout_learns_as_one_process(results: Any, strategy: str) -> None:
    """Broken: gradients are scaled, summed or clipped otherwise than without the layout."""
    found, alone = results(LAYOUTS[strategy][0])[strategy], results(1)["gpt"]
    assert found["losses"] == pytest.approx(alone["losses"], rel=TOLERANCE)
    assert found["norms"] == pytest.approx(alone["norms"], rel=TOLERANCE)
    assert found["scores"] == pytest.approx(alone["scores"], rel=1e-4, abs=1e-5)
    assert found["agreed"], "ranks disagree on the norm"


@pytest.mark.gang
@pytest.mark.parametrize("strategy", ["fsdp 2", "fsdp 4", "hsdp 2x2"])
def test_between_micro_batches_a_rank_keeps_its_part_of_the_gradients(results: Any, strategy: str) -> None:
    """Broken: accumulation would take as much memory as the whole model, which is sharded for lack of it."""
    assert results(LAYOUTS[strategy][0])[strategy]["held"] == 0


@pytest.mark.gang
@pytest.mark.parametrize("strategy", ["fsdp 2", "tp 2", "pp 2"])
def test_a_plain_sequential_on_rows_of_unequal_length_needs_no_help(results: Any, strategy: str) -> None:
    """Broken: the default plan, the default cut, or the padding of micro batches changes results."""
    found, alone = results(2)[f"rows {strategy}"], results(1)["rows"]
    assert found["losses"] == pytest.approx(alone["losses"], rel=TOLERANCE)
    assert found["scores"] == pytest.approx(alone["scores"], rel=1e-4, abs=1e-5)


@pytest.mark.gang
@pytest.mark.parametrize("strategy", RAGGED)
def test_data_ranks_of_a_pipeline_may_hold_unequal_shapes(results: Any, strategy: str) -> None:
    """Broken: one of them tries out a new shape, and waits for ever for the others to gather weights with it."""
    found, alone = results(4)[f"ragged {strategy}"], results(1)["ragged None"]
    assert found["losses"] == pytest.approx(alone["losses"], rel=TOLERANCE)
    assert found["norms"] == pytest.approx(alone["norms"], rel=TOLERANCE)
    assert found["scores"] == pytest.approx(alone["scores"], rel=1e-4, abs=1e-5)


@pytest.mark.gang
@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        (kind, strategy)
        for kind, layouts in (("gpt", RESUMED), ("normed", NORMED), ("jitter", DRAWN))
        for strategy in layouts
    ],
)
def test_a_resumed_training_ends_in_the_same_bits(results: Any, kind: str, strategy: str) -> None:
    """
    Broken: state is left out of a checkpoint, the order of a sum depends on when the process started, or what a stage
    draws from numpy on whether the process has met the shape of its input before.
    """
    found = results(LAYOUTS[strategy][0])
    whole, rest = (found[f"{kind} {strategy} {part}"] for part in ("whole", "rest"))
    assert rest["losses"] == whole["losses"][4:]
    assert rest["weights"] == whole["weights"]


@pytest.mark.gang
@pytest.mark.parametrize(("first", "then"), [("fsdp 2 x tp 2", "pp 2 x fsdp 2"), ("pp 2 x tp 2", "hsdp 2x2")])
def test_a_checkpoint_goes_on_in_another_layout(results: Any, first: str, then: str) -> None:
    """Broken: names or slices of a checkpoint depend on the layout that wrote it."""
    found, alone = results(4), results(1)["gpt"]
    losses = found[f"before {then}"]["losses"] + found[f"after {first}"]["losses"]
    assert losses == pytest.approx(alone["losses"], rel=TOLERANCE)


@pytest.mark.gang
@pytest.mark.parametrize("strategy", HALF)
def test_an_overflow_on_one_rank_is_taken_back_by_all(results: Any, strategy: str) -> None:
    """Broken: ranks that saw no overflow step without the others, and the model falls apart."""
    found = results(2)[f"fp16 {strategy}"]
    assert found["taken"] == [True, True, False, True]
    assert found["agreed"]
    assert found["losses"] == pytest.approx(results(1)["gpt"]["losses"][:3] + found["losses"][3:], rel=1e-2)


@pytest.mark.gang
def test_recomputing_changes_nothing(results: Any) -> None:
    """Broken: activation checkpointing draws other dropout, or loses a gradient."""
    assert results(1)["recomputed"]["weights"] == results(1)["dropout"]["weights"]


@pytest.mark.gang
@pytest.mark.parametrize("optimizer", WHOLE_MATRICES)
@pytest.mark.parametrize("strategy", ["fsdp 2", "tp 2"])
def test_an_optimizer_of_whole_matrices_takes_the_steps_of_one_process(
    results: Any, optimizer: str, strategy: str
) -> None:
    """Broken: it would see a rank's slice for the matrix, or not run at all; in 16 bits any other sum shows."""
    found, alone = results(2)[f"{optimizer} {strategy}"], results(1)[f"{optimizer} None"]
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert found["agreed"]


@pytest.mark.gang
@pytest.mark.parametrize("strategy", ["pp 2", "tp 2"])
def test_a_tied_weight_is_not_silently_untied(results: Any, strategy: str) -> None:
    """Broken: the copies drift apart and another model is trained than was written."""
    assert "one tied weight" in results(2)[f"tied {strategy}"]["error"]


@pytest.mark.gang
def test_what_is_frozen_stays_so_in_slices(results: Any) -> None:
    """Broken: a layer norm that train.freeze names would learn where tensor parallel cuts the sequence."""
    assert results(2)["frozen tp 2"]["frozen"] == ["1.weight", "1.bias"]


class Nesting(torch.optim.SGD):
    """Keeps numbers in containers of all kinds."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] |= {
                "sums": [
                    torch.full((3,), 1 / 3, dtype=torch.float64),
                    {"count": torch.tensor(2**60 + 1), "kind": "mean"},
                ],
                "pair": (parameter.double() / 3, 1 / 3, "text"),
                "by step": {0: torch.tensor(1), 7: [1, 2], "last": {}},
                "plain": ({3: 0.5}, (1, 2)),
                "none yet": {},
                5: torch.tensor(3),
            }


def test_containers_of_an_optimizer_come_back_as_they_were(tmp_path: Path) -> None:
    """Broken: a resumed optimizer would round its sums to 32 bits, or fail on a list in the place of a tuple."""
    torch.manual_seed(0)
    strategy = build_strategy(nn.Linear(3, 1), Ranks())

    def made() -> torch.optim.Optimizer:
        return Nesting(strategy.model.parameters(), lr=0.1, momentum=0.9)

    optimizer = made()
    strategy.model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    checkpoints = Checkpoints(store=Store(f"file://{tmp_path}"), place="x", ranks=Ranks())
    assert checkpoints.newest() is None
    checkpoints.save(1, training_state(strategy, optimizer), {}, wait=True)
    checkpoints.wait()
    saved = checkpoints.newest()
    assert saved is not None
    resumed = made()
    state = state_to_fill(strategy, resumed, checkpoints.contents(saved))
    checkpoints.load(saved, state)
    load_training_state(strategy, resumed, state)
    assert repr(resumed.state_dict()) == repr(optimizer.state_dict())
    whole = [each[strategy.model.weight]["pair"][0] for each in (resumed.state, optimizer.state)]
    assert torch.equal(*whole)


def test_reading_the_state_before_the_first_step_makes_none() -> None:
    """Broken: in fp16, where the first steps may overflow, a resumed training would be a step ahead of Adam's count."""
    strategy = build_strategy(nn.Linear(3, 1), Ranks())
    optimizer = torch.optim.AdamW(strategy.model.parameters(), lr=0.1, fused=True)
    assert optimizer_state(strategy, optimizer)["state"] == {}
    assert not optimizer.state


@on_turn(0, 2)
@pytest.mark.gang
def test_a_compiled_model_learns_the_same(results: Any, tmp_path: Path) -> None:
    """Broken: compiling loses the recomputing or the precision around it."""
    case = {"name": "gpt", "steps": 2, "global_batch": 11, "options": {"compile": True}}
    (tmp_path / "cases.json").write_text(json.dumps([case]))
    launch(1, str(tmp_path / "cases.json"), str(tmp_path / "results.json"))
    found = json.loads((tmp_path / "results.json").read_text())["gpt"]
    assert found["losses"] == pytest.approx(results(1)["gpt"]["losses"][:2], rel=1e-5)


@on_turn(1, 2)
@pytest.mark.gang
def test_a_stalled_rank_ends_the_wait_of_the_others(tmp_path: Path) -> None:
    """Broken: a hung rank holds up the others for half an hour, torch's default for the groups of a mesh."""
    launch(2, "stall", json.dumps({"tp": 2}), str(tmp_path / "told"))
    assert "imed out" in (tmp_path / "told").read_text()


@on_turn(0, 2)
@pytest.mark.gang
def test_a_thousand_ranks_hold_the_right_slices(tmp_path: Path) -> None:
    """Broken: at a scale that no test machine has, ranks hold overlapping slices, or too much."""
    launch(1, "plan", str(tmp_path / "plan.json"))
    plans = json.loads((tmp_path / "plan.json").read_text())
    for plan in plans["8 x 16 x 8"]:
        assert plan["mesh"] == [1, 8, 16, 8]
        # [4C, C] = [1024, 256] over tp by rows, what is left of them over dp_shard; [V, C] over tp by columns.
        assert plan["local"]["blocks.0.widen.weight"] == [1024 // 8 // 16, 256]
        assert plan["local"]["blocks.0.narrow.weight"] == [256 // 16, 1024 // 8]
        assert plan["local"]["blocks.0.first_norm.weight"] == [256 // 16]
        assert plan["gradients"] == plan["local"]
    stages = [set(plan["local"]) for plan in plans["4 stages"]]
    assert set.union(*stages) == set(plans["names"])
    assert sum(map(len, stages)) == len(plans["names"]), "stages overlap"


@pytest.mark.parametrize(
    ("parallel", "world_size", "said"),
    [
        (Parallel(tp=3), 4, "tp 3 = 3 does not divide the 4 processes"),
        (Parallel(dp_replicate=2, dp_shard=4), 4, "dp_replicate 2 x dp_shard 4 = 8, but there are 4 processes"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_numbers(parallel: Parallel, world_size: int, said: str) -> None:
    """Broken: torch fails later, with an error that names no setting."""
    with pytest.raises(BadConfigError, match=said):
        resolve(parallel, world_size)


def test_every_seat_is_taken_once_and_neighbours_share_slices() -> None:
    """Broken: two ranks train the same slice, or tensor parallel talks across nodes."""
    parallel = resolve(Parallel(dp_shard=16, tp=8), 1024)
    places = [tuple(coordinates(parallel, rank).values()) for rank in range(1024)]
    assert len(set(places)) == 1024
    assert [coordinates(parallel, rank)["tp"] for rank in range(8)] == list(range(8))
    assert {coordinates(parallel, rank)["dp_shard"] for rank in range(8)} == {0}


@pytest.mark.parametrize(
    ("sizes", "parts", "cuts"),
    [([1, 1, 1, 1], 2, [2]), ([10, 1, 1, 1], 2, [1]), ([1, 1, 10], 3, [1, 2]), ([0, 5, 0, 5], 2, [2])],
)
def test_a_sequential_is_cut_into_even_stages(sizes: list[int], parts: int, cuts: list[int]) -> None:
    """Broken: one stage is the bottleneck of all."""
    found = cut_points(sizes, parts)
    largest = [sum(sizes[a:b]) for a, b in zip([0, *found], [*found, len(sizes)], strict=True)]
    wanted = [sum(sizes[a:b]) for a, b in zip([0, *cuts], [*cuts, len(sizes)], strict=True)]
    assert max(largest) == max(wanted)
    assert len(found) == parts - 1
    assert sorted(set(found)) == found


def test_a_model_that_says_not_how_to_cut_it_is_refused() -> None:
    """Broken: it is cut somewhere, and computes something else."""
    with pytest.raises(BadConfigError, match="pipeline_stages"):
        stage_of(nn.ModuleDict({"a": nn.Linear(2, 2)}), 0, 2)


def test_a_weight_shared_by_two_parts_stays_with_the_whole() -> None:
    """Broken: a tied weight is sharded in two groups, which FSDP refuses or unties."""
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8, bias=False))
    model[2].weight = model[0].weight
    assert blocks(model) == [model[1]]
