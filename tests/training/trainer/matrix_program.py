"""
Trains cases of the matrix, each undisturbed and killed twice, in processes forked from this one, which has the imports.

``matrix_program.py SEED ORDER RESULTS``: a JSON with the names of cases and a ``train`` section in, ``{name: outcome}``
out. An outcome is ``equal``, ``refused: ...``, ``differs: ...`` or ``failed: ...``.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import matrix_cases
import numpy as np
import torch
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
from matrix_cases import EQUAL, Case
from matrix_models import NUM_FEATURES
from torch import distributed

from mlops.code import load_attribute
from mlops.contract.sections.train import Train
from mlops.contract.step import StepError
from mlops.data.shards.loader import Loader, in_memory
from mlops.metrics.metric import load_metric
from mlops.objectives.objective import load_objective
from mlops.random_states import seed_everything
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.health import DATA, Heartbeat
from mlops.trainer.job import TrainingJob
from mlops.trainer.loop import Trainer
from mlops.trainer.optimizer import build_optimizer
from mlops.trainer.parallel import Ranks, join
from mlops.trainer.self_test import SelfTest
from mlops.trainer.strategies import ParallelStrategy, build_strategy
from mlops.trainer.training_loss import TrainingLoss
from mlops.trainer.validation import Validation

SAMPLES, EPOCHS, PLACE = 30, 2, "train/matrix"
REFUSED = 3
SECTION: dict[str, Any] = {}
_TIMEOUT_SECONDS = 120.0
NO_RECIPE = partial(load_attribute, home=Path())


@dataclass(frozen=True, kw_only=True)
class Kill:
    """SIGKILL at a step, once a checkpoint of this life is there."""

    step: int
    rank: int | None
    """None: all at once."""
    in_loss: bool
    """In the forward pass, or before it."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """One start of a gang."""

    case: Case
    world: int
    folder: Path
    name: str
    kill: Kill | None = None


def table(case: Case, size: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    offsets = np.arange(size + 1)
    if case.grouped:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 5, size) * np.where(np.arange(size) % 7, 1, 4))])
    features = rng.normal(size=(offsets[-1], NUM_FEATURES)).astype(np.float32)
    labels = (features[:, 0] + features[:, 1] ** 2 > 0.7).astype(np.float32)
    return SimpleNamespace(features=features, labels=labels, offsets=offsets.astype(np.int64))


def config_of(case: Case, world: int) -> Train:
    objective = (
        {"objective": "ranking", "metric": "ndcg@10"} if case.grouped else {"objective": "binary", "metric": "auc"}
    )
    section = SECTION | {
        "epochs": EPOCHS,
        "global_batch": case.global_batch,
        "learning_rate": 0.02,
        "clip_norm": 0.3,
        "processes": world,
        "collective_timeout_seconds": 30,
        "checkpoint": {**SECTION["checkpoint"], "every_steps": 1},
        "self_test": "always" if case.self_test else "never",
        **objective,
    }
    parallel = {**section["parallel"], **case.parallel}
    return Train.model_validate({**section, "parallel": parallel, **case.settings})


def train(life: Life) -> None:
    """One rank's work."""
    case = life.case
    rank, config = int(os.environ["RANK"]), config_of(case, life.world)
    if life.world > 1:
        store = distributed.FileStore(str(life.folder / f"{life.name}.store"), life.world)
        distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=life.world, timeout=timedelta(seconds=30)
        )
    ranks = join(config.parallel, timedelta(seconds=30), deterministic=True)
    loader = loader_of(case, config, ranks)
    killer = Killer(life, rank)

    objective = load_objective(config.objective, {}, NO_RECIPE)

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        killer.in_loss()
        return cast(torch.Tensor, (case.loss or objective.functions.loss)(model, batch))

    def build() -> tuple[ParallelStrategy, torch.optim.Optimizer]:
        seed_everything(config.seed)
        strategy = build_strategy(
            case.model(),
            ranks,
            precision=config.precision,
            activation_checkpointing=config.activation_checkpointing,
            compile=config.compile,
            logical_shards=config.logical_shards if config.exact else None,
            unused_parameters=config.unused_parameters,
        )
        return strategy, build_optimizer(config, strategy.model, case.optimizer)

    test = SelfTest(
        config=config,
        ranks=ranks,
        loader=loader,
        build=build,
        loss=lambda model, batch, _: loss(model, batch),
        functions=[type(case.model())],
    )
    if test.due and not markers(life.folder):
        test.run()
    strategy, optimizer = build()
    job = TrainingJob(
        config=config,
        strategy=strategy,
        optimizer=optimizer,
        loss=TrainingLoss(loss=loss),
        loader=loader,
        validation=Validation.of_table(
            table(case, 16, 1), grouped=case.grouped, objective=objective, metric=load_metric(config.metric, NO_RECIPE)
        ),
        checkpoints=Checkpoints(store=Store(f"file://{life.folder}"), place=PLACE, ranks=ranks, keep_latest=3),
        heartbeat=cast(Heartbeat, killer),
    )
    state = Trainer(job, ranks).train()
    if ranks.leads:
        history = [(each.train_loss, each.validation_metric) for each in state.history]
        digests = digest(job.checkpoints) | {"trail": repr(state.trail.document()), "history": repr(history)}
        (life.folder / f"{life.name}.result").write_text(json.dumps(digests))


def loader_of(case: Case, config: Train, ranks: Ranks) -> Loader:
    return Loader(
        source=in_memory(
            table(case, SAMPLES if case.global_batch > 4 else 4 * case.global_batch, 0), grouped=case.grouped
        ),
        global_batch=config.global_batch,
        seed=config.seed,
        rank=ranks.data_rank,
        world_size=ranks.data_world_size,
        micro_batch=config.micro_batch,
        micro_batch_rows=config.micro_batch_rows,
        pass_worth_rows=3,
        one_shape=ranks.parallel.pp > 1,
        logical_shards=config.logical_shards if config.exact else None,
    )


class Killer:
    """Stands in the place of the heartbeat, which says where the training is."""

    def __init__(self, life: Life, rank: int) -> None:
        self._life, self._rank = life, rank
        self._step = -1
        self._known = set(markers(life.folder))

    def beat(self, step: int, phase: str = "") -> None:
        if phase == DATA:  # behind the save that the step before may have asked for
            kill = self._life.kill
            # A rank that had no rows of its step had no loss to be killed in: it is killed behind it.
            passed = kill is not None and kill.in_loss and step > kill.step
            self._step = step
            self._strike(in_loss=passed)

    def __getattr__(self, name: str) -> Any:  # whatever else a heartbeat can say
        return lambda *_, **__: None

    def in_loss(self) -> None:
        self._strike(in_loss=True)

    def _strike(self, *, in_loss: bool) -> None:
        kill = self._life.kill
        if kill is None or self._step < kill.step or kill.in_loss != in_loss or (kill.rank or 0) != self._rank:
            return
        deadline = time.monotonic() + 20
        while set(markers(self._life.folder)) <= self._known:
            assert time.monotonic() < deadline, "no checkpoint is written"
            time.sleep(0.005)
        if kill.rank is None:
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def markers(folder: Path) -> list[str]:
    return [str(path) for path in (folder / PLACE / "checkpoints").glob("step-*/checkpoint.json")]


def digest(checkpoints: Checkpoints) -> dict[str, str]:
    """Of each entry of the last checkpoint."""
    saved = read_listing(checkpoints.store, checkpoints.place).complete[-1]
    found = {}

    def add(path: str, node: Any) -> None:
        if isinstance(node, dict):
            for name, child in node.items():
                add(f"{path}.{name}", child)
        elif isinstance(node, list | tuple):
            for number, child in enumerate(node):
                add(f"{path}.{number}", child)
        else:
            data = (
                node.contiguous().flatten().view(torch.uint8).numpy().tobytes()
                if isinstance(node, torch.Tensor)
                else repr(node)
            )
            found[path.lstrip(".")] = hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()[
                :12
            ]

    add("", checkpoints.load_whole(saved))
    return found


def run(case: Case, seed: int, folder: Path) -> Iterator[list[int]]:
    """A case, to be driven by :func:`drive`: yields the processes that it waits for, returns the outcome."""
    chance = random.Random(f"{seed} {case.name}")
    num_steps = EPOCHS * (4 if case.global_batch <= 4 else -(-SAMPLES // case.global_batch))
    whole = Life(case=case, world=case.worlds[0], folder=folder / "whole", name="0")
    (folder / "whole").mkdir(parents=True)
    (folder / "killed").mkdir()
    outcome = yield from live(whole)
    if outcome != EQUAL:
        return outcome
    first = chance.randrange(1, num_steps - 3)
    second = chance.randrange(first + 2, num_steps)
    for number, step in enumerate((first, second, None)):
        world = case.worlds[(number + 1) % len(case.worlds)]
        rank = chance.choice([None, *range(world)])
        kill = None if step is None else Kill(step=step, rank=rank, in_loss=chance.random() < 0.5)
        life = Life(case=case, world=world, folder=folder / "killed", name=str(number), kill=kill)
        outcome = yield from live(life)
        if outcome != ("killed" if kill else EQUAL):
            return f"failed: killed at {first} and {second}; life {number} with {world} processes: {outcome}"
    results = [json.loads((folder / name).read_text()) for name in ("whole/0.result", "killed/2.result")]
    wrong = [key for key in {**results[0], **results[1]} if results[0].get(key) != results[1].get(key)]
    return (
        f"differs: killed at {first} and {second}: {', '.join(sorted(wrong)[:6])} of {len(results[0])}"
        if wrong
        else EQUAL
    )


def live(life: Life) -> Iterator[list[int]]:
    """:return: ``equal`` where it ended, ``killed``, ``refused: ...`` or ``failed: ...``"""
    group = start(life)
    statuses = {}
    deadline = time.monotonic() + (_TIMEOUT_SECONDS if not life.case.slow else 400)
    while group:
        yield group
        for pid in list(group):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                group.remove(pid)
                statuses[pid] = os.waitstatus_to_exitcode(status)
        if group and (any(statuses.values()) or time.monotonic() > deadline):
            if REFUSED in statuses.values():
                time.sleep(0.05)
            for pid in group:
                os.kill(pid, signal.SIGKILL)
    if not any(statuses.values()):
        return EQUAL
    refusals = sorted(life.folder.glob(f"{life.name}.refused.*"))
    failures = sorted(life.folder.glob(f"{life.name}.failed.*"))
    if life.kill and not refusals and -signal.SIGKILL in statuses.values() and killed_first(life, failures):
        return "killed"
    said = [path.read_text() for path in (*refusals, *failures)]
    # Those that only lost a neighbour come last, and what was killed while it wrote says nothing.
    for text in sorted(filter(None, said), key=lost_a_neighbour):
        return text
    return f"failed: exit codes {list(statuses.values())}"


def killed_first(life: Life, failures: Sequence[Path]) -> bool:
    # Those that are left when one is killed say that their connection was closed.
    return all(lost_a_neighbour(path.read_text()) for path in failures)


def lost_a_neighbour(text: str) -> bool:
    return not text or "onnection" in text or "Broken pipe" in text


def start(life: Life) -> list[int]:
    group: list[int] = []
    sys.stdout.flush()
    for rank in range(life.world):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, group[0] if group else 0)
            work(life, rank)
        os.setpgid(pid, group[0] if group else pid)
        group.append(pid)
    return group


def work(life: Life, rank: int) -> None:
    code = 1
    try:
        faulthandler.enable()
        log = os.open(life.folder / f"{life.name}.log.{rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(life.world), LOCAL_WORLD_SIZE=str(life.world)
        )
        train(life)
        code = 0
    except StepError as error:
        started = bool(markers(life.folder))
        kind, code = ("failed", 1) if started else ("refused", REFUSED)
        (life.folder / f"{life.name}.{kind}.{rank}").write_text(f"{kind}: {type(error).__name__}: {error}")
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        (life.folder / f"{life.name}.failed.{rank}").write_text(f"failed: {type(error).__name__}: {error}"[:1000])
    finally:
        os._exit(code)


def drive(cases: Sequence[Case], seed: int, folder: Path, at_once: int = 2) -> dict[str, Any]:
    """Run cases, some at once."""
    waiting, running, found = list(cases), {}, {}
    while waiting or running:
        while waiting and len(running) < at_once:
            case = waiting.pop(0)
            running[case.name] = run(case, seed, folder / case.name.replace(" ", "_"))
        for name, steps in list(running.items()):
            try:
                next(steps)
            except StopIteration as end:
                del running[name]
                found[name] = end.value
                if "-v" in sys.argv:
                    expected = next(case.expected for case in cases if case.name == name)
                    good = (
                        end.value == EQUAL
                        if expected == EQUAL
                        else end.value.startswith("refused") and expected in end.value
                    )
                    print(f"{'ok  ' if good else 'BAD '} {name}: {end.value[:300]}", flush=True)
        time.sleep(0.005)
    return found


def main() -> None:
    torch.set_num_threads(1)
    seed, order, results = int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    SECTION.update(order["section"])
    chosen = [case for case in matrix_cases.CASES if case.name in order["names"]]
    folder = Path(tempfile.mkdtemp(prefix="matrix-"))
    try:
        found = drive(chosen, seed, folder)
    finally:
        if "-k" in sys.argv:
            print(folder)
        else:
            shutil.rmtree(folder)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    results.write_text(json.dumps({"outcomes": found, "cpu_seconds": used.ru_utime + used.ru_stime}))
    if "-v" in sys.argv:
        print(f"{used.ru_utime + used.ru_stime:.1f} CPU s for {len(chosen)} cases")


if __name__ == "__main__":
    main()
