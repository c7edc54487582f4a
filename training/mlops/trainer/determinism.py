"""How numbers are computed: only by deterministic algorithms or not, and float32 products in full or not."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from mlops.code import recipe_line
from mlops.contract.step import BadConfigError

_FOUND: Final = r"(.+?) (?:does not have a deterministic implementation|defaults to a non-deterministic algorithm)"
"""How torch begins to say so, as an error or as a warning."""
_INSTEAD: Final = {
    "upsample": 'interpolate by mode="nearest"',
    "adaptive_avg_pool": "take the mean over the pixels, or an AvgPool2d of fixed size",
    "adaptive_max_pool": "take amax over the pixels, or a MaxPool2d of fixed size",
    "avg_pool3d": "use a Conv3d with constant weights, or stride by slices and take their mean",
    "nll_loss2d": "flatten logits to [N, classes] and labels to [N] before cross_entropy",
    "cumsum": "multiply by a triangular matrix of ones, or add up integers",
    "reflection_pad": "pad with zeros, or by replication",
    "embedding_bag": "use mode sum or mean",
    "grid_sampler": "gather the neighbours by their indexes",
    "histc": "use bucketize, and bincount without weights",
    "bincount": "use one_hot(...).T @ weights",
    "scatter_reduce": "reduce by sum, mean or amax",
    "put_": "use index_put, which takes the indexes of each dimension",
    "median": "sort, and take the middle",
}
"""What else does the same, by a part of torch's name of an operation."""

logger = logging.getLogger(__name__)


class NonDeterministicError(BadConfigError):
    """An operation has no deterministic algorithm, and the training must be deterministic."""


def set_numerics(deterministic: bool | str, float32_matmul: str) -> None:
    """
    Done before anything is computed.

    :param deterministic: ``warn``: operations without a deterministic algorithm are used all the same
    :param float32_matmul: of :func:`torch.set_float32_matmul_precision`; convolutions follow, of which torch's default
        is TF32
    """
    # cuBLAS is deterministic only with a fixed workspace, chosen before its first use.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic is not False, warn_only=deterministic == "warn")
    if deterministic is not False:
        # It takes the fastest algorithm of a trial, which is another one each time.
        torch.backends.cudnn.benchmark = False
    # That shows who reads memory before it is written, and takes 3% of a step of a small GPT.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if torch.get_float32_matmul_precision() != float32_matmul:
        torch.set_float32_matmul_precision(float32_matmul)
    torch.backends.cudnn.allow_tf32 = float32_matmul != "highest"


@contextmanager
def watched(home: Path) -> Iterator[list[str]]:
    """
    Within the context, note the operations without a deterministic algorithm that torch only warns of.

    :param home: where the recipes lie, one of which may be to blame
    :return: their names, as they come
    :raises NonDeterministicError: where torch refuses one
    """
    found: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Any, *place: Any, **more: Any) -> None:
            operation = operation_of(str(message))
            if operation is None:
                show(message, *place, **more)
            elif operation not in found:
                found.append(operation)
                logger.warning(
                    "%s has no deterministic algorithm: with train.deterministic: warn the bits may be others each "
                    "time%s",
                    *(operation, _instead(operation)),
                )

        warnings.filterwarnings("default", message=_FOUND)
        warnings.showwarning = note
        try:
            yield found
        except RuntimeError as error:
            operation = operation_of(str(error))
            if operation is None:
                raise
            raise NonDeterministicError(
                f"{operation} has no deterministic algorithm, and is called {_place(error, home)}: use another "
                f"operation there{_instead(operation)}, or set train.deterministic: warn, which trains on and says "
                "that the bits may be others each time",
                operation=operation,
            ) from error


def operation_of(text: str) -> str | None:
    """The operation that torch's error or warning says to have no deterministic algorithm."""
    found = re.match(_FOUND, text)
    return None if found is None else found[1]


def _instead(operation: str) -> str:
    return next((f" ({advice})" for name, advice in _INSTEAD.items() if name in operation), "")


def _place(error: BaseException, home: Path) -> str:
    found = recipe_line(error, home)
    # There is none in a backward pass.
    return f"at {found}, in {found.function}" if found else "in the backward pass or the library"
