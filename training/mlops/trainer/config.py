"""What a training is told, and what it builds from the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from mlops.contract.step import BadConfigError
from mlops.data.loader import Batch

Loss = Callable[[nn.Module, Batch], Tensor]
"""One value per sample, ``[B]``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel:
    """Degrees of each kind of parallelism; their product is the world size. ``dp_replicate`` of -1 takes the rest."""

    dp_replicate: int = -1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    kind: str
    warmup_steps: int
    final_fraction: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyStopping:
    patience: int
    min_improvement: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpointing:
    every_steps: int | None
    every_minutes: float
    keep_latest: int
    peers: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """The ``train`` section of a pipeline; meanings and defaults are in ``mlops.contract.sections.train.Train``."""

    model: str
    model_args: Mapping[str, Any]
    program: str | None
    loss: str | None
    metrics: str | None
    configure_optimizer: str | None
    curriculum: str | None
    objective: str
    metric: str
    epochs: int
    global_batch: int
    micro_batch: int | None
    micro_batch_rows: int | None
    learning_rate: float
    weight_decay: float
    schedule: Schedule
    clip_norm: float
    early_stopping: EarlyStopping | None
    precision: str
    activation_checkpointing: bool
    compile: bool
    unused_parameters: bool
    deterministic: bool | str
    float32_matmul: str
    self_test: str
    parallel: Parallel
    nodes: int | str
    processes: int
    max_restarts: int
    elastic: str
    logical_shards: int
    collective_timeout_seconds: float
    hang_seconds: float
    checkpoint: Checkpointing
    seed: int

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> TrainConfig:
        """Read the section from a step's input document."""
        early_stopping = section["early_stopping"]
        parts = {
            "schedule": Schedule(**section["schedule"]),
            "early_stopping": None if early_stopping is None else EarlyStopping(**early_stopping),
            "parallel": Parallel(**section["parallel"]),
            "checkpoint": Checkpointing(**section["checkpoint"]),
        }
        return cls(**{**section, **parts})

    @property
    def exact(self) -> bool:
        return self.elastic == "exact"


def build_model(
    factory: object, import_path: str, num_features: int, model_args: Mapping[str, Any], vocab_size: int | None = None
) -> nn.Module:
    """
    Call the recipe's factory.

    :param num_features: columns of the input; of tokens, their number in a sequence
    :param vocab_size: None where the inputs are no tokens
    :raises BadConfigError: where it cannot be called, fails on its arguments, or returns no module
    """
    if not callable(factory):
        raise BadConfigError(f"train.model: {import_path} is a {type(factory).__name__}, not a function")
    given = (
        {"num_features": num_features} if vocab_size is None else {"context": num_features, "vocab_size": vocab_size}
    )
    if taken := sorted(set(given) & set(model_args)):
        raise BadConfigError(f"train.model_args: {taken[0]} is set by the feature set; remove it")
    arguments = SimpleNamespace(**given, **model_args)
    try:
        model = factory(arguments)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadConfigError(
            f"train.model: {import_path} failed on {', '.join(f'{name}={value}' for name, value in given.items())}, "
            f"model_args={dict(model_args)}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise BadConfigError(f"train.model: {import_path} must return a torch.nn.Module, got {type(model).__name__}")
    return model
