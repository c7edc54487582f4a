"""Predictions for a whole split, in blocks of a fixed size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import nn

from mlops.data.shards.batch import Batch
from mlops.data.shards.loader import in_order
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import Objective

if TYPE_CHECKING:
    from mlops.data.shards.feature_table import FeatureTable

SCORING_BATCH: Final = 1024
"""Samples scored at once: large enough to be quick, small enough for the padded batch to stay below 100 MB."""
SCORING_TOKENS: Final = 4096
"""Tokens scored at once: with a vocabulary of 50,000 their logits take 800 MB."""


def predict_table(
    objective: Objective, model: nn.Module, table: FeatureTable, device: torch.device, *, grouped: bool
) -> Floats:
    """Return the model's predictions for every row of a split, in its order: ``[N]`` or ``[N, K]``."""
    return predict_batches(objective, model, in_order(table, SCORING_BATCH, grouped=grouped), device)


def predict_batches(objective: Objective, model: nn.Module, batches: Iterable[Batch], device: torch.device) -> Floats:
    """
    Return the model's predictions for the rows of batches, in their order: ``[N]`` or ``[N, K]``.

    :param batches: on the CPU
    :param device: of the model
    """
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        parts = [objective.predict(model(batch.to(device).features), batch) for batch in batches]
    model.train(was_training)
    none = np.empty((0, objective.num_outputs) if objective.num_outputs > 1 else 0, np.float32)
    return np.concatenate(parts) if parts else none
