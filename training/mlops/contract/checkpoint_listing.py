"""
Which checkpoints a training has, whoever wrote them, by the names and sizes of what lies there.

``step-00000120-g0003/`` is the checkpoint of a step by the process group of generation 3, ``best-00000100-g0003/`` the
second copy of a best model's weights. What no marker names is not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from mlops.contract.checkpoint_markers import (
    MARKER,
    RETIRED,
    SET_ASIDE,
    DamagedCheckpointError,
    RankFile,
    Saved,
    check_size,
)

# Without a generation: of releases before there were any. Their markers say so.
_NAME: Final = re.compile(r"(step|best)-(\d{8,})(?:-g(\d{4,}))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What lies under a training's ``checkpoints/``, by names, sizes and markers."""

    complete: Sequence[Saved]
    """With a readable marker and all files of the right size, oldest first: by step, then generation."""
    copies: Sequence[Saved]
    """Copies of the best weights, in the same order."""
    damaged: Mapping[str, str]
    """Folders that are neither, though they have a marker, and why."""
    unfinished: Sequence[str]
    """Folders without marker: being written, set aside, or left over."""
    set_aside: Sequence[str]
    """The unfinished ones that can be brought back."""
    retired: Collection[str]
    """Folders that were about to be removed: whoever meant to may still do it at any time."""

    @property
    def folders(self) -> list[str]:
        return sorted([*(saved.folder for saved in (*self.complete, *self.copies)), *self.damaged, *self.unfinished])

    def weights_of(self, step: int) -> list[Saved]:
        """Where the model's weights after a step are: in its checkpoint, newest generation first, and in its copy."""
        return [saved for saved in (*reversed(self.complete), *reversed(self.copies)) if saved.step == step]


def root_of(place: str) -> str:
    return f"{place}/checkpoints"


def start_of(place: str) -> str:
    """Where a training keeps what it went on from, as the place of a training that nobody changes."""
    return f"{place}/start"


def folder_of(place: str, step: int, generation: int) -> str:
    return f"{root_of(place)}/step-{step:08d}-g{generation:04d}"


def copy_folder_of(place: str, step: int, generation: int) -> str:
    """For the second copy of the best weights."""
    return f"{root_of(place)}/best-{step:08d}-g{generation:04d}"


def step_of(folder: str) -> int:
    return _parts(folder)[1]


def generation_of(folder: str) -> int:
    return _parts(folder)[2]


def is_copy(folder: str) -> bool:
    return _parts(folder)[0] == "best"


def markers(keys: Collection[str], place: str) -> Iterator[str]:
    """Return the keys of the markers among all keys of a training's ``checkpoints/``."""
    return (marker for folder in _folders(keys, place) if (marker := f"{folder}/{MARKER}") in keys)


def listing_of(sizes: Mapping[str, int], place: str, read: Callable[[str], bytes]) -> Listing:
    """
    :param sizes: of all objects of the training's ``checkpoints/``, in bytes, by their keys
    :param place: of the training
    :param read: returns a marker, or raises FileNotFoundError where it was removed since
    """
    found: list[Saved] = []
    damaged, unfinished, set_aside, retired = {}, [], [], set()
    for folder in _folders(sizes, place):
        marker = f"{folder}/{MARKER}"
        if f"{folder}/{RETIRED}" in sizes:
            retired.add(folder)
        if marker not in sizes:
            unfinished.append(folder)
            set_aside += [folder] if f"{folder}/{SET_ASIDE}" in sizes else []
            continue
        try:
            saved = Saved.load(read(marker), marker)
            _check_sizes(saved, sizes)
            found.append(saved)
        except FileNotFoundError:  # removed since it was listed
            unfinished.append(folder)
        except DamagedCheckpointError as error:
            damaged[folder] = str(error)
    found.sort(key=lambda saved: (saved.step, saved.generation))
    return Listing(
        complete=[saved for saved in found if not is_copy(saved.folder)],
        copies=[saved for saved in found if is_copy(saved.folder)],
        damaged=damaged,
        unfinished=unfinished,
        set_aside=set_aside,
        retired=retired,
    )


def _folders(keys: Collection[str], place: str) -> Sequence[str]:
    # What a recipe's own program keeps here may be files of any name.
    inner = [key.removeprefix(f"{root_of(place)}/").split("/") for key in keys]
    names = sorted({parts[0] for parts in inner if len(parts) > 1 and _NAME.fullmatch(parts[0])})
    return [f"{root_of(place)}/{name}" for name in names]


def _check_sizes(saved: Saved, sizes: Mapping[str, int]) -> None:
    """:raises DamagedCheckpointError: naming the first file that is not as it was written"""
    index = RankFile(saved.index.key, saved.index.num_bytes)
    for file in (index, *saved.files):
        check_size(file, sizes.get(file.key))


def is_folder(name: str) -> bool:
    """Tell whether a folder's name is that of a checkpoint, or of a copy of weights."""
    return _NAME.fullmatch(name) is not None


@cache
def _parts(folder: str) -> tuple[str, int, int]:
    found = _NAME.fullmatch(folder.rpartition("/")[2])
    assert found is not None, f"{folder} is no checkpoint's"
    return found[1], int(found[2]), int(found[3] or 0)
