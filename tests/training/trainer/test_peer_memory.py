"""Trainings whose ranks are killed: no step that was done is done again, and the model is the same to the bit."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from noted_steps import RECIPE, Process, read_processes, steps_redone
from torch import nn

from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.trainer.memory.peer_memory import PeerMemory
from mlops.trainer.memory.recovery import Found, choose
from mlops.trainer.memory.seats import Header, Note, Notes, Seat, Slot
from mlops.trainer.parallel import Ranks

KILLS = int(os.environ.get("CHAOS_PEERS", "3"))
"""Of each case: 200 in ``make chaos``."""
STEPS_PER_EPOCH = 25


@pytest.fixture
def train(project: Any, toy_features: FeaturesRef, config: Any) -> Any:
    """Starts a training that notes its steps, under a folder of that name."""
    (project.home / "include/toy/noted.py").write_text(RECIPE)
    (project.home / "notes").mkdir()

    def start(run_key: str, processes: int, options: Sequence[str] = (), **changes: Any) -> Any:
        section = config(
            loss="include.toy.noted:loss",
            curriculum="include.toy.noted:note",
            processes=processes,
            # Its steps would be taken for the training's.
            self_test="never",
            checkpoint={"every_steps": None, "every_minutes": 10, "keep_latest": 3, "peers": 1},
            **changes,
        )
        return project.start(
            project.step_input("train", section, toy_features, run_key),
            processes=processes,
            name=run_key,
            options=options,
        )

    return start


def trained(started: Any) -> tuple[str, Any, str]:
    """What must be equal to the bit."""
    started.process.wait(120 + 3 * KILLS)
    ref = started.result()
    assert isinstance(ref, CheckpointRef), started.log
    return ref.artifacts["weights"].sha256, ref.metrics, ref.artifacts["trail"].sha256


def wait_for_round(
    started: Any, notes: Path, num_steps: int, *, least: int, since: int, warm_up: bool
) -> list[Process]:
    """The processes of a round after ``since``, once so many are there and each has done a step."""
    found: list[Process] = []

    def there() -> bool:
        processes = read_processes(notes, num_steps, warm_up=warm_up)
        last = max((process.round for process in processes), default=-1)
        found[:] = [process for process in processes if process.round == last]
        return last > since and len(found) >= least

    started.wait_until(there, 200)
    return found


def test_killed_ranks_cost_no_step(project: Any, train: Any) -> None:
    """
    Broken: each preemption would cost the steps since the last checkpoint, or bring back another state than the last.

    Ranks are killed at any moment, also while the others are in a forward pass that takes longer than they are given.
    """
    chance, epochs = random.Random(KILLS), 2 + KILLS
    num_steps, notes = epochs * STEPS_PER_EPOCH, project.home / "notes"
    # With a buffer that each forward pass changes.
    changes = {"epochs": epochs, "model": "include.toy.noted:build_model"}
    killed = train("killed", 4, [f"--max-restarts={KILLS}"], **changes)
    last, seconds = -1, []
    for number in range(KILLS):
        found = wait_for_round(killed, notes, num_steps, least=4, since=last, warm_up=True)
        last = found[0].round
        time.sleep(chance.uniform(0, 0.3))
        victim = chance.choice(found)
        if number == KILLS - 1:
            for rank in {0, 1, 2, 3} - {victim.rank}:
                (project.home / f"stall-{rank}").touch()
            killed.wait_until(lambda: not list(project.home.glob("stall-*")))
        os.kill(victim.pid, signal.SIGKILL)
        seconds.append(time.time())
    outcome = trained(killed)
    processes = read_processes(notes, num_steps)
    assert steps_redone(processes) == [0] * KILLS, killed.log
    took = sorted(stalls(processes, seconds))
    if took:
        print(f"{KILLS} kills; the next step {took[len(took) // 2]:.2f} s later (median), at most {took[-1]:.2f} s")
    assert outcome == trained(train("calm", 4, **changes))


def stalls(processes: Sequence[Process], killed_at: Sequence[float]) -> list[float]:
    """Seconds from each kill to the next step that all ranks have done, where they did one before the next kill."""
    rounds = sorted({process.round for process in processes})[1:]
    last = [[process.ended_at[:2] for process in processes if process.round == number] for number in rounds]
    # The second loss says that the first step is done; the next kill may come before.
    return [
        max(ended_at[1] for ended_at in ranks) - at
        for ranks, at in zip(last, killed_at, strict=True)
        if all(len(ended_at) == 2 for ended_at in ranks)
    ]


def test_a_lost_node_costs_no_step(project: Any, train: Any) -> None:
    """Broken: what only the lost node knew would be missing, or those that are left would wait for it."""
    num_steps, notes = 5 * STEPS_PER_EPOCH, project.home / "notes"
    changes = {"epochs": 5, "elastic": "exact", "logical_shards": 4, "nodes": "1:3"}
    calm = trained(train("calm", 1, ["--nnodes=1"], **changes))
    (project.home / "notes").rename(project.home / "calm")
    (project.home / "notes").mkdir()
    lost = train("lost", 1, ["--nnodes=1:3", "--max-restarts=0"], **changes)
    last = -1
    for least in (3, 2):
        found = wait_for_round(lost, notes, num_steps, least=least, since=last, warm_up=False)
        last = found[0].round
        time.sleep(0.1)
        agent = psutil.Process(found[-1].pid).parent()
        assert agent is not None
        agent = agent.parent()  # between them is the process that workers are forked from
        assert agent is not None
        assert "mlops.steps.torchrun" in agent.cmdline()
        agent.kill()
    assert trained(lost) == calm
    processes = read_processes(notes, num_steps, warm_up=False)
    rounds = [[each for each in processes if each.round == number] for number in sorted({p.round for p in processes})]
    assert len(rounds) >= 3, lost.log
    for before, after in itertools.pairwise(rounds):
        # The step whose loss was there last was under way, or had just ended.
        under_way = max(process.steps[-1] for process in before)
        assert min(process.steps[0] for process in after) >= under_way, lost.log


HEADER = Header(
    round=3, rank=0, world_size=2, step=7, epochs=0, loss_units=None, place="s", num_bytes=8, document_bytes=2
)
NOTES = [Note(3, rank, 7, 5) for rank in (0, 1)]


def seat(*headers: Header | None, node: int = 0, local_rank: int = 0, notes: Sequence[Note] = ()) -> Found:
    return Found(node=node, local_rank=local_rank, headers=headers, notes=notes)


def test_a_state_counts_only_where_all_losses_are_known() -> None:
    """Broken: the train loss of an epoch would lack what a lost rank had seen."""
    assert choose([seat(HEADER, notes=NOTES[:1])], "s") is None
    choice = choose([seat(HEADER, notes=NOTES[:1]), seat(notes=NOTES[1:], local_rank=1)], "s")
    assert choice is not None
    assert (choice.loss_units, choice.missing) == (10, False)
    known = choose([seat(replace(HEADER, loss_units=4))], "s")
    assert known is not None
    assert known.loss_units == 4


def test_a_state_of_an_older_start_or_another_training_is_not_used() -> None:
    """Broken: a node that was away would bring back what the others had left behind, or another model's weights."""
    older = replace(HEADER, round=2, step=90, loss_units=1)
    choice = choose([seat(older, HEADER, notes=NOTES), seat(node=1)], "s")
    assert choice is not None
    assert (choice.header.step, choice.missing) == (7, True)
    assert choose([seat(older, HEADER, notes=NOTES)], "other") is None


def test_a_slot_that_was_not_written_to_its_end_is_empty(tmp_path: Path) -> None:
    """Broken: a rank that is killed while it writes would leave half of one state and half of another."""
    path = tmp_path / "slot"
    path.touch()
    slot = Slot(str(path))
    assert slot.header() is None
    slot.write(HEADER, [memoryview(b"12345678")], b"{}")
    assert slot.header() == HEADER
    assert bytes(slot.content(HEADER)[4096:]) == b"12345678{}"
    whole = path.read_bytes()
    for cut in (0, 1, 4095):
        path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        assert (slot.header() is None) == (cut < 4095)


def test_a_state_is_kept_without_what_a_forward_pass_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a momentum teacher would be a step ahead where a rank is lost in a forward pass, and so the model."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    paths = [tmp_path / name for name in ("one", "other", "notes")]
    for path in paths:
        path.touch()
    one, other, notes = map(str, paths)
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False))
    before = model[1].weight.clone()
    document = {"step": 5, "history": [], "steps_per_epoch": 9}

    def memory() -> PeerMemory:
        return PeerMemory(Ranks(), place="s", seats=[Seat(slots=[Slot(one), Slot(other)], notes=notes)])

    def snapshot() -> Any:
        return {"model": model.state_dict()}, document

    def forward() -> None:
        with memory().guarding(model, snapshot, changing={"1.weight"}, step=5, loss_units=0):
            model[1].weight.data = model[1].weight.data + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        forward()
    kept = memory().newest(lambda _: {"model": model.state_dict()}, after=-1)
    assert kept is not None
    assert torch.equal(kept.tensors["model"]["1.weight"], before)


def test_notes_of_the_last_step_outlive_those_of_the_next(tmp_path: Path) -> None:
    """Broken: a step that was begun would take the losses of the last one with it."""
    path = tmp_path / "notes"
    path.touch()
    notes = Notes(str(path))
    made = [Note(1, 0, step, -(step << 70)) for step in (1, 2, 3)]
    for note in made:
        notes.put(note)
    notes.put(replace(made[0], rank=2), ward=True)
    assert sorted(notes.read(), key=lambda note: (note.rank, note.step)) == [*made[1:], replace(made[0], rank=2)]
    path.write_bytes(path.read_bytes()[:40] + bytes(4056))  # while it was written
    assert [note.rank for note in Notes(str(path)).read()] == []
