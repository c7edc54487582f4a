"""
Which checkpoints there are. Each is its marker, ``checkpoint.json``, put last: what no marker names is not there.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from mlops_provider.refs import Artifact, digest_of
from mlops_provider.step import BadConfigError
from training.store import DamagedObjectError, Store
from training.trainer.checkpoint.files import (
    CheckpointFiles,
    Chunk,
    DamagedCheckpointError,
    RankFile,
    damaged_files,
)

MARKER: Final = "checkpoint.json"
_VERSION: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A complete checkpoint, as its marker describes it."""

    step: int
    """Optimizer steps since the start."""
    meta: Mapping[str, Any]
    """What the training says of itself, as JSON."""
    best_step: int | None
    """The step of the best one of its time, if any: of itself, where it is that one."""
    folder: str
    attempt: str
    """Names the gang that wrote it."""
    world_size: int
    num_bytes: int
    """Of tensors."""
    saved_at: float
    """Unix time of the save's beginning."""
    index: Artifact
    """Which tensor lies where; zlib-compressed JSON, see :class:`Index`."""
    files: tuple[RankFile, ...]

    @property
    def marker(self) -> str:
        return f"{self.folder}/{MARKER}"

    def dump(self) -> bytes:
        body = {"v": _VERSION, **asdict(self)}
        return json.dumps({"checkpoint": body, "sha256": digest_of(body)}, indent=1).encode()

    @classmethod
    def load(cls, data: bytes, marker: str) -> Saved:
        """
        :raises DamagedCheckpointError: where this is not what :meth:`dump` wrote
        :raises BadConfigError: where another release wrote it
        """
        try:
            document = json.loads(data)
            body = document["checkpoint"]
            if digest_of(body) != document["sha256"]:
                raise ValueError("its SHA-256 does not hold")
            if (version := body.pop("v")) != _VERSION:
                # Not damaged, and so not to be passed over and removed.
                raise BadConfigError(
                    f"{marker} has version {version}, this release reads {_VERSION}: run the release that wrote it"
                )
            index = Artifact(**body.pop("index"))
            files = tuple(RankFile(**file) for file in body.pop("files"))
            return cls(**body, index=index, files=files)
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedCheckpointError(f"{marker} is damaged: {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedTensor:
    path: tuple[str | int, ...]
    """Where it belongs in the state."""
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """A checkpoint's content: where each tensor's parts lie, and all plain values."""

    tensors: Mapping[str, IndexedTensor]
    values: Mapping[str, tuple[tuple[str | int, ...], Any]]
    """Path and encoded value, see :func:`training.trainer.checkpoint.tree.encode`."""

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for tensor in self.tensors.values() for chunk in tensor.chunks]

    def dump(self) -> bytes:
        tensors = {
            key: [tensor.path, tensor.dtype, tensor.shape, [_row(chunk) for chunk in tensor.chunks]]
            for key, tensor in self.tensors.items()
        }
        return zlib.compress(json.dumps({"tensors": tensors, "values": self.values}).encode(), 1)

    @classmethod
    def load(cls, store: Store, saved: Saved) -> Index:
        """:raises DamagedCheckpointError: where it is not what was written"""
        try:
            document = json.loads(zlib.decompress(store.read(saved.index)))
        except DamagedObjectError as error:
            raise DamagedCheckpointError(str(error)) from error
        tensors = {
            key: IndexedTensor(path=tuple(path), dtype=dtype, shape=tuple(shape), chunks=tuple(map(_chunk, rows)))
            for key, (path, dtype, shape, rows) in document["tensors"].items()
        }
        return cls(
            tensors=tensors, values={key: (tuple(path), value) for key, (path, value) in document["values"].items()}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What lies under a training's ``checkpoints/``."""

    complete: Sequence[Saved]
    """With a readable marker, oldest first."""
    damaged: Mapping[str, str]
    """Folders whose marker cannot be read, and why."""
    unfinished: Sequence[str]
    """Folders without marker: being written, or left over."""

    @property
    def folders(self) -> list[str]:
        return sorted([*(saved.folder for saved in self.complete), *self.damaged, *self.unfinished])


def folder_of(place: str, step: int) -> str:
    return f"{place}/checkpoints/step-{step:08d}"


def step_of(folder: str) -> int:
    return int(folder.rpartition("step-")[2])


def read_listing(store: Store, place: str) -> Listing:
    """The checkpoints of a training, by their markers alone."""
    keys = [key.removeprefix(f"{place}/checkpoints/") for key in store.list(f"{place}/checkpoints")]
    # What a recipe's own program keeps here may be files of any name.
    names = sorted({key.partition("/")[0] for key in keys if key.startswith("step-") and "/" in key})
    complete, damaged, unfinished = [], {}, []
    for folder in (f"{place}/checkpoints/{name}" for name in names):
        marker = f"{folder}/{MARKER}"
        try:
            complete.append(Saved.load(store.get(marker), marker))
        except FileNotFoundError:
            unfinished.append(folder)
        except DamagedCheckpointError as error:
            damaged[folder] = str(error)
    return Listing(complete=complete, damaged=damaged, unfinished=unfinished)


def find_damage(store: Store, saved: Saved, share: slice = slice(None)) -> list[str]:
    """
    Read a checkpoint, or a share of its files, and check every byte that counts.

    :return: a sentence for each damaged file
    """
    try:
        index = Index.load(store, saved)
    except DamagedCheckpointError as error:
        return [str(error)]
    mine = set(range(len(saved.files))[share])
    chunks = [chunk for chunk in index.chunks if chunk.file in mine]
    return damaged_files(CheckpointFiles(store), saved.files, chunks)


def best_of(complete: Sequence[Saved]) -> Saved | None:
    """The best one, as the newest has it; None where it is not there."""
    return next((saved for saved in complete if saved.step == complete[-1].best_step), None)


def superseded(listing: Listing, *, newest: int, keep_latest: int) -> list[str]:
    """
    Folders to remove once the checkpoint of step ``newest`` is committed.

    Later ones stay: another gang may be writing them. Of those that a training can go on from the latest stay, each
    with the best one of its time: where a best one could not be written, they are older than it.
    """
    steps = {saved.step for saved in listing.complete}
    latest = [saved for saved in listing.complete if saved.best_step is None or saved.best_step in steps][-keep_latest:]
    kept = {step for saved in latest for step in (saved.step, saved.best_step)}
    return [folder for folder in listing.folders if step_of(folder) not in kept and step_of(folder) < newest]


def _row(chunk: Chunk) -> tuple[Any, ...]:
    return (chunk.offsets, chunk.shape, chunk.file, chunk.start, chunk.num_bytes, chunk.crc32)


def _chunk(row: list[Any]) -> Chunk:
    return Chunk(tuple(row[0]), tuple(row[1]), *row[2:])
