"""Predictions for a whole split, in blocks of a fixed size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from torch import nn

from mlops.data.shards.batch import Batch
from mlops.data.shards.feature_table import FeatureTable, IntArray, rows_of
from mlops.data.shards.loader import in_memory, in_order
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import Objective, no_predictions

SCORING_BATCH: Final = 1024
"""Samples scored at once: large enough to be quick, small enough for the padded batch to stay below 100 MB."""
SCORING_TOKENS: Final = 4096
"""Tokens scored at once: with a vocabulary of 50,000 their logits take 800 MB."""


def predict_table(
    objective: Objective, model: nn.Module, table: FeatureTable, device: torch.device, *, grouped: bool
) -> Floats:
    """
    Return the model's predictions for every row of a split, in its order: ``[N]`` or ``[N, K]``.

    Groups are scored beside others of as many rows: a server scores one as it is, and a model that looks at a whole
    group, as attention does, answers otherwise where it sees padding.
    """
    if not grouped:
        return predict_batches(objective, model, in_order(table, SCORING_BATCH, grouped=False), device)
    lengths = np.diff(table.offsets)
    by_length = np.argsort(lengths, kind="stable")
    predicted = predict_batches(objective, model, _alike(table, by_length, lengths[by_length]), device)
    found = np.empty_like(predicted)
    found[rows_of(table.offsets, by_length)] = predicted
    return found


def _alike(table: FeatureTable, by_length: IntArray, lengths: IntArray) -> Iterator[Batch]:
    """Yield groups in this order, in batches of equal lengths."""
    source = in_memory(table, grouped=True)
    for samples in np.split(by_length, np.flatnonzero(np.diff(lengths)) + 1):
        for first in range(0, len(samples), SCORING_BATCH):
            yield source.gather(samples[first : first + SCORING_BATCH])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model evaluate within, as one that several threads ask does anyway."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def predict_batches(objective: Objective, model: nn.Module, batches: Iterable[Batch], device: torch.device) -> Floats:
    """
    Return the model's predictions for the rows of batches, in their order: ``[N]`` or ``[N, K]``.

    :param batches: on the CPU
    :param device: of the model
    """
    with evaluating(model), torch.inference_mode():
        parts = [objective.predict(model(batch.to(device).features), batch) for batch in batches]
    return np.concatenate(parts) if parts else no_predictions(objective)
