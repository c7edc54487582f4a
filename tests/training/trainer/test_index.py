"""A checkpoint's index: whatever the cut, each part finds its chunks, and no more is read than it needs."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlops.contract.checkpoint_markers import DamagedCheckpointError
from mlops.store import Store
from mlops.trainer.checkpoint.files import CheckpointFiles
from mlops.trainer.checkpoint.index import Index, IndexWriter, TensorPart


def cut(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """First row and number of a rank's, as ``torch.chunk`` cuts: the last ranks may have less, or none."""
    each = -(-rows // ranks)
    first = min(rows, rank * each)
    return first, min(rows, first + each) - first


def written(folder: Path, ranks: int, tensors: dict[str, tuple[int, ...]]) -> tuple[Store, Any, dict[Any, Any]]:
    """The index of a checkpoint, and what it should say: start and checksum by key and first row."""
    chance, expected = random.Random(ranks), {}
    files, checksums = [], []
    for rank in range(ranks):
        parts, start = [], 0
        for key, shape in tensors.items():
            first, rows = cut(shape[0], ranks, rank) if shape else (0, int(rank == len(key) % ranks))
            if not shape and not rows:
                continue
            offsets, own = ((first, *[0] * (len(shape) - 1)), (rows, *shape[1:])) if shape else ((), ())
            parts.append(TensorPart(key, "float32", 4, shape, offsets, own, start))
            expected[key, rank] = (start, chance.randrange(1 << 32))
            start += 1000
        chance.shuffle(parts)
        files.append(parts)
        checksums.append([expected[part.key, rank][1] for part in parts])
    writer = IndexWriter(files, {key: tuple(key.split(".")) for key in tensors} | {"lr": ("lr",)})
    store = Store(f"file://{folder}")
    data = writer.dump(checksums, {"lr": 0.1})
    return store, SimpleNamespace(index=store.put_artifact("place", "index.sections", data)), expected


TENSORS = {"a.weight": (10, 3), "b.weight": (10, 3), "c": (7,), "tiny": (2, 5), "step": ()}


@pytest.mark.parametrize("ranks", [1, 4, 8])
@pytest.mark.parametrize("readers", [1, 3, 8])
def test_each_part_finds_its_chunks_at_any_number_of_ranks(tmp_path: Path, ranks: int, readers: int) -> None:
    """Broken: a training that goes on with more or fewer processes would miss a part of a tensor."""
    store, saved, expected = written(tmp_path, ranks, TENSORS)
    index = Index(store, saved)
    assert index.values == {"lr": (("lr",), 0.1)}
    for key, shape in TENSORS.items():
        covered = set()
        for reader in range(readers):
            first, rows = cut(shape[0], readers, reader) if shape else (0, 1)
            offsets, own = ((first, *[0] * (len(shape) - 1)), (rows, *shape[1:])) if shape else ((), ())
            for position in index.tensors[key].grid.overlapping(offsets, own):
                chunk = index.chunk(index.tensors[key], position)
                assert (chunk.start, chunk.crc32) == expected[key, chunk.file]
                begin, end = (chunk.offsets[0], chunk.offsets[0] + chunk.shape[0]) if shape else (0, 1)
                covered |= set(range(max(begin, first), min(end, first + rows)))
        assert covered == set(range(shape[0] if shape else 1))
    assert len(index.chunks_in(range(ranks))) == len(expected)


def test_a_rank_of_the_same_size_reads_one_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: each of 1,024 ranks would read what all have written, for 14 s of a processor."""
    store, saved, _ = written(tmp_path, 8, {f"t{number}": (16, 4) for number in range(50)})
    reads: list[int] = []
    read = CheckpointFiles.read

    def counted(self: CheckpointFiles, key: str, start: int, num_bytes: int) -> memoryview:
        reads.append(num_bytes)
        return read(self, key, start, num_bytes)

    monkeypatch.setattr(CheckpointFiles, "read", counted)
    index = Index(store, saved)
    for tensor in index.tensors.values():
        (position,) = tensor.grid.overlapping((6, 0), (2, 4))
        assert index.chunk(tensor, position).file == 3
    assert len(reads) == 3, "the length of the header, the header, and a section"
    assert sum(reads) < saved.index.num_bytes / 2


def test_damage_anywhere_in_the_index_is_found(tmp_path: Path) -> None:
    """Broken: weights would be read from a wrong place."""
    store, saved, _ = written(tmp_path, 4, TENSORS)
    path = tmp_path / saved.index.key
    whole = path.read_bytes()
    for position in [*range(0, 16), *range(16, len(whole), 37)]:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DamagedCheckpointError):
            Index(store, saved).chunks_in(range(4))
