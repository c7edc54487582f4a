"""A torchrun script of a recipe's own as the training."""

from __future__ import annotations

import io
import signal
import zipfile
from typing import Any

import pytest
import torch
from mlflow import MlflowClient

from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.contract.step import Failure
from mlops.trainer.checkpoint.weights import deserialise

SCRIPT = """
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from mlops import Program

from .model import slow_loss

program = Program.start()
config = program.config
torch.manual_seed(config.seed)
distributed.init_process_group("gloo")
model = program.build_model()
replica = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
loader = program.loader("train")
for epoch in range(1, config.epochs + 1):
    for step in loader.epoch(epoch):
        for batch in step.batches:
            losses = program.loss(replica, batch) * batch.weights
            (losses.sum() * program.world_size / step.num_samples).backward()
        optimizer.step()
        optimizer.zero_grad()
print(f"checkpoints of rank {program.rank} at {program.checkpoints}")
program.finish(model.state_dict(), epoch=config.epochs, metrics=program.measure(model))
"""
RESUMING = """
import os, signal
from pathlib import Path

import torch

from mlops import Program

program = Program.start()
model = program.build_model()
saved = Path(program.checkpoints.removeprefix("file://"), "epoch-1.pt")
if saved.exists():
    model.load_state_dict(torch.load(saved))
else:
    torch.nn.init.constant_(model[0].bias, 5.0)
    saved.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), saved)
    os.kill(os.getpid(), signal.SIGKILL)
program.finish(model.state_dict(), epoch=2, metrics={program.config.metric: 0.5})
"""
LEAVES = """
import json, os
from pathlib import Path

import torch

output = Path(os.environ["MLOPS_OUTPUT"])
{}
"""
GOOD_METRICS = '(output / "metrics.json").write_text(json.dumps({"epoch": 1, "metrics": {"ndcg@10": 0.5}}))'


def add_script(project: Any, code: str) -> str:
    (project.home / "include/toy/train_mine.py").write_text(code)
    return "include/toy/train_mine.py"


def test_a_script_of_ones_own_trains(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: whoever has a training script would have to rewrite it as our loop wants it, or do without the rest."""
    section = config(program=add_script(project, SCRIPT))
    started = project.start(project.step_input("train", section, toy_features), processes=2)
    ref = started.result()
    assert isinstance(ref, CheckpointRef), started.log
    assert ref.world_size == 2
    assert ref.metrics["ndcg@10"] > 0.85
    weights = deserialise(project.store.read(ref.artifacts["weights"]), torch.device("cpu"))
    assert sorted(weights) == ["0.bias", "0.weight", "3.bias", "3.weight"]
    with zipfile.ZipFile(io.BytesIO(project.store.read(ref.artifacts["code"]))) as code:
        assert {"model.py", "train_mine.py"} <= set(code.namelist())
    assert f"checkpoints of rank 1 at {project.store.uri}/{ref.place}/checkpoints" in started.log
    run = MlflowClient(tracking_uri=project.tracking_uri).get_run(ref.tracking_run)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["validation_ndcg_at_10"] == ref.metrics["ndcg@10"]


def test_a_killed_script_goes_on_from_what_it_saved(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: a script would find its checkpoints of an earlier try gone, and begin anew each time."""
    document = project.step_input("train", config(processes=1, program=add_script(project, RESUMING)), toy_features)
    killed = project.start(document, processes=1)
    assert killed.process.wait(timeout=120) == -signal.SIGKILL, killed.log
    resumed = project.start(document, processes=1)
    ref = resumed.result()
    assert isinstance(ref, CheckpointRef), resumed.log
    weights = deserialise(project.store.read(ref.artifacts["weights"]), torch.device("cpu"))
    assert weights["0.bias"].eq(5.0).all()


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ("", "left no weights.pt in MLOPS_OUTPUT"),
        ('torch.save({}, output / "weights.pt")', "left no metrics.json in MLOPS_OUTPUT"),
        (f'torch.save({{}}, output / "weights.pt")\n{GOOD_METRICS}', "is not the state dict of the model that"),
        (f'(output / "weights.pt").write_text("no weights")\n{GOOD_METRICS}', "is not the state dict of the model"),
        (f'torch.save([], output / "weights.pt")\n{GOOD_METRICS.replace("ndcg@10", "mrr")}', "and not train.metric"),
        (f'torch.save([], output / "weights.pt")\n{GOOD_METRICS.replace("0.5", "1e999")}', "a finite number is needed"),
        (f'torch.save([], output / "weights.pt")\n{GOOD_METRICS.replace("epoch", "step")}', "metrics.json must be {"),
    ],
    ids=["nothing", "no metrics", "other weights", "damaged weights", "other metric", "no number", "no epoch"],
)
def test_what_a_script_left_wrong_is_said(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any, leaves: str, message: str
) -> None:
    """Broken: a mistake in a script would be found in evaluation or production, or be tried again and again."""
    section = config(processes=1, program=add_script(project, LEAVES.format(leaves)))
    failure = run_step(project, project.step_input("train", section, toy_features))
    assert isinstance(failure, Failure)
    assert message in failure.message
    assert not failure.retryable


def test_a_script_that_is_not_there_is_named(
    project: Any, toy_features: FeaturesRef, run_step: Any, config: Any
) -> None:
    section = config(processes=1, program="include/toy/trian.py")
    failure = run_step(project, project.step_input("train", section, toy_features))
    assert isinstance(failure, Failure)
    assert f"there is no file {project.home}/include/toy/trian.py" in failure.message
    assert not failure.retryable
