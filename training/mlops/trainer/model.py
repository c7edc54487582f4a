"""The model, as the recipe builds it."""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mlops.contract.step import BadConfigError
from mlops.data.shards.loader import Batch

logger = logging.getLogger(__name__)

_REFERENCES: Final = 3
"""To an object that nobody has kept: of the caller, of the function that asks, and of the question."""
_OF_CODE: Final = (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""What a factory raises that does not fit its arguments, or has a mistake."""
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
    tells_unread: bool = False,
) -> nn.Module:
    """
    Call the recipe's factory.

    :param num_features: columns of the input; of tokens, their number in a sequence
    :param vocab_size: None where the inputs are no tokens
    :param num_outputs: numbers for each row; the factory is given it where there are several
    :param tells_unread: warn of arguments that the factory does not read: at a training, and not each time that its
        model is opened
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
    arguments = _Arguments(**given, **model_args)
    try:
        with arguments.noted() as read:
            model = factory(arguments)
    except _OF_CODE as error:
        raise BadConfigError(
            f"train.model: {import_path} failed on {', '.join(f'{name}={value}' for name, value in given.items())}, "
            f"model_args={dict(model_args)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise BadConfigError(f"train.model: {import_path} must return a torch.nn.Module, got {type(model).__name__}")
    if tells_unread:
        _tell_unread(import_path, sorted({*model_args} - read), read, arguments)
    return model


def refuse_untrainable(model: nn.Module, import_path: str) -> None:
    """
    Refuse what the training loop would train to the end, and nobody could open.

    :raises BadConfigError: of a part that torch.compile has wrapped, or that has no size yet
    """
    for name, module in model.named_modules():
        if "_orig_mod" in module._modules:
            where = f" at {name}" if name else ""
            raise BadConfigError(
                f"train.model: {import_path} returns a model that torch.compile has wrapped{where}: its weights then "
                "have other names than in a checkpoint, and could not be loaded again. Return the plain model, and set "
                "train.compile: true"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
            raise BadConfigError(
                f"train.model: {import_path} returns a model whose {name} ({owner}) has no size before the first "
                f"forward pass: give all sizes, as nn.Linear(in_features, out_features) does; the input has "
                "config.num_features columns, or config.context tokens"
            )


class _Arguments(SimpleNamespace):
    """What a factory is given; it can note which of it is read."""

    # Not in its __dict__, which factories take apart.
    __slots__ = ("_read",)

    @contextmanager
    def noted(self) -> Iterator[set[str]]:
        """Note what is read by its name, or all where it is taken apart."""
        read: set[str] = set()
        object.__setattr__(self, "_read", read)
        try:
            yield read
        finally:
            object.__delattr__(self, "_read")

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        try:
            read: set[str] = object.__getattribute__(self, "_read")
        except AttributeError:  # nothing is noted any more
            return found
        read |= {*found} if name == "__dict__" else {name}
        return found

    def __reduce__(self) -> Any:  # as copies are made
        return SimpleNamespace, (), dict(vars(self))


def _tell_unread(import_path: str, unread: Sequence[str], read: Set[str], arguments: _Arguments) -> None:
    """
    Warn of arguments that change nothing. No error: what a model reads may hang on another argument, which is searched.
    """
    if sys.getrefcount(arguments) > _REFERENCES:  # the model has kept them, and may read more later
        return
    for name in unread:
        near = difflib.get_close_matches(name, read, n=1)
        _warn(name, import_path, f"; did you mean {near[0]}?" if near else "")


@cache  # once, however often the model is built
def _warn(name: str, import_path: str, hint: str) -> None:
    logger.warning("train.model_args.%s: %s does not read it, so it changes nothing%s", name, import_path, hint)
