"""How much of its hardware a training uses."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mlops.data.shards.loader import Batch

PEAK_FLOPS: Final = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "L4": 121e12, "L40S": 362e12}
"""Peak FLOP/s of a GPU, dense bf16 by tensor cores, from NVIDIA's data sheets; by a part of its name."""


def flops_per_sample(model: nn.Module, batch: Batch, rows_per_sample: float) -> float:
    """
    Floating-point operations of a forward and a backward pass, by one forward pass that changes nothing.

    Matrix products and convolutions count; a backward pass is taken for two forward passes, and what activation
    checkpointing computes again does not count (model FLOPs as in PaLM, Chowdhery et al. 2022, appendix B). Neither
    does padding.

    :param rows_per_sample: on average; where grouped, those of the batch may be longer or shorter
    """
    was_training = model.training
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(batch.features)
    model.train(was_training)
    rows = len(batch.weights) if batch.mask is None else batch.mask.numel()
    return 3 * int(counter.get_total_flops()) / rows * rows_per_sample


def peak_flops(device: torch.device) -> float | None:
    """Return the peak FLOP/s of one device, or None for an unknown model."""
    if device.type != "cuda":
        return None
    words = torch.cuda.get_device_name(device).replace("-", " ").split()
    return next((flops for name, flops in PEAK_FLOPS.items() if name in words), None)
