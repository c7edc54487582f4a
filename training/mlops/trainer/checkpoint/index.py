"""
A checkpoint's index: where the parts of each tensor lie, and all plain values.

One object: 16 bytes (length and CRC-32 of the header), the header, and a section for each of the checkpoint's files.
The header grows with the tensors and with the ways in which they are cut; tensors of one shape and layout share one.
The sections hold what differs from chunk to chunk. A rank reads the header and the sections of the files that it needs:
of one, where it is among as many ranks as have written the checkpoint.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from mlops.contract.checkpoint_markers import DamagedCheckpointError, Saved
from mlops.store import Store
from mlops.trainer.checkpoint.files import CheckpointFiles, Chunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

Path = tuple[str | int, ...]

_PREFIX: Final = struct.Struct("<qq")
_LENGTH: Final = struct.Struct("<q")
"""Length of the header's JSON, with which the index begins; grids and the table of sections follow."""
_ROW: Final = np.dtype([("tensor", "<u4"), ("position", "<u4"), ("crc32", "<u4"), ("start", "<i8")])
"""Row of a chunk in a section: the tensor's number, and the chunk's position in its grid."""
_SECTION: Final = np.dtype([("start", "<i8"), ("num_bytes", "<i8"), ("crc32", "<i8")])


class TensorPart(NamedTuple):
    """A tensor, or a part of one, as a rank writes it."""

    key: str
    dtype: str
    item_bytes: int
    tensor_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    start: int
    """Byte in the rank's file."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """How a tensor is cut into chunks, and which file has which. Tensors share it."""

    offsets: NDArray[np.int64]
    """``[chunks, dimensions]``: where each begins."""
    shapes: NDArray[np.int64]
    """``[chunks, dimensions]``"""
    files: NDArray[np.int64]
    """``[chunks]``: positions in the checkpoint's list of files."""
    _found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = field(default_factory=dict)

    def overlapping(self, offsets: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
        """Positions of the chunks that have something of this part of the tensor."""
        if (found := self._found.get((offsets, shape))) is None:
            begins = np.maximum(self.offsets, offsets)
            ends = np.minimum(self.offsets + self.shapes, np.add(offsets, shape))
            found = self._found[offsets, shape] = np.flatnonzero((begins < ends).all(axis=1)).tolist()
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedTensor:
    number: int
    path: Path
    """Where it belongs in the state."""
    dtype: str
    item_bytes: int
    shape: tuple[int, ...]
    grid: Grid


class Index:
    """A checkpoint's content. What it needs of the sections it reads when it is asked."""

    def __init__(self, store: Store, saved: Saved) -> None:
        """:raises DamagedCheckpointError: where the header is not what was written"""
        self._files, self._key = CheckpointFiles(store), saved.index.key
        size, crc32 = _PREFIX.unpack(self._files.read(self._key, 0, _PREFIX.size))
        if not 0 < size <= saved.index.num_bytes:
            raise DamagedCheckpointError(f"{self._key} is damaged: it names a header of {size} bytes")
        header = _parsed(bytes(self._read(_PREFIX.size, size, crc32)))
        self._first = _PREFIX.size + size
        self._sections = header.sections
        self.tensors: Mapping[str, IndexedTensor] = header.tensors
        self.values: Mapping[str, tuple[Path, Any]] = header.values
        """Path and encoded value, see :func:`mlops.trainer.checkpoint.tree.encode`."""
        self._by_file: dict[int, dict[tuple[int, int], tuple[int, int]]] = {}

    @cached_property
    def _by_number(self) -> list[IndexedTensor]:
        return list(self.tensors.values())

    def chunk(self, tensor: IndexedTensor, position: int) -> Chunk:
        """:raises DamagedCheckpointError: where the section that has it is not what was written"""
        file = int(tensor.grid.files[position])
        start, crc32 = self._section(file)[tensor.number, position]
        shape: tuple[int, ...] = tuple(tensor.grid.shapes[position].tolist())
        num_bytes = math.prod(shape) * tensor.item_bytes
        return Chunk(tuple(tensor.grid.offsets[position].tolist()), shape, file, start, num_bytes, crc32)

    def chunks_of(self, tensor: IndexedTensor) -> list[Chunk]:
        return [self.chunk(tensor, position) for position in range(len(tensor.grid.files))]

    def chunks_in(self, files: Sequence[int]) -> list[Chunk]:
        """
        All that lie in some of the checkpoint's files.

        :raises DamagedCheckpointError: where their sections are not what was written
        """
        return [
            self.chunk(self._by_number[number], position) for file in files for number, position in self._section(file)
        ]

    def _section(self, file: int) -> dict[tuple[int, int], tuple[int, int]]:
        """Start and CRC-32 of each chunk, by the tensor's number and its position."""
        if file not in self._by_file:
            section = self._sections[file]
            data = self._read(self._first + int(section["start"]), int(section["num_bytes"]), int(section["crc32"]))
            rows = np.frombuffer(data, _ROW)
            keys = zip(rows["tensor"].tolist(), rows["position"].tolist(), strict=True)
            found = zip(rows["start"].tolist(), rows["crc32"].tolist(), strict=True)
            self._by_file[file] = dict(zip(keys, found, strict=True))
        return self._by_file[file]

    def _read(self, start: int, num_bytes: int, crc32: int) -> memoryview:
        data = self._files.read(self._key, start, num_bytes)
        if zlib.crc32(data) != crc32:
            raise DamagedCheckpointError(
                f"{self._key} is damaged: the {num_bytes} bytes from byte {start} are not those that were written "
                f"(their CRC-32 is not {crc32:08x})"
            )
        return data


class IndexWriter:
    """
    What of an index stays from save to save; rank 0.

    :param files: what each file of the checkpoint holds, in its order
    :param paths: where each tensor and value belongs in the state
    """

    def __init__(self, files: Sequence[Sequence[TensorPart]], paths: Mapping[str, Path]) -> None:
        self._paths = paths
        self._numbers: dict[str, int] = {}
        facts: list[tuple[str, int, tuple[int, ...]]] = []
        chunks: list[list[tuple[int, tuple[int, ...], tuple[int, ...]]]] = []
        self._rows: list[NDArray[np.void]] = []
        for file, parts in enumerate(files):
            rows = np.zeros(len(parts), _ROW)
            numbers, positions = [], []
            for part in parts:
                number = self._numbers.setdefault(part.key, len(facts))
                if number == len(facts):
                    facts.append((part.dtype, part.item_bytes, part.tensor_shape))
                    chunks.append([])
                numbers.append(number)
                positions.append(len(chunks[number]))
                chunks[number].append((file, part.offsets, part.shape))
            rows["tensor"], rows["position"] = numbers, positions
            rows["start"] = [part.start for part in parts]
            self._rows.append(rows)
        grids: dict[tuple[Any, ...], int] = {}
        self._tensors = [
            (key, paths[key], *facts[number], grids.setdefault(tuple(chunks[number]), len(grids)))
            for key, number in self._numbers.items()
        ]
        self._grids = [(len(grid), len(grid[0][1])) for grid in grids]
        dimensions = (chain(offsets, shape) for grid in grids for _, offsets, shape in grid)
        self._dimensions = np.fromiter(chain.from_iterable(dimensions), np.int64)
        self._files = np.fromiter((file for grid in grids for file, _, _ in grid), np.int64)

    def dump(self, checksums: Sequence[Sequence[int]], values: Mapping[str, Any]) -> bytes:
        """
        :param checksums: the CRC-32s of each file's parts, in order
        :param values: encoded
        """
        sections = np.zeros(len(self._rows), _SECTION)
        body, start = [], 0
        for file, (rows, crc32) in enumerate(zip(self._rows, checksums, strict=True)):
            rows["crc32"] = crc32
            data = rows.tobytes()
            sections[file] = start, len(data), zlib.crc32(data)
            start += len(data)
            body.append(data)
        document = {
            "tensors": self._tensors,
            "grids": self._grids,
            "values": {key: (self._paths[key], value) for key, value in values.items()},
        }
        text = json.dumps(document).encode()
        arrays = (self._dimensions, self._files, sections)
        data = zlib.compress(b"".join([_LENGTH.pack(len(text)), text, *(array.tobytes() for array in arrays)]), 1)
        return b"".join([_PREFIX.pack(len(data), zlib.crc32(data)), data, *body])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    tensors: Mapping[str, IndexedTensor]
    values: Mapping[str, tuple[Path, Any]]
    sections: NDArray[np.void]


@lru_cache(maxsize=1)
def _parsed(data: bytes) -> _Header:
    """A rank that resumes opens one index several times: to look for damage, to see what it holds, and to load."""
    header = zlib.decompress(data)
    text_bytes = _LENGTH.unpack_from(header)[0]
    document = json.loads(header[_LENGTH.size : _LENGTH.size + text_bytes])
    sizes, at = document["grids"], _LENGTH.size + text_bytes
    dimensions = np.frombuffer(header, np.int64, sum(2 * number * width for number, width in sizes), at)
    files = np.frombuffer(header, np.int64, sum(number for number, _ in sizes), at + dimensions.nbytes)
    sections = np.frombuffer(header, _SECTION, offset=at + dimensions.nbytes + files.nbytes)
    grids = list(_grids(sizes, dimensions, files))
    return _Header(
        tensors={
            key: IndexedTensor(
                number=number,
                path=tuple(path),
                dtype=dtype,
                item_bytes=item_bytes,
                shape=tuple(shape),
                grid=grids[grid],
            )
            for number, (key, path, dtype, item_bytes, shape, grid) in enumerate(document["tensors"])
        },
        values={key: (tuple(path), value) for key, (path, value) in document["values"].items()},
        sections=sections,
    )


def _grids(sizes: Sequence[Sequence[int]], dimensions: NDArray[np.int64], files: NDArray[np.int64]) -> Iterator[Grid]:
    at = first = 0
    for number, width in sizes:
        boxes = dimensions[at : at + 2 * number * width].reshape(number, 2, width)
        yield Grid(offsets=boxes[:, 0], shapes=boxes[:, 1], files=files[first : first + number])
        at, first = at + 2 * number * width, first + number
