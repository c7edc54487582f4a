"""Reading a checkpoint into a state of any world size and layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.tensor import DTensor

from mlops.contract.checkpoint_markers import Saved
from mlops.contract.step import BadConfigError
from mlops.store import Store
from mlops.trainer.checkpoint.files import CheckpointFiles, Chunk, read_chunks
from mlops.trainer.checkpoint.index import Index
from mlops.trainer.checkpoint.tree import Contents, TensorFacts, decode, flatten, put_leaf, unflatten


def contents(store: Store, saved: Saved) -> Contents:
    """What a checkpoint holds, without its tensors' bytes."""
    index = Index(store, saved)
    return Contents(
        tensors={each.path: TensorFacts(each.shape, getattr(torch, each.dtype)) for each in index.tensors.values()},
        values={path: decode(value) for path, value in index.values.values()},
    )


def load_into(store: Store, saved: Saved, state: dict[str, Any]) -> None:
    """
    Fill a state in place. No collective: each rank reads the parts that its tensors overlap.

    :raises BadConfigError: where the state has what the checkpoint lacks, or in another shape
    :raises DamagedCheckpointError: naming the file
    """
    index, flat = Index(store, saved), flatten(state)
    _check(saved, index, flat.tensors, set(flat.values))
    wanted = wanted_chunks(index, flat.tensors)

    def copy(chunk: Chunk, data: memoryview) -> None:
        for dtype, offsets, target in wanted[chunk]:
            begins = [max(*pair) for pair in zip(offsets, chunk.offsets, strict=True)]
            ends = [
                min(*pair) for pair in zip(_ends(offsets, target.shape), _ends(chunk.offsets, chunk.shape), strict=True)
            ]
            lengths = [end - begin for begin, end in zip(begins, ends, strict=True)]
            source = _narrowed(_tensor(data, dtype, chunk.shape), begins, chunk.offsets, lengths)
            with torch.no_grad():
                _narrowed(target, begins, offsets, lengths).copy_(source)

    read_chunks(CheckpointFiles(store), saved.files, list(wanted), copy)
    for key in flat.values:
        put_leaf(state, flat.paths[key], decode(index.values[key][1]))


def wanted_chunks(
    index: Index, tensors: Mapping[str, torch.Tensor]
) -> dict[Chunk, list[tuple[str, tuple[int, ...], torch.Tensor]]]:
    """
    The chunks that this rank's parts of some tensors overlap.

    :return: for each its type, where the part begins in the whole tensor, and the part
    """
    local = _LocalParts()
    wanted: dict[Chunk, list[tuple[str, tuple[int, ...], torch.Tensor]]] = {}
    for key, tensor in tensors.items():
        item = index.tensors[key]
        offsets, target = local.of(tensor)
        for position in item.grid.overlapping(offsets, tuple(target.shape)):
            wanted.setdefault(index.chunk(item, position), []).append((item.dtype, offsets, target))
    return wanted


def load_whole(store: Store, saved: Saved, part: str | None = None) -> dict[str, Any]:
    """
    Full tensors on the CPU, without process group.

    :param part: only what is under this first key, e.g. ``model``
    :raises DamagedCheckpointError: naming the file
    """
    index = Index(store, saved)
    tensors = {key: item for key, item in index.tensors.items() if part in (None, item.path[0])}
    leaves: dict[str, Any] = {
        key: torch.empty(item.shape, dtype=getattr(torch, item.dtype)) for key, item in tensors.items()
    }
    owner = {chunk: key for key, item in tensors.items() for chunk in index.chunks_of(item)}

    def copy(chunk: Chunk, data: memoryview) -> None:
        key = owner[chunk]
        source = _tensor(data, tensors[key].dtype, chunk.shape)
        narrow_tensor_by_index(leaves[key], chunk.offsets, chunk.shape).copy_(source)

    read_chunks(CheckpointFiles(store), saved.files, list(owner), copy)
    values = {key: item for key, item in index.values.items() if part in (None, item[0][0])}
    leaves |= {key: decode(value) for key, (_, value) in values.items()}
    paths = {key: item.path for key, item in tensors.items()} | {key: path for key, (path, _) in values.items()}
    return unflatten(leaves, paths)


def _check(saved: Saved, index: Index, tensors: Mapping[str, torch.Tensor], values: set[str]) -> None:
    for missing in (sorted(set(tensors) - set(index.tensors)), sorted(values - set(index.values))):
        if missing:
            raise BadConfigError(
                f"the checkpoint {saved.folder} has no {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}: "
                "the model or the optimizer has changed since; train from the start, under another run key"
            )
    for key, tensor in tensors.items():
        if tuple(tensor.shape) != index.tensors[key].shape:
            raise BadConfigError(
                f"{key} is {list(index.tensors[key].shape)} in the checkpoint {saved.folder} and {list(tensor.shape)} "
                "in this training: the model has changed since; train from the start, under another run key"
            )


class _LocalParts:
    """What this rank holds of each tensor; computed once for all of one shape and layout."""

    def __init__(self) -> None:
        self._offsets: dict[Any, tuple[int, ...]] = {}

    def of(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor]:
        """:return: where the part begins in the whole, and the part itself"""
        if not isinstance(tensor, DTensor):
            return (0,) * tensor.ndim, tensor.detach()
        layout = (tensor.shape, tensor.device_mesh, tensor.placements)
        if layout not in self._offsets:
            [chunk] = _create_chunk_list(tensor)
            self._offsets[layout] = tuple(chunk.offsets)
        return self._offsets[layout], tensor.to_local().detach()


def _ends(offsets: Sequence[int], shape: Sequence[int]) -> list[int]:
    return [offset + size for offset, size in zip(offsets, shape, strict=True)]


def _narrowed(
    tensor: torch.Tensor, begins: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]
) -> torch.Tensor:
    """A part of a tensor that itself begins at ``offsets`` of a whole."""
    return narrow_tensor_by_index(
        tensor, [begin - offset for begin, offset in zip(begins, offsets, strict=True)], lengths
    )


def _tensor(data: memoryview, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8).view(getattr(torch, dtype)).view(shape)
