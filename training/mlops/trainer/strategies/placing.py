"""Optimizers that look at whole matrices, on matrices that many ranks hold in part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from torch import optim
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_BY_ELEMENT: Final = (
    *(optim.Adam, optim.AdamW, optim.SGD, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adamax, optim.NAdam),
    *(optim.RAdam, optim.ASGD, optim.Rprop),
)
"""They treat each number on its own, so that a rank's slice is all they need."""

_ON_THE_WHOLE: Final = frozenset(
    {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "norm", "linalg_norm"}
    | {"linalg_vector_norm", "linalg_matrix_norm", "linalg_svd", "linalg_qr", "linalg_eigh", "svd", "qr", "mean", "sum"}
)


def placing(optimizer: optim.Optimizer) -> AbstractContextManager[object]:
    """What the optimizer's step is taken in, where parameters may be DTensors."""
    return nullcontext() if type(optimizer) in _BY_ELEMENT else KeepPlacement()


class KeepPlacement(TorchFunctionMode):
    """
    Makes room for torch operations that DTensor refuses: those in place that would change where a tensor lies.

    The others' slices are fetched first, and a partial sum or norm is completed as soon as it is made. Adafactor and
    Muon of torch 2.13 need that, and whatever a recipe writes in their manner.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        from torch.distributed.tensor import DTensor

        name = getattr(function, "__name__", "")
        # Not by the types that are given: DTensor counts as none.
        if name.endswith("_") and not name.endswith("__") and args and isinstance(args[0], DTensor):
            target = args[0]

            def placed(value: Any) -> Any:
                if isinstance(value, DTensor) and value is not target and value.placements != target.placements:
                    return _aligned(value, target)
                return value

            args = (target, *tree_map(placed, args[1:]))
            kwargs = tree_map(placed, dict(kwargs or {}))
        elif name in _ON_THE_WHOLE:
            # As one process would: sums of slices round otherwise, which Muon's 16-bit iteration magnifies.
            args, kwargs = tree_map(_whole, tuple(args)), tree_map(_whole, dict(kwargs or {}))
        return tree_map(_completed, function(*args, **(kwargs or {})))


def _aligned(value: Any, target: Any) -> Any:
    from torch.distributed.tensor import Replicate

    if value.shape == target.shape:
        return value.redistribute(placements=target.placements)
    # What is broadcast along a sliced dimension has no slices of it.
    return value.redistribute(placements=[Replicate()] * len(target.placements))


def _whole(value: Any) -> Any:
    from torch.distributed.tensor import DTensor, Replicate

    if isinstance(value, DTensor) and not all(placement.is_replicate() for placement in value.placements):
        return value.redistribute(placements=[Replicate()] * len(value.placements))
    return value


def _completed(value: Any) -> Any:
    from torch.distributed.tensor import DTensor, Replicate

    if isinstance(value, DTensor) and any(placement.is_partial() for placement in value.placements):
        placements = [Replicate() if placement.is_partial() else placement for placement in value.placements]
        return value.redistribute(placements=placements)
    return value
