"""What a training is told, and what it builds from the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from mlops_provider.step import BadConfigError
from training.data.loader import Batch

Loss = Callable[[nn.Module, Batch], Tensor]
"""One value per sample, ``[B]``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """The ``train`` section of a pipeline; its meaning and defaults are in ``mlops_provider.spec.Train``."""

    model: str
    model_args: Mapping[str, Any]
    loss: str | None
    objective: str
    metric: str
    epochs: int
    global_batch: int
    learning_rate: float
    weight_decay: float
    clip_norm: float
    processes: int
    seed: int


def build_model(factory: object, import_path: str, num_features: int, model_args: Mapping[str, Any]) -> nn.Module:
    """
    Call the recipe's factory.

    :raises BadConfigError: where it cannot be called, fails on its arguments, or returns no module
    """
    if not callable(factory):
        raise BadConfigError(f"train.model: {import_path} is a {type(factory).__name__}, not a function")
    if "num_features" in model_args:
        raise BadConfigError("train.model_args: num_features is set by the feature set; remove it")
    arguments = SimpleNamespace(num_features=num_features, **model_args)
    try:
        model = factory(arguments)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadConfigError(
            f"train.model: {import_path} failed on num_features={num_features}, model_args={dict(model_args)}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise BadConfigError(f"train.model: {import_path} must return a torch.nn.Module, got {type(model).__name__}")
    return model
