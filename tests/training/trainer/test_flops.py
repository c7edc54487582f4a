from __future__ import annotations

import numpy as np
import torch
from torch import nn

from mlops.data.shards.loader import Batch
from mlops.trainer.flops import flops_per_sample


def test_a_linear_layer_costs_six_operations_for_each_weight_and_row() -> None:
    """
    Broken: the utilisation would be off by a factor, or follow how long the first batch's groups are.

    2 a weight forward, 4 backward (Kaplan et al. 2020).
    """
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.Dropout(0.5))
    batch = Batch(
        features=torch.zeros(4, 3, 10),
        labels=torch.zeros(4, 3),
        mask=torch.ones(4, 3, dtype=torch.bool),
        weights=torch.ones(4),
        samples=np.arange(4),
    )
    assert flops_per_sample(model, batch, 2.5) == 6 * 200 * 2.5
    assert model.training
