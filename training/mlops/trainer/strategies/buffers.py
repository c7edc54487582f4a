"""What a model keeps beside what it learns, as a batch norm's statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, distributed, nn

from mlops.contract.step import BadConfigError
from mlops.random_states import random_states_kept
from mlops.trainer.parallel import Ranks

_OTHER: Final = 0.99
"""Factor of learnt weights that makes others of them, and no larger ones."""


def named_saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a checkpoint holds, by name."""
    return {
        f"{place}.{name}" if place else name: buffer
        for place, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }


def saved_buffers(model: nn.Module) -> list[Tensor]:
    """Return the buffers that a checkpoint holds."""
    return list(named_saved_buffers(model).values())


def unlearnt(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what no optimizer changes but a forward pass may, by name: buffers, and parameters without gradient."""
    yield from model.named_buffers()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            yield name, parameter


@contextmanager
def without_trace(model: nn.Module, device: torch.device, *, others: bool = False) -> Iterator[Callable[[], list[str]]]:
    """
    Put back, at the end, what forward passes within have changed: what :func:`unlearnt` yields, and random states.

    :param others: whether the learnt parameters are others within, where there are some without gradient: a momentum
        teacher (as of MoCo) begins as a copy of them, and its mean with them would move only once they have learnt
    :return: a function that returns the names of what has changed so far
    """
    # On the host, where the model was built: a device may have no room for two frozen backbones.
    before = {name: tensor.detach().to("cpu", copy=True) for name, tensor in unlearnt(model)}
    parameters = list(model.parameters()) if others else []
    learnt = [parameter for parameter in parameters if parameter.requires_grad]
    if len(learnt) == len(parameters):
        learnt = []
    # On the host: there may be no room for another copy beside the gradients and activations of the pass.
    kept = [parameter.detach().to("cpu", copy=True) for parameter in learnt]

    def changed() -> list[str]:
        return [name for name, tensor in unlearnt(model) if name not in before or not _same(before[name], tensor.cpu())]

    try:
        with torch.no_grad():
            for parameter in learnt:
                parameter.mul_(_OTHER)
        with random_states_kept():
            yield changed
    finally:
        with torch.no_grad():
            for parameter, value in zip(learnt, kept, strict=True):
                parameter.copy_(value)
            for name, tensor in unlearnt(model):
                # One that a first pass has made stays, as it does where it is made later.
                if name in before and before[name].shape == tensor.shape:
                    tensor.copy_(before[name])


def saved_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the buffers that a checkpoint holds, by name."""
    return {name: tuple(buffer.shape) for name, buffer in named_saved_buffers(model).items()}


def refuse_other_shapes(model: nn.Module, built: Mapping[str, tuple[int, ...]]) -> None:
    """
    Compare the saved buffers with those of the model as it was built: of others, a checkpoint could not be loaded.

    :param built: of :func:`saved_shapes`
    :raises BadConfigError: naming the first that differs
    """
    now = saved_shapes(model)
    for name in {**built, **now}:
        if built.get(name) != now.get(name):
            was, is_ = (f"of the shape {list(each[name])}" if name in each else "not there" for each in (built, now))
            raise BadConfigError(
                f"train.model: the buffer {name} was {was} when the training began, and is {is_} now: the checkpoint "
                "could not be loaded into the model that train.model builds. Register it at its full size there and "
                "fill it, or register it with persistent=False where it can be made again"
            )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


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
