"""The recipe's optimizer, or AdamW."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from mlops_provider.step import BadConfigError
from training.trainer.config import TrainConfig


def build_optimizer(
    config: TrainConfig, model: nn.Module, configure: Callable[[nn.Module, float, float], object] | None
) -> Optimizer:
    """
    :param configure: the recipe's own; None: AdamW (Loshchilov & Hutter 2019), fused, with torch's betas
    :raises BadConfigError: where it returns no optimizer
    """
    if configure is None:
        return torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
    optimizer = configure(model, config.learning_rate, config.weight_decay)
    if not isinstance(optimizer, Optimizer):
        raise BadConfigError(
            f"train.configure_optimizer: {config.configure_optimizer} must return a torch.optim.Optimizer, "
            f"got {type(optimizer).__name__}"
        )
    return optimizer
