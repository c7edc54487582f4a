"""The recipe's optimizer, or AdamW."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import nn
from torch.optim import Optimizer

from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError
from mlops.trainer.strategies.refusals import refuse_optimizer
from mlops.trainer.warm_start import gathered, groups


def build_optimizer(
    config: Train,
    model: nn.Module,
    configure: Callable[[nn.Module, float, float], object] | None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Optimizer:
    """
    :param configure: the recipe's own; None: AdamW (Loshchilov & Hutter 2019), fused, with torch's betas
    :param names: ``{name in the model: name in the whole model}``, where they differ
    :raises BadConfigError: where it fails, or returns no optimizer, or one whose steps our loop cannot take
    """
    if configure is None:
        # torch has no fused step for complex numbers.
        fused = all(parameter.is_floating_point() for parameter in model.parameters())
        named = model.named_parameters(remove_duplicate=False)
        whole = gathered((names.get(name, name), parameter) for name, parameter in named)
        parameters = groups(whole, config.learning_rates, config.learning_rate)
        return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused)
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
