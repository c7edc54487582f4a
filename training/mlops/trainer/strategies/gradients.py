"""The global norm of gradients that many ranks hold in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def sum_whole(parameters: Iterable[nn.Parameter], mesh: DeviceMesh, num_ranks: int) -> None:
    """
    Average, over data-parallel ranks, the gradients of parameters that sharding left whole: those of no dimension.

    FSDP2 does so with all others.
    """
    for parameter in parameters:
        if parameter.ndim == 0 and not isinstance(parameter, DTensor) and parameter.grad is not None:
            for name in ("dp_replicate", "dp_shard"):
                distributed.all_reduce(parameter.grad, group=mesh.get_group(name))
            parameter.grad.div_(num_ranks)


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Complete gradients that are partial sums, as those of whole weights on sliced activations."""
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
            assert isinstance(parameter, DTensor), "a gradient is placed as its parameter"
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def local(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """This rank's part of each gradient; the same memory."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]


def global_norm(parameters: Sequence[nn.Parameter], place: Mapping[str, int], device: torch.device) -> Tensor:
    """
    The 2-norm over all parameters of the whole model; the same bits on every rank. Called by all.

    :param place: this rank's coordinates in the mesh
    """
    counted = local(parameter for parameter in parameters if _counts(parameter, place))
    norm = torch.nn.utils.get_total_norm(counted) if counted else torch.zeros((), device=device)
    square = norm.square()
    distributed.all_reduce(square)
    return square.sqrt()


def _counts(parameter: nn.Parameter, place: Mapping[str, int]) -> bool:
    # Of equal copies only the one at coordinate 0 is counted; stages of a pipeline hold no copies.
    sliced: set[str] = set()
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        sliced = {name for name, how in zip(names, parameter.placements, strict=True) if not how.is_replicate()}
    return all(place[name] == 0 for name in ("dp_replicate", "dp_shard", "tp") if name not in sliced)
