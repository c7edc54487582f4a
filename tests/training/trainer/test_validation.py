from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from measured import metric_of
from torch import Tensor, nn
from torch.nn import functional

from mlops.code import load_attribute
from mlops.data.shards.loader import in_memory
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import load_objective
from mlops.random_states import seed_everything
from mlops.trainer.parallel import Ranks
from mlops.trainer.strategies import ParallelStrategy
from mlops.trainer.validation import Validation

NUM_SAMPLES, BLOCK = 10, 3


class Drops(nn.Module):
    """Draws in evaluation mode too, by torch and by numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(functional.dropout(rows, 0.5)).squeeze(-1) + float(np.random.normal())


def scored(strategy: ParallelStrategy, num_ranks: int, seed: tuple[int, ...]) -> Floats:
    """The scores of the split, by so many ranks one after the other, each with a random state of its own."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(NUM_SAMPLES, 4)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.float32)
    table: Any = SimpleNamespace(features=features, labels=labels, offsets=np.arange(NUM_SAMPLES + 1))
    validation = Validation(
        source=in_memory(table, grouped=False), labels=labels, offsets=table.offsets, block=BLOCK,
        objective=load_objective("binary", {}, partial(load_attribute, home=Path())), metric=metric_of("auc"),
    )  # fmt: skip
    parts: dict[int, Floats] = {}
    for rank in range(num_ranks):
        seed_everything(num_ranks, rank)
        ranks: Any = SimpleNamespace(
            data_rank=rank, data_world_size=num_ranks, leads=False, device=torch.device("cpu"),
            gather_objects=parts.update,
        )  # fmt: skip
        validation._scores(strategy, cast(Ranks, ranks), lambda: None, seed)
    return np.concatenate([parts[first] for first in sorted(parts)])


def test_scores_depend_neither_on_who_scores_nor_on_what_was_drawn_before() -> None:
    """Broken: a model that draws in evaluation mode gets another best epoch when its training is killed and resumed."""
    strategy = ParallelStrategy(Drops(), Ranks())
    alone = scored(strategy, 1, (7, 12)).tolist()
    assert len(set(alone)) == NUM_SAMPLES
    assert [scored(strategy, num_ranks, (7, 12)).tolist() for num_ranks in (2, 3)] == [alone, alone]
    assert scored(strategy, 1, (7, 13)).tolist() != alone
