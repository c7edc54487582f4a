"""Trainings on GPUs, by NCCL. They skip, and are counted, where there are too few; none has run on two yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.contract.step import Failure

NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(not NUM_GPUS, reason="needs a GPU")
TWO = pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")
PROCESSES = (1, pytest.param(2, marks=TWO))
STRATEGY_PROGRAM = Path(__file__).with_name("trainer") / "strategy_program.py"


@pytest.fixture
def train(project: Any, toy_features: FeaturesRef, config: Any) -> Any:
    """Starts a training of the toy recipe, or goes on with the one of that run key."""

    def start(run_key: str, processes: int, **changes: Any) -> Any:
        section = config(processes=processes, **changes)
        return project.start(
            project.step_input("train", section, toy_features, run_key), processes=processes, name=run_key
        )

    return start


def weights(started: Any) -> str:
    ref = started.result()
    assert isinstance(ref, CheckpointRef), f"{ref} {started.log}"
    return ref.artifacts["weights"].sha256


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_same_training_gives_the_same_bits(project: Any, train: Any, precision: str, processes: int) -> None:
    """Broken: a kernel adds up in another order each time, or a copy is read before it has ended."""
    changes = {"precision": precision, "micro_batch": 3}
    assert weights(train("one", processes, **changes)) == weights(train("two", processes, **changes))
    environment = project.store.read(train("one", processes, **changes).result().artifacts["environment"])
    assert json.loads(environment)["hardware"]["gpu"] == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_killed_it_ends_at_the_same_bits(project: Any, train: Any, precision: str, processes: int) -> None:
    """Broken: what a checkpoint holds is not the state of its step."""
    changes = {"precision": precision, "loss": "include.toy.model:slow_loss"}
    every = {"every_steps": 7, "every_minutes": 10, "keep_latest": 3}
    undisturbed = weights(train("whole", processes, **changes))
    struck = train("killed", processes, **changes, checkpoint=every)
    struck.wait_until(lambda: project.steps_saved("killed"))
    struck.kill()
    assert weights(train("killed", processes, **changes, checkpoint=every)) == undisturbed


@pytest.mark.parametrize("processes", PROCESSES)
def test_saves_after_each_step_change_nothing(train: Any, processes: int) -> None:
    """Broken: the copies of a save hold up, or see, the wrong step's work."""
    every = {"every_steps": 1, "every_minutes": 10, "keep_latest": 3}
    assert weights(train("seldom", processes)) == weights(train("always", processes, checkpoint=every))


@pytest.mark.parametrize("processes", PROCESSES)
def test_a_loss_that_is_not_finite_names_its_sample(project: Any, train: Any, processes: int) -> None:
    """Broken: the step that is named is not the first, or what came after it was saved."""
    every = {"every_steps": 1, "every_minutes": 10, "keep_latest": 3}
    failure = train("key", processes, loss="include.toy.model:broken_loss", checkpoint=every).result()
    assert isinstance(failure, Failure)
    assert failure.type == "NonFiniteLossError"
    assert failure.details["samples"] == [7]
    assert max(project.steps_saved("key")) == failure.details["step"] - 1


@pytest.mark.parametrize(
    ("processes", "parallel"),
    [(1, {}), pytest.param(2, {}, marks=TWO), pytest.param(2, {"dp_shard": 2}, marks=TWO)],
    ids=["alone", "ddp", "fsdp"],
)
def test_an_overflow_is_left_out(tmp_path: Path, processes: int, parallel: dict[str, int]) -> None:
    """Broken: the fused optimizer takes a step of infinite gradients."""
    case = {"name": "fp16", "parallel": parallel, "steps": 4, "spoil_step": 2, "options": {"precision": "fp16"}}
    (tmp_path / "cases.json").write_text(json.dumps([case]))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [
        sys.executable,
        *torchrun,
        str(STRATEGY_PROGRAM),
        str(tmp_path / "cases.json"),
        str(tmp_path / "results"),
    ]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "results").read_text())["fp16"]
    assert found["taken"] == [True, True, False, True]
    assert found["agreed"]
