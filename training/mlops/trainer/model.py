"""The model, as the recipe builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from mlops.contract.step import BadConfigError
from mlops.data.shards.loader import Batch

Loss = Callable[[nn.Module, Batch], Tensor]
"""One value per sample, ``[B]``."""


def build_model(
    factory: object,
    import_path: str,
    num_features: int,
    model_args: Mapping[str, Any],
    *,
    vocab_size: int | None = None,
    num_outputs: int = 1,
) -> nn.Module:
    """
    Call the recipe's factory.

    :param num_features: columns of the input; of tokens, their number in a sequence
    :param vocab_size: None where the inputs are no tokens
    :param num_outputs: numbers for each row; the factory is given it where there are several
    :raises BadConfigError: where it cannot be called, fails on its arguments, or returns no module
    """
    if not callable(factory):
        raise BadConfigError(f"train.model: {import_path} is a {type(factory).__name__}, not a function")
    given = (
        {"num_features": num_features} if vocab_size is None else {"context": num_features, "vocab_size": vocab_size}
    )
    if num_outputs > 1:
        given["num_outputs"] = num_outputs
    if taken := sorted(set(given) & set(model_args)):
        by = "objective" if taken[0] == "num_outputs" else "feature set"
        raise BadConfigError(f"train.model_args: {taken[0]} is set by the {by}; remove it")
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
