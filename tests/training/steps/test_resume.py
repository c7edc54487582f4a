"""Trainings that are struck down, resized and resumed, by real torchrun."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from turns import on_turn

from mlops.contract.refs import CheckpointRef, FeaturesRef

PARALLEL = {"dp_replicate": -1, "dp_shard": 1, "tp": 1, "pp": 1}
FALLING = {"kind": "cosine", "warmup_steps": 5, "final_fraction": 0.1}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "three replicas": (3, {"schedule": FALLING}),
    "sharded": (2, {"schedule": FALLING, "parallel": PARALLEL | {"dp_shard": 2}}),
    "sliced layers": (2, {"parallel": PARALLEL | {"tp": 2}}),
    "pipeline": (2, {"parallel": PARALLEL | {"pp": 2}, "micro_batch": 4}),
    "two replicas, bf16, accumulation": (2, {"precision": "bf16", "micro_batch": 3}),
}
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
STRUCK = tuple(LAYOUTS) if "CHAOS_ROUNDS" in os.environ else ("three replicas",)
"""All in ``make chaos``; ``test_layouts.py`` resumes each of them within a process, to the bit."""
EVERY = {"every_steps": 7, "every_minutes": 10, "keep_latest": 3, "peers": 0}


def weights(ref: Any) -> str:
    assert isinstance(ref, CheckpointRef), ref
    return ref.artifacts["weights"].sha256


@pytest.fixture
def train(project: Any, toy_features: FeaturesRef, config: Any) -> Any:
    """Starts a training of the toy recipe, or goes on with the one of that run key."""

    def start(run_key: str, processes: int, options: Sequence[str] = (), **changes: Any) -> Any:
        section = config(
            **{"loss": "include.toy.model:slow_loss", "processes": processes, "checkpoint": EVERY, **changes}
        )
        return project.start(
            project.step_input("train", section, toy_features, run_key),
            processes=processes,
            name=run_key,
            options=options,
        )

    return start


@pytest.mark.parametrize("layout", STRUCK)
def test_killed_in_mid_epoch_it_ends_at_the_same_bits(project: Any, train: Any, layout: str) -> None:
    """Broken: a preemption would change the model. Dropout is on; the kills are at random moments."""
    processes, changes = LAYOUTS[layout]
    undisturbed = train("whole", processes, **changes).result()
    moment = np.random.default_rng(len(layout))
    for least in (1, 30) if "CHAOS_ROUNDS" in os.environ else (20,):
        struck = train("killed", processes, **changes)
        struck.wait_until(lambda: max(project.steps_saved("killed"), default=0) >= least)  # noqa: B023
        time.sleep(moment.uniform(0, 0.2))
        struck.kill()
    assert max(project.steps_saved("killed")) < 75, "killed too late to prove anything"
    last = train("killed", processes, **changes)
    resumed = last.result()
    assert weights(resumed) == weights(undisturbed), last.log
    assert resumed.metrics == undisturbed.metrics
    assert "going on after step" in last.log


STRIKES = {
    "killed for memory": "was killed by SIGKILL",
    "stopped": "the gang hangs",
    "out of memory": "can't allocate memory",
    "store down": "cannot write",
    "full disk": "File too large",
    "not a number": "the loss is not finite in epoch",
}
"""What the user then reads, in the log or in the error."""


def exchange(one: Path, other: Path) -> None:
    """Two paths at once, for between two renames a save would make the folder anew (renameat2(2))."""
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if ctypes.CDLL(None, use_errno=True).renameat2(here, bytes(one), here, bytes(other), both):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(one))


def strike(project: Any, cause: str, started: Any) -> None:
    if cause == "store down":
        store = Path(project.store.uri.removeprefix("file://"))
        away = store.with_suffix(".away")
        away.write_text("no folder")
        exchange(store, away)
        started.wait_until(lambda: STRIKES[cause] in started.log)
        exchange(store, away)
        away.unlink()
        return
    whole = project.home / "strike.part"
    whole.write_text(cause)
    whole.rename(project.home / "strike")  # the loss of rank 1 finds it at its next step
    if cause == "full disk":  # the training goes on, without checkpoints
        started.wait_until(lambda: STRIKES[cause] in started.log)
        started.kill()


@on_turn(0, 2)
@pytest.mark.timeout(300 * ROUNDS)
def test_whatever_strikes_it_ends_at_the_same_bits(project: Any, train: Any) -> None:
    """Broken: a rank that hung, ran out of memory, found no room or no store would change the model."""
    struck_loss = {"loss": "include.toy.model:struck_loss"}
    undisturbed = train("whole", 2, **struck_loss).result()
    moment = np.random.default_rng(5)
    for round_, (cause, words) in itertools.product(range(ROUNDS), STRIKES.items()):
        key = f"{cause} {round_}".replace(" ", "_")
        least = 1 + int(moment.integers(40))
        started = train(key, 2, ("--max-restarts", "1", "--hang-seconds", "2"), **struck_loss)
        started.wait_until(lambda: max(project.steps_saved(key), default=0) >= least)  # noqa: B023
        strike(project, cause, started)
        ended = started.result() if cause != "full disk" else None
        assert words in f"{started.log} {ended}", started.log
        if not isinstance(ended, CheckpointRef):  # the task's next try
            started = train(key, 2, **struck_loss)
            ended = started.result()
        assert "going on after step" in started.log or cause == "store down", started.log
        assert weights(ended) == weights(undisturbed), f"{key}: {started.log}"
        assert ended.metrics == undisturbed.metrics, f"{key}: {started.log}"


def test_sigterm_saves_the_step_it_came_at(project: Any, train: Any) -> None:
    """Broken: every drained node would cost the steps since the last checkpoint."""
    undisturbed = train("whole", 2).result()
    told = train("told", 2, checkpoint=EVERY | {"every_steps": 1000})
    told.wait_until(lambda: "epoch 1/3 done" in told.log)
    time.sleep(0.2)
    told.process.send_signal(signal.SIGTERM)
    told.process.wait(30)
    assert max(project.steps_saved("told")) > 25, told.log
    assert weights(train("told", 2).result()) == weights(undisturbed)


@on_turn(1, 2)
def test_exact_mode_ends_at_the_same_bits_at_any_number_of_processes(project: Any, train: Any) -> None:
    """Broken: a training that lost a machine, or got one back, would end with another model."""
    alone = train("one", 1, elastic="exact").result()
    assert weights(train("three", 3, elastic="exact").result()) == weights(alone)
    for processes, least in ((3, 1), (1, 30)):
        struck = train("resized", processes, elastic="exact")
        struck.wait_until(lambda: max(project.steps_saved("resized"), default=0) >= least)  # noqa: B023
        struck.kill()
    resumed = train("resized", 2, elastic="exact").result()
    assert weights(resumed) == weights(alone)
    assert resumed.metrics == alone.metrics


def test_it_goes_on_in_another_layout_and_world_size(project: Any, train: Any) -> None:
    """Broken: the training would start anew, or not at all, when the cluster gives other machines."""
    undisturbed = train("whole", 1).result()
    moves = [(4, {"parallel": PARALLEL | {"dp_shard": 2, "tp": 2}}, 1), (2, {"parallel": PARALLEL | {"pp": 2}}, 30)]
    for processes, changes, least in moves if "CHAOS_ROUNDS" in os.environ else moves[:1]:
        struck = train("moved", processes, **changes)
        struck.wait_until(lambda: max(project.steps_saved("moved"), default=0) >= least)  # noqa: B023
        struck.kill()
    resumed = train("moved", 1).result()
    assert isinstance(resumed, CheckpointRef)
    # Dropout draws other numbers for other seats, so the loss is near, not equal.
    assert resumed.metrics["train_loss"] == pytest.approx(undisturbed.metrics["train_loss"], rel=0.05)
