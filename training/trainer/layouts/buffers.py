"""What a model keeps beside its parameters, as a batch norm's statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, distributed, nn

if TYPE_CHECKING:
    from training.trainer.parallel import Gang


def saved_buffers(model: nn.Module) -> list[Tensor]:
    """Those that a checkpoint holds."""
    return [
        buffer
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    ]


def align_buffers(model: nn.Module, gang: Gang) -> None:
    """
    Make the saved buffers those of the first data-parallel rank.

    Else each rank would go on, and validate, with its own, and a checkpoint, which holds one, could not resume exactly.
    """
    if gang.data_world_size == 1:
        return
    groups = [None] if gang.mesh is None else [gang.mesh.get_group(name) for name in ("dp_replicate", "dp_shard")]
    for buffer in saved_buffers(model):
        for group in groups:
            distributed.broadcast(buffer, group=group, group_src=0)
