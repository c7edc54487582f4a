"""Why a process that was given a GPU cannot use it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from mlops.contract.step import StepError

_GIVEN = "NVIDIA_VISIBLE_DEVICES"
"""Set by NVIDIA's container runtime; a device plugin names the GPUs of a pod in it."""
_NONE_GIVEN = ("", "all", "none", "void")
"""``all`` also stands in images that run without any."""


class NoGpuError(StepError):
    """This process was given a GPU that it cannot use. Another node may do better."""


def check_gpus(environment: Mapping[str, str] = os.environ) -> None:
    """
    Refuse to train on the CPU where a GPU was given.

    :raises NoGpuError: naming the driver, or torch's build
    """
    given = environment.get(_GIVEN, "")
    if torch.cuda.is_available() or given in _NONE_GIVEN or environment.get("CUDA_VISIBLE_DEVICES") == "":
        return
    if torch.version.cuda is None and torch.version.hip is None:
        why = (
            f"torch {torch.__version__} of this environment is built without CUDA; build the image with one that has it"
        )
    else:
        why = _what_cuda_says()
    raise NoGpuError(f"this process was given the GPU {given} ({_GIVEN}) and cannot use it: {why}")


def _what_cuda_says() -> str:
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # as that the driver is too old, with its version
        return str(error).splitlines()[0]
    return "torch finds no device"
