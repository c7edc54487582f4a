"""The recipe's optimizer, or AdamW."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError
from mlops.trainer.strategies.refusals import refuse_optimizer


def build_optimizer(
    config: Train, model: nn.Module, configure: Callable[[nn.Module, float, float], object] | None
) -> Optimizer:
    """
    :param configure: the recipe's own; None: AdamW (Loshchilov & Hutter 2019), fused, with torch's betas
    :raises BadConfigError: where it fails, or returns no optimizer, or one whose steps our loop cannot take
    """
    if configure is None:
        # torch has no fused step for complex numbers.
        fused = all(parameter.is_floating_point() for parameter in model.parameters())
        return torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused
        )
    try:
        optimizer = configure(model, config.learning_rate, config.weight_decay)
    except (TypeError, ValueError) as error:
        raise BadConfigError(f"train.configure_optimizer: {config.configure_optimizer} failed: {error}") from error
    if not isinstance(optimizer, Optimizer):
        raise BadConfigError(
            f"train.configure_optimizer: {config.configure_optimizer} must return a torch.optim.Optimizer, "
            f"got {type(optimizer).__name__}"
        )
    refuse_optimizer(optimizer, model, str(config.configure_optimizer))
    return optimizer
