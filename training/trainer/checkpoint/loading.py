"""Reading a checkpoint into a state of any world size and layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from mlops_provider.step import BadConfigError
from training.store import Store
from training.trainer.checkpoint.committed import Index, IndexedTensor, Saved
from training.trainer.checkpoint.files import CheckpointFiles, Chunk, read_chunks
from training.trainer.checkpoint.tree import decode, flatten, put_leaf, unflatten


def load_into(store: Store, saved: Saved, state: dict[str, Any]) -> None:
    """
    Fill a state in place. No collective: each rank reads the parts that its tensors overlap.

    :raises BadConfigError: where the state has what the checkpoint lacks, or in another shape
    :raises DamagedCheckpointError: naming the file
    """
    index, flat = Index.load(store, saved), flatten(state)
    _check(saved, index, flat.tensors, set(flat.values))
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(flat.tensors), _metadata({key: index.tensors[key] for key in flat.tensors}))
    wanted: dict[Chunk, list[ReadItem]] = {}
    for item in planner.create_local_plan().items:
        wanted.setdefault(_chunk_of(index, item), []).append(item)

    def copy(chunk: Chunk, data: memoryview) -> None:
        for item in wanted[chunk]:
            source = _tensor(data, index.tensors[item.storage_index.fqn].dtype, chunk.shape)
            with torch.no_grad():
                planner.resolve_tensor(item).copy_(narrow_tensor_by_index(source, item.storage_offsets, item.lengths))

    read_chunks(CheckpointFiles(store), saved.files, list(wanted), copy)
    for key in flat.values:
        put_leaf(state, flat.paths[key], decode(index.values[key][1]))


def load_whole(store: Store, saved: Saved, part: str | None = None) -> dict[str, Any]:
    """
    Full tensors on the CPU, without process group.

    :param part: only what is under this first key, e.g. ``model``
    :raises DamagedCheckpointError: naming the file
    """
    index = Index.load(store, saved)
    tensors = {key: item for key, item in index.tensors.items() if part in (None, item.path[0])}
    leaves: dict[str, Any] = {
        key: torch.empty(item.shape, dtype=getattr(torch, item.dtype)) for key, item in tensors.items()
    }
    owner = {chunk: key for key, item in tensors.items() for chunk in item.chunks}

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


def _metadata(tensors: Mapping[str, IndexedTensor]) -> Metadata:
    return Metadata(
        state_dict_metadata={
            key: TensorStorageMetadata(
                properties=TensorProperties(dtype=getattr(torch, tensor.dtype)),
                size=torch.Size(tensor.shape),
                chunks=[
                    ChunkStorageMetadata(offsets=torch.Size(chunk.offsets), sizes=torch.Size(chunk.shape))
                    for chunk in tensor.chunks
                ],
            )
            for key, tensor in tensors.items()
        }
    )


def _chunk_of(index: Index, item: ReadItem) -> Chunk:
    position = item.storage_index.index
    assert position is not None, "the load plan names chunks by their position"
    return index.tensors[item.storage_index.fqn].chunks[position]


def _tensor(data: memoryview, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8).view(getattr(torch, dtype)).view(shape)
