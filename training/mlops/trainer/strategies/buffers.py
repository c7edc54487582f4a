"""What a model keeps beside its parameters, as a batch norm's statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn

if TYPE_CHECKING:
    from mlops.trainer.parallel import Ranks


def saved_buffers(model: nn.Module) -> list[Tensor]:
    """Return the buffers that a checkpoint holds."""
    return [
        buffer
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    ]


def align_buffers(model: nn.Module, ranks: Ranks) -> None:
    """
    Make the saved buffers those of the first data-parallel rank.

    Else each rank would go on, and validate, with its own, and a checkpoint, which holds one, could not resume exactly.
    """
    if ranks.data_world_size == 1:
        return
    groups = [None] if ranks.mesh is None else [ranks.mesh.get_group(name) for name in ("dp_replicate", "dp_shard")]
    buffers = saved_buffers(model)
    for alike in _by_type(buffers):
        # A model has few types of buffers, and hundreds of small ones: a broadcast takes longer than their bytes.
        whole = torch.cat([buffer.reshape(-1) for buffer in alike])
        for group in groups:
            distributed.broadcast(whole, group=group, group_src=0)
        parts = whole.split([buffer.numel() for buffer in alike])
        torch._foreach_copy_(alike, [part.view(buffer.shape) for part, buffer in zip(parts, alike, strict=True)])


def _by_type(buffers: Sequence[Tensor]) -> Sequence[list[Tensor]]:
    found: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for buffer in buffers:
        found.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    return list(found.values())
