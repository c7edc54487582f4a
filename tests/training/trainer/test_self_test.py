"""What is found at the start of a training, before it costs anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError
from mlops.data.shards.loader import Batch, Loader, in_memory
from mlops.random_states import seed_everything
from mlops.store import Store
from mlops.trainer.checkpoint.tree import contents_of, flatten
from mlops.trainer.optimizer import build_optimizer
from mlops.trainer.parallel import Ranks
from mlops.trainer.self_test import WORTH_STEPS, SelfTest
from mlops.trainer.strategies import ParallelStrategy, build_strategy
from mlops.trainer.strategies.state_dicts import state_to_fill, training_state


def loader(num_samples: int = 40) -> Loader:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(num_samples, 4)).astype(np.float32)
    table: Any = SimpleNamespace(
        features=features, labels=features[:, 0].copy(), offsets=np.arange(num_samples + 1, dtype=np.int64)
    )
    return Loader(source=in_memory(table, grouped=False), global_batch=8, seed=1, rank=0, world_size=1)


def squared(model: nn.Module, batch: Batch, _: float = 0.0) -> Tensor:
    losses: Tensor = (model(batch.features).squeeze(-1) - batch.labels) ** 2
    return losses


def self_test(section: Mapping[str, Any], model: Any, **changes: Any) -> SelfTest:
    config, ranks = Train.model_validate(section), Ranks()

    def build() -> tuple[ParallelStrategy, torch.optim.Optimizer]:
        seed_everything(config.seed)
        strategy = build_strategy(model(), ranks)
        return strategy, build_optimizer(config, strategy.model, None)

    return SelfTest(
        **{"config": config, "ranks": ranks, "loader": loader(), "build": build, "loss": squared, **changes}
    )


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 1), 0

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += self.training
        return self.layer(rows) / (1 + self.calls)


def test_it_names_what_a_checkpoint_does_not_hold_and_the_fix(config: Any) -> None:
    """Broken: such a training ends with other weights when it is preempted, and nobody knows."""
    with pytest.raises(BadConfigError, match=r"calls \(Counting\), from 0 to 2: .*register_buffer\('calls'") as caught:
        self_test(config(self_test="always"), Counting).run()
    assert "step 3" in str(caught.value)
    assert not caught.value.retryable


def test_it_leaves_no_trace(config: Any) -> None:
    """Broken: a training would have other bits because it was tested."""

    def trained(*, tested: bool) -> Tensor:
        test = self_test(
            config(self_test="always"), lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 1))
        )
        if tested:
            assert test.run()
        strategy, optimizer = test.build()
        strategy.adopt(optimizer)
        for number, step in enumerate(test.loader.epoch(1)):
            strategy.seed(1, number)
            strategy.step(step.batches, squared, 1 / step.num_samples)
            strategy.clip(1.0)
            strategy.update(optimizer)
        return torch.cat([each.detach().flatten() for each in strategy.model.parameters()])

    assert torch.equal(trained(tested=True), trained(tested=False))


def test_a_short_training_is_not_kept_waiting(config: Any) -> None:
    """Broken: a test of six steps would take a tenth of a training of sixty."""
    short, long = (self_test(config(self_test="auto", epochs=epochs), Counting) for epochs in (1, WORTH_STEPS))
    assert (short.due, long.due) == (False, True)
    assert not self_test(config(self_test="never", epochs=WORTH_STEPS), Counting).due
    slow = {"build": lambda: (_slow(), long.build())[1]}
    assert not dataclasses.replace(long, **slow).run(), "building takes longer than 1% of the steps"


def _slow() -> None:
    import time

    time.sleep(1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model.append(nn.Linear(1, 1)), r"3\.weight"),
        (lambda model: model.pop(2), r"has 2\.bias, 2\.weight, which the model has not"),
    ],
    ids=["the model has more", "the checkpoint has more"],
)
def test_a_checkpoint_of_another_model_is_refused_in_both_directions(tmp_path: Path, change: Any, words: str) -> None:
    """Broken: weights would be left out silently, or stay as they were drawn."""
    from mlops.trainer.checkpoint.checkpoints import Checkpoints

    def made(changed: bool) -> tuple[ParallelStrategy, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        if changed:
            change(model)
        strategy = build_strategy(model, Ranks())
        return strategy, torch.optim.AdamW(strategy.model.parameters())

    checkpoints = Checkpoints(store=Store(f"file://{tmp_path}"), place="x", ranks=Ranks())
    checkpoints.newest()
    checkpoints.save(1, training_state(*made(False)), {}, wait=True)
    checkpoints.wait()
    saved = checkpoints.newest()
    assert saved is not None
    with pytest.raises(BadConfigError, match=words):
        checkpoints.load(saved, state_to_fill(*made(True), checkpoints.contents(saved)))


def test_a_checkpoint_of_another_optimizer_is_refused() -> None:
    """Broken: its moments would be dropped silently, and the training go on as if it had none."""
    strategy = build_strategy(nn.Linear(4, 1), Ranks())
    contents = contents_of(flatten(training_state(strategy, torch.optim.AdamW(strategy.model.parameters()))))
    with pytest.raises(BadConfigError, match="AdamW, and this training has .*SGD"):
        state_to_fill(strategy, torch.optim.SGD(strategy.model.parameters(), lr=1), contents)


def test_a_head_trained_alone_is_clipped_by_its_own_norm() -> None:
    """Broken: gradients of what nobody trains add up from step to step, and shrink those of the head to nothing."""
    torch.manual_seed(0)
    strategy = build_strategy(nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 1)), Ranks())
    head = strategy.model[1]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.0)
    strategy.adopt(optimizer)
    norms = []
    for _ in range(3):
        [step, *_] = loader().epoch(1)
        strategy.step(step.batches, squared, 1 / step.num_samples)
        norms.append(float(strategy.clip(0.1)))
        alone = torch.cat([each.grad.flatten() for each in head.parameters()]).norm()
        assert float(alone) == pytest.approx(0.1, rel=1e-4)
        strategy.update(optimizer)
    assert norms[0] == norms[1] == norms[2]
