"""Computing in 16 bits over weights of 32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mlops_provider.step import BadConfigError

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def dtype_of(precision: str) -> torch.dtype | None:
    """What matrices are multiplied in; None: as the weights are."""
    if precision not in DTYPES:
        raise BadConfigError(f"train.precision must be one of {', '.join(DTYPES)}, got {precision!r}")
    return DTYPES[precision]


def autocast(model: nn.Module, dtype: torch.dtype, device_type: str, *, widen: bool) -> None:
    """
    Let a model compute in ``dtype`` what is safe there. In place.

    :param widen: return float32, so that a loss is computed in it
    """
    forward: Callable[..., Any] = torch.autocast(device_type, dtype)(model.forward)

    @wraps(forward)
    def widened(*args: Any, **kwargs: Any) -> Any:
        return tree_map_only(Tensor, _widen, forward(*args, **kwargs))

    model.forward = widened if widen else forward


class LossScale:
    """
    Dynamic loss scaling for float16 (Micikevicius et al. 2018), with the numbers of ``torch.amp.GradScaler``.

    An overflow is read from the gradients' global norm. It is the same on every rank of every layout, and needed
    anyway, so that neither another pass over the gradients nor another all-reduce is made.
    """

    GROWTH_STEPS = 2000
    LARGEST = 2.0**24

    def __init__(self, scale: float = 2.0**16) -> None:
        self.scale = scale
        self.steps_since_change = 0

    @property
    def can_shrink(self) -> bool:
        """Whether an overflow may be the scale's fault; otherwise it is the model's."""
        return self.scale > 1.0

    def update(self, *, overflowed: bool) -> None:
        self.steps_since_change += 1
        if overflowed:
            self.scale, self.steps_since_change = max(self.scale / 2, 1.0), 0
        elif self.steps_since_change == self.GROWTH_STEPS:
            self.scale, self.steps_since_change = min(self.scale * 2, self.LARGEST), 0

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "steps_since_change": self.steps_since_change}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.scale = float(state["scale"])
        self.steps_since_change = int(state["steps_since_change"])


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
