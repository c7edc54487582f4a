"""
Run by the agent as ``fault_program.py FOLDER CASE RANK INPUT.json``: a training of a few small steps by our own loop,
in which RANK meets with CASE, one of :data:`FAULTS`.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from measured import metric_of, objective_of
from torch import Tensor, distributed, nn

from mlops.contract.metrics import MetricSpec
from mlops.contract.sections.train import Train
from mlops.contract.step import BadDataError, StepInput
from mlops.data.shards.loader import Batch, Loader, in_memory
from mlops.metrics.metric import Metric
from mlops.metrics.predictions import Predictions
from mlops.metrics.weighted import Weighted, mean_over_samples
from mlops.process import ProcessSettings
from mlops.random_states import seed_everything
from mlops.steps.execution import report
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.health import Heartbeat
from mlops.trainer.job import TrainingJob
from mlops.trainer.loop import Trainer
from mlops.trainer.optimizer import build_optimizer
from mlops.trainer.parallel import join
from mlops.trainer.strategies import build_strategy
from mlops.trainer.training_loss import TrainingLoss
from mlops.trainer.validation import Validation

STRIKE_STEP, NUM_STEPS, GLOBAL_BATCH, FEATURES = 3, 6, 12, 4
FOREVER = 1000.0


def spin() -> None:
    while True:
        pass


def lock() -> None:
    both = threading.Lock()
    with both:
        both.acquire()


def hold_the_gil() -> None:
    threading.Thread(target=re.match, args=("(a+)+$", "a" * 60 + "b"), daemon=True).start()


def late_gil(seconds: float = 0.001) -> None:
    # Taken while the main thread is anywhere.
    threading.Timer(seconds, re.match, args=("(a+)+$", "a" * 60 + "b")).start()


def full_disk() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/scratch/cache.bin")


def fail() -> None:
    raise ValueError("the labels are letters")


def bad_data() -> None:
    raise BadDataError("the labels are letters")


def nothing() -> None:
    pass


class Stuck(torch.autograd.Function):
    """Stands still on the way back."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        time.sleep(FOREVER)
        return gradient


# Where it happens, and what.
FAULTS: dict[str, tuple[str, Callable[[], object]]] = {
    "sleep": ("loss", lambda: time.sleep(FOREVER)),
    "lock": ("loss", lock),
    "endless loop": ("loss", spin),
    "GIL": ("loss", hold_the_gil),
    "GIL at any time": ("loss", late_gil),
    "GIL in a collective": ("first", lambda: late_gil(0.5)),
    "stopped": ("loss", lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "sleep in backward": ("backward", nothing),
    "own collective": ("loss", distributed.barrier),
    "skipped collective": ("collective", nothing),
    "other shape": ("shape", nothing),
    "exit 0": ("loss", lambda: os._exit(0)),
    "sys.exit(0)": ("loss", lambda: sys.exit(0)),
    "exit 3": ("loss", lambda: os._exit(3)),
    "sys.exit(3)": ("loss", lambda: sys.exit(3)),
    "abort": ("loss", os.abort),
    "segmentation fault": ("loss", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
    "killed": ("loss", lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "error": ("loss", fail),
    "final error": ("loss", bad_data),
    "data": ("data", lambda: time.sleep(FOREVER)),
    "store of rank 0": ("save", lambda: time.sleep(FOREVER)),
    "store of rank 2": ("save", lambda: time.sleep(FOREVER)),
    "full disk": ("loss", full_disk),
    "no space": ("loss", no_space),
    "not a number": ("nan", nothing),
    "validation": ("metrics", lambda: time.sleep(FOREVER)),
    "start": ("start", lambda: time.sleep(FOREVER)),
    "slow": ("pace", lambda: time.sleep(0.5)),
    "none": ("", nothing),
}


def main(section: Mapping[str, Any]) -> None:
    folder, name, guilty = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    place, strike = FAULTS[name]
    rank = int(os.environ["RANK"])

    def at(where: str) -> bool:
        return where == place and rank == guilty

    torch.set_num_threads(1)
    # The timeout is longer than a hang may last, but for a rank that waits for the store.
    ranks = join(timeout=timedelta(seconds=30))
    heartbeat = Heartbeat.from_environment()
    if at("start"):
        strike()
    seed_everything(1)
    strategy = build_strategy(nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)), ranks)
    config = Train.model_validate(section)
    calls = 0

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal calls
        calls += 1
        if at("pace"):
            strike()
        strikes = calls == STRIKE_STEP + 2  # the first is for DDP's buckets
        if strikes and (at("loss") or at("first")):
            strike()
        if strikes and place == "first" and rank != guilty:
            time.sleep(1)
        scores = model(batch.features)
        losses = (scores - batch.labels) ** 2
        if strikes and at("backward"):
            losses = Stuck.apply(losses)
        if place == "collective" and strikes and rank != guilty:
            distributed.all_reduce(torch.ones(1000))
        if place == "shape" and strikes:
            distributed.all_reduce(torch.ones(7 if rank == guilty else 1000))
        if strikes and at("nan"):
            losses = losses * torch.where(torch.from_numpy(batch.samples) == batch.samples[1], torch.nan, 1.0)
            (folder / "sample").write_text(str(batch.samples[1]))
        return losses

    rng = np.random.default_rng(0)
    features = rng.normal(size=(GLOBAL_BATCH * NUM_STEPS, FEATURES)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.float32)
    table: Any = SimpleNamespace(features=features, labels=labels, offsets=np.arange(len(labels) + 1))
    source = in_memory(table, grouped=False)
    if at("data"):
        gather = source.gather_many
        given = 0

        def stop(*args: Any) -> Any:
            nonlocal given
            given += 1
            if given > STRIKE_STEP:
                strike()
            return gather(*args)

        source.gather_many = stop  # type: ignore[method-assign]
        source.block_samples = 1  # type: ignore[misc]
    store = Store(f"file://{folder}/store")

    def stopping(predictions: Predictions, parameter: None) -> Weighted:
        if at("metrics"):
            strike()
        return mean_over_samples(np.zeros(predictions.num_samples))

    spec = MetricSpec(measures=("logit",), higher_is_better=True, title="stopping", weighted=stopping)
    further = [Metric(name="stopping", spec=spec, parameter=None, function=stopping)]

    job = TrainingJob(
        config=config,
        strategy=strategy,
        optimizer=build_optimizer(config, strategy.model, None),
        loss=TrainingLoss(loss=loss),
        loader=Loader(source=source, global_batch=GLOBAL_BATCH, seed=1, rank=ranks.rank, world_size=ranks.world_size),
        validation=Validation.of_table(
            table, grouped=False, objective=objective_of("binary"), metric=metric_of("auc"), further=further
        ),
        checkpoints=Checkpoints(
            store=store, place="train", ranks=ranks, timeout=timedelta(seconds=30), retry_seconds=0
        ),
        heartbeat=heartbeat,
    )
    if at("save"):
        writer: Any = job.checkpoints._writer
        writer._put_marker = writer._write_file = lambda *_: store.put("marker", b"")
        monkey: Any = store
        monkey._flush = lambda key: strike()
    Trainer(job, ranks).train()


def work(document: StepInput, deployment: ProcessSettings) -> None:
    main(document.config)


if __name__ == "__main__":
    os.environ |= {"MLOPS_HOME": sys.argv[1], "MLOPS_STORE": f"file://{sys.argv[1]}/store"}
    sys.exit(1 if report(work) else 0)
