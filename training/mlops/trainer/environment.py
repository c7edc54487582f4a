"""What besides data, code and seed decides the bits of a training."""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path
from typing import Any, Final

import torch

from mlops.tracking.provenance import hardware, software
from mlops.trainer.parallel import Ranks

NUM_THREADS: Final = "num_threads"
"""In the environment of a training, and in the documents of its checkpoints."""

logger = logging.getLogger(__name__)


def keep_num_threads(count: int, *, leads: bool = True) -> None:
    """
    Compute with as many threads as a training has so far, also on a machine with other cores: more of them cut a sum
    into more parts, whose last bits are others.

    :param leads: whether this is the process that says so
    """
    if (own := torch.get_num_threads()) == count:
        return
    torch.set_num_threads(count)
    if leads:
        cores = len(os.sched_getaffinity(0))
        slow = f"; they share {cores} cores, which is slow: give it as many as it began with" if count > cores else ""
        logger.info("the training has had %d threads, and goes on so: here it would be %d%s", count, own, slow)


def hardware_class(device: torch.device) -> dict[str, str]:
    """
    Machines that are equal in this compute the same bits: kernels are chosen by a processor's instructions and a GPU's
    model.
    """
    gpu = device.type == "cuda"
    return {
        "machine": platform.machine(),
        "cpu": hardware()["cpu"],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name(device) if gpu else "none",
        "cuda": str(torch.version.cuda) if gpu else "none",
        "cudnn": str(torch.backends.cudnn.version()) if gpu else "none",
    }


def environment(home: Path, device: torch.device) -> dict[str, Any]:
    """Describe the environment of this process, as JSON."""
    return {
        **software(home),
        "torch": f"{torch.__version__} ({torch.version.git_version[:12]})",
        "hardware": hardware_class(device),
        # More threads cut a sum into more parts.
        NUM_THREADS: torch.get_num_threads(),
    }


def gang_environment(home: Path, ranks: Ranks, nodes: int) -> dict[str, Any]:
    """The same of a gang's process, with what the gang is."""
    return {
        **environment(home, ranks.device),
        "world_size": ranks.world_size,
        "nodes": nodes,
        "layout": ranks.parallel.model_dump(),
        "float32_matmul": torch.get_float32_matmul_precision(),
    }
