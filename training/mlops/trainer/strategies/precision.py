"""Computing in 16 bits over weights of 32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mlops.contract.step import BadConfigError

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

    It stays on the device, as does the decision on an overflow: to read either would make the host wait for the GPU.
    All scales are powers of two, so that scaling there and back changes no bit.
    """

    GROWTH_STEPS = 2000
    LARGEST = 2.0**24

    def __init__(self, scale: float = 2.0**16, device: torch.device | None = None) -> None:
        self.scale = torch.tensor(scale, dtype=torch.float32, device=device)
        """Where it is above 1, an overflow may be its fault; otherwise it is the model's."""
        self._steps_since_change = torch.tensor(0, device=device)

    def update(self, overflowed: Tensor) -> None:
        """:param overflowed: a bool"""
        steps = self._steps_since_change + 1
        grown = steps == self.GROWTH_STEPS
        larger = torch.where(grown, (self.scale * 2).clamp(max=self.LARGEST), self.scale)
        self.scale = torch.where(overflowed, (self.scale / 2).clamp(min=1.0), larger)
        self._steps_since_change = torch.where(overflowed | grown, 0, steps)

    def state_dict(self) -> dict[str, float]:
        return {"scale": float(self.scale), "steps_since_change": int(self._steps_since_change)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.scale = torch.full_like(self.scale, float(state["scale"]))
        self._steps_since_change = torch.full_like(self._steps_since_change, int(state["steps_since_change"]))


def step_unless(overflowed: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """
    Take the optimizer's step, or leave parameters and states as they are.

    A fused optimizer decides on the device, by the two attributes that ``torch.amp.GradScaler`` sets. For any other the
    host waits; so it does before the first step, for torch 2.13's fused SGD would take momentum that was never written.

    :param overflowed: a bool
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False) or not optimizer.state:
        if not bool(overflowed):
            optimizer.step()
        return
    scaled: Any = optimizer
    # The gradients are unscaled already.
    scaled.grad_scale, scaled.found_inf = None, overflowed.float()
    try:
        optimizer.step()
    finally:
        del scaled.grad_scale, scaled.found_inf


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
