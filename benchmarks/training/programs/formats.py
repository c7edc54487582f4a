"""The same table in the formats of other loaders, and how each is read in shuffled batches, in the process itself."""

from __future__ import annotations

import importlib.machinery
import io
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import webdataset
from torch.utils.data import BatchSampler, Dataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.training.programs.workloads import SEED

FloatArray = npt.NDArray[np.float32]
BATCH: Final = 1024
"""Rows, of every contender."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """One contender."""

    description: str
    num_rows: int
    """That it reads in one go. Readers by the row take seconds for what the others read in milliseconds."""
    batches: Callable[[], Iterator[Sequence[Any]]]
    """Features ``[B, F]`` and labels ``[B]`` of each batch, shuffled."""


class Rows(Dataset[Any]):
    """A memory map, gathered by the batch: what torch's own loader does best."""

    def __init__(self, features: FloatArray, labels: FloatArray) -> None:
        self._features, self._labels = features, labels

    def __len__(self) -> int:
        return len(self._features)

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self._features[rows]), torch.from_numpy(self._labels[rows])


def plain(features: FloatArray, labels: FloatArray) -> Iterator[Sequence[Any]]:
    """The plain gather: one permutation, rows out of a memory map."""
    order = np.random.default_rng(SEED).permutation(len(features))
    for first in range(0, len(order), BATCH):
        rows = order[first : first + BATCH]
        yield torch.from_numpy(features[rows]), torch.from_numpy(labels[rows])


def stateful(features: FloatArray, labels: FloatArray) -> Iterator[Sequence[Any]]:
    rows = Rows(features, labels)
    sampler = BatchSampler(RandomSampler(rows), BATCH, drop_last=False)
    return iter(StatefulDataLoader(rows, batch_sampler=sampler, collate_fn=lambda batch: batch, num_workers=0))


def write_webdataset(folder: Path, features: FloatArray, labels: FloatArray, rows: int) -> str:
    """
    :param rows: of a member of the archive: 1, or a block
    """
    folder.mkdir()
    with webdataset.ShardWriter(str(folder / "%05d.tar"), maxcount=50_000, verbose=0) as writer:
        for first in range(0, len(features), rows):
            block = np.column_stack([features[first : first + rows], labels[first : first + rows]])
            buffer = io.BytesIO()
            np.save(buffer, block)
            writer.write({"__key__": f"{first:08d}", "npy": buffer.getvalue()})
    return f"{folder}/{{00000..{len(list(folder.glob('*.tar'))) - 1:05d}}}.tar"


def read_webdataset(urls: str, rows: int) -> Iterator[Sequence[Any]]:
    dataset = webdataset.WebDataset(urls, shardshuffle=10, empty_check=False).shuffle(max(10, 10_000 // rows)).decode()
    for (blocks,) in dataset.to_tuple("npy").batched(BATCH // rows):
        array = torch.from_numpy(np.concatenate([np.atleast_2d(block) for block in blocks]))
        yield array[:, :-1], array[:, -1]


def mosaic() -> Any:
    """
    MosaicML Streaming's core.

    Its package imports torchvision for data sets of pictures, whose builds on PyPI are for CUDA: the package is taken
    for imported, so that only ``streaming.base`` is.
    """
    found = importlib.machinery.PathFinder.find_spec("streaming")
    assert found is not None, "benchmarks/peers is installed"
    package = types.ModuleType("streaming")
    package.__path__ = list(found.submodule_search_locations or [])
    sys.modules.setdefault("streaming", package)
    import streaming.base

    return streaming.base


def write_mosaic(folder: Path, features: FloatArray, labels: FloatArray) -> None:
    columns = {"features": f"ndarray:float32:{features.shape[1]}", "label": "float32"}
    with mosaic().MDSWriter(out=str(folder), columns=columns) as writer:
        for row, label in zip(features, labels, strict=True):
            writer.write({"features": row, "label": label})


def read_mosaic(folder: Path) -> Iterator[Sequence[Any]]:
    base = mosaic()
    dataset = base.StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)
    for batch in base.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0):
        yield batch["features"], batch["label"]


class Indexed:
    """What litdata's writer calls for each row."""

    def __init__(self, features: FloatArray, labels: FloatArray) -> None:
        self._block = np.column_stack([features, labels])

    def __call__(self, row: int) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = self._block[row]
        return values


def write_litdata(folder: Path, features: FloatArray, labels: FloatArray) -> None:
    import litdata

    rows = Indexed(features, labels)
    litdata.optimize(rows, list(range(len(features))), str(folder), num_workers=1, chunk_bytes="64MB", verbose=False)


def read_litdata(folder: Path) -> Iterator[Sequence[Any]]:
    import litdata

    dataset = litdata.StreamingDataset(str(folder), shuffle=True, seed=SEED)
    for batch in litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0):
        yield batch[:, :-1], batch[:, -1]
