"""Which process does what: the sizes of the parallel dimensions, and torch's mesh over them."""

from __future__ import annotations

from datetime import timedelta
from math import prod

from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from mlops.contract.sections.train import Parallel
from mlops.contract.step import BadConfigError

DIMENSIONS = ("pp", "dp_replicate", "dp_shard", "tp")
"""Outermost first: neighbouring ranks, on one node, share the dimension that talks most."""


def resolve(parallel: Parallel, world_size: int) -> Parallel:
    """
    The sizes with ``dp_replicate: -1`` replaced by what the other dimensions leave.

    :raises BadConfigError: where the product is not the number of processes
    """
    sizes = {name: getattr(parallel, name) for name in DIMENSIONS if name != "dp_replicate"}
    others = prod(sizes.values())
    said = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    if parallel.dp_replicate == -1:
        if world_size % others:
            raise BadConfigError(
                f"train.parallel: {said} = {others} does not divide the {world_size} processes: "
                f"start a multiple of {others}, or make a dimension smaller"
            )
        return parallel.model_copy(update={"dp_replicate": world_size // others})
    if parallel.dp_replicate * others != world_size:
        whole = f"dp_replicate {parallel.dp_replicate}" + (f" x {said}" if said else "")
        raise BadConfigError(
            f"train.parallel: {whole} = {parallel.dp_replicate * others}, but there are {world_size} processes: "
            "start as many, or leave dp_replicate out, which then takes the rest"
        )
    return parallel


def coordinates(parallel: Parallel, rank: int) -> dict[str, int]:
    """Where a rank sits on each dimension."""
    place = {}
    for name in reversed(DIMENSIONS):
        rank, place[name] = divmod(rank, getattr(parallel, name))
    return place


def device_mesh(parallel: Parallel, device_type: str, timeout: timedelta) -> DeviceMesh:
    """The mesh of resolved sizes, over all processes. Called by all ranks."""
    shape = tuple(getattr(parallel, name) for name in DIMENSIONS)
    mesh = init_device_mesh(device_type, shape, mesh_dim_names=DIMENSIONS)
    for name in DIMENSIONS:
        # A group that a mesh makes does not inherit the timeout of the whole, and a mesh has no argument for it.
        if distributed.get_backend(mesh.get_group(name)) in ("gloo", "nccl"):
            distributed.distributed_c10d._set_pg_timeout(timeout, mesh.get_group(name))
    return mesh
