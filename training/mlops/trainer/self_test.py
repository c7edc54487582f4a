"""
Whether a checkpoint holds all that a recipe's training depends on: steps are taken, and taken again after a resume.

A model may draw from a random generator of its own, count calls in Python or keep a buffer that is not saved; an
optimizer may keep numbers outside of its ``state_dict``. Such a training ends with other weights when it is killed and
resumed, and nothing would say so.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError
from mlops.data.shards.loader import Batch, Loader, Step
from mlops.trainer.checkpoint.tree import Contents, Flat, contents_of, flatten, put_leaf
from mlops.trainer.hidden_state import Hidden, changed, look
from mlops.trainer.model import Loss
from mlops.trainer.parallel import Ranks
from mlops.trainer.schedule import LearningRate
from mlops.trainer.strategies import ParallelStrategy
from mlops.trainer.strategies.state_dicts import load_training_state, state_to_fill, training_state

STEPS_BEFORE, STEPS_AGAIN = 2, 2
WORTH_STEPS: Final = 1000
"""Steps from which on ``self_test: auto`` looks at all: the test takes six, and builds the model twice."""
_SHARE: Final = 0.01

Build = Callable[[], tuple[ParallelStrategy, Optimizer]]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTest:
    """
    Called by all ranks, before the training's own model is built; what it builds is gone when it returns.

    :param build: seeds, and makes the model and its optimizer as the training does
    :param loss: with the curriculum's weights, if any; takes the model, a batch, and the share that is done
    :param functions: the recipe's, whose modules may keep counters
    """

    config: Train
    ranks: Ranks
    loader: Loader
    build: Build
    loss: Callable[[nn.Module, Batch, float], Tensor]
    functions: Sequence[object] = ()

    @property
    def due(self) -> bool:
        """Whether the settings ask for it. A training that is resumed needs no other one."""
        if self.config.self_test != "auto":
            return self.config.self_test == "always"
        long_enough = self.config.epochs * self.loader.num_steps >= WORTH_STEPS
        return long_enough and self.config.deterministic is True and not self.config.compile

    def run(self) -> bool:
        """
        :return: False where ``self_test: auto`` finds that it costs more than 1% of the training
        :raises BadConfigError: naming what differs, the likely cause and the fix
        """
        started = time.monotonic()
        steps = self._steps()
        first = self._start()
        hidden = self._look(first)
        seconds = 0.0
        for number in range(STEPS_BEFORE):
            since = time.monotonic()
            first.take(number, steps[number])
            seconds = time.monotonic() - since
        if not self._worth_it(2 * (time.monotonic() - started), seconds):
            return False
        kept = _Kept.of(first)
        suspects = changed(hidden, self._look(first))
        numbers = range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AGAIN)
        through = [first.take(number, steps[number]) for number in numbers]
        del first
        second = self._start()
        kept.restore(second)
        resumed = [second.take(number, steps[number]) for number in numbers]
        self._compare(through, resumed, suspects)
        return True

    def _steps(self) -> Sequence[Step]:
        epoch = self.loader.epoch(1, last=True)
        try:
            found = list(islice(epoch, STEPS_BEFORE + STEPS_AGAIN))
        finally:
            close = getattr(epoch, "close", None)
            if close is not None:
                close()
        return list(islice(cycle(found), STEPS_BEFORE + STEPS_AGAIN))

    def _start(self) -> _Run:
        return _Run(self, *self.build())

    def _look(self, run: _Run) -> Mapping[str, Hidden]:
        return look(run.strategy.model, run.optimizer, self.functions)

    def _worth_it(self, cost_seconds: float, step_seconds: float) -> bool:
        if self.config.self_test == "always":
            return True
        num_steps = self.config.epochs * self.loader.num_steps
        worth = self.ranks.from_leader(cost_seconds <= _SHARE * num_steps * step_seconds)
        if not worth and self.ranks.leads:
            logger.info("self-test left out: it would take more than 1%% of the training; self_test: always runs it")
        return worth

    def _compare(self, through: Sequence[Taken], resumed: Sequence[Taken], suspects: Sequence[str]) -> None:
        mine: list[tuple[int, str]] = []
        for number, (one, other) in enumerate(zip(through, resumed, strict=True), STEPS_BEFORE + 1):
            mine += [(number, name) for name in one.wrong(other)]
        found = self.ranks.gather_objects((mine, list(suspects)))
        told = None
        if found is not None:
            wrong = sorted({each for theirs, _ in found for each in theirs})
            told = _message(wrong, sorted({each for _, theirs in found for each in theirs})) if wrong else None
        told = self.ranks.from_leader(told)
        if told is not None:
            raise BadConfigError(told)


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What a step came to."""

    norm: float
    digests: Mapping[str, int]

    def wrong(self, other: Taken) -> list[str]:
        """Names of what differs, the gradient norm first."""
        keys = {**self.digests, **other.digests}
        names = [key for key in keys if self.digests.get(key) != other.digests.get(key)]
        # Two that are not a number are the same.
        return [*(["the gradient norm"] if repr(self.norm) != repr(other.norm) else []), *names]


class _Run:
    """A model and its optimizer, on the way."""

    def __init__(self, test: SelfTest, strategy: ParallelStrategy, optimizer: Optimizer) -> None:
        self.strategy, self.optimizer, self._test = strategy, optimizer, test
        self._num_steps = test.config.epochs * test.loader.num_steps
        strategy.adopt(optimizer)
        self._rate = LearningRate(test.config.schedule, optimizer, self._num_steps)
        batch = next(iter(test.loader.epoch(1))).batches[0].to(test.ranks.device)
        strategy.warm_up(batch, self._loss(0))

    def take(self, number: int, step: Step) -> Taken:
        """The step of that number, as the training's loop takes it."""
        config = self._test.config
        self._rate.set(number)
        self.strategy.seed(config.seed, number)
        batches = [batch.to(self._test.ranks.device) for batch in step.batches]
        self.strategy.step(batches, self._loss(number), 1 / step.num_samples)
        norm = float(self.strategy.clip(config.clip_norm))
        self.strategy.update(self.optimizer)
        return Taken(norm=norm, digests=_digests(self.state()))

    def state(self) -> Flat:
        return flatten(training_state(self.strategy, self.optimizer))

    def _loss(self, number: int) -> Loss:
        return lambda model, batch: self._test.loss(model, batch, number / self._num_steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """A checkpoint in memory: this rank's part, in the host's."""

    contents: Contents
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, run: _Run) -> _Kept:
        flat = run.state()
        tensors = {key: _local(tensor).detach().to("cpu", copy=True) for key, tensor in flat.tensors.items()}
        return cls(contents=contents_of(flat), tensors=tensors)

    def restore(self, run: _Run) -> None:
        state = state_to_fill(run.strategy, run.optimizer, self.contents)
        flat = flatten(state)
        with torch.no_grad():
            for key, tensor in flat.tensors.items():
                _local(tensor).copy_(self.tensors[key])
        for key in flat.values:
            put_leaf(state, flat.paths[key], self.contents.values[flat.paths[key]])
        load_training_state(run.strategy, run.optimizer, state)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _digests(flat: Flat) -> dict[str, int]:
    found = {key: zlib.crc32(repr(value).encode()) for key, value in flat.values.items()}
    for key, tensor in flat.tensors.items():
        data = _local(tensor).detach().cpu().contiguous().flatten().view(torch.uint8)
        found[key] = zlib.crc32(data.numpy().tobytes())
    return found


def _message(wrong: Sequence[tuple[int, str]], suspects: Sequence[str]) -> str:
    step = wrong[0][0]
    names = [name for number, name in wrong if number == step]
    # What the step works with says more than what follows from it.
    names.sort(key=lambda name: (name != "the gradient norm", not name.startswith("model."), name))
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    text = (
        f"train.self_test: resumed from a checkpoint of step {STEPS_BEFORE}, step {step} does not give the same bits "
        f"as without the interruption: {shown} differ. "
    )
    if suspects:
        return text + "Checkpoints do not hold, and it changed meanwhile: " + "; ".join(suspects)
    return text + (
        "No attribute of the model or the optimizer changed that checkpoints do not hold: look for state outside of "
        "them, as a global variable, a generator of random numbers, or the clock"
    )
