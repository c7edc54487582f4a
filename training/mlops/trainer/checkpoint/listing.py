"""
Which checkpoints a place has, whoever wrote them, and which of them can go.

``step-00000120-g0003/`` is the checkpoint of a step by the process group of generation 3, ``best-00000100-g0003/`` the
second copy of a best model's weights. What no marker names is not there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from mlops.store import Store
from mlops.trainer.checkpoint.committed import Saved
from mlops.trainer.checkpoint.files import MARKER, RETIRED, SET_ASIDE, DamagedCheckpointError, RankFile, check_size

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


def folder_of(place: str, step: int, generation: int) -> str:
    return f"{root_of(place)}/step-{step:08d}-g{generation:04d}"


def copy_folder_of(place: str, step: int, generation: int) -> str:
    """For the second copy of the best weights."""
    return f"{root_of(place)}/best-{step:08d}-g{generation:04d}"


def step_of(folder: str) -> int:
    return _parts(folder)[1]


def generation_of(folder: str) -> int:
    return _parts(folder)[2]


def list_folders(store: Store, place: str) -> list[str]:
    """All folders of checkpoints and copies, whatever is in them."""
    return [f"{root_of(place)}/{name}" for name in store.folders(root_of(place)) if _NAME.fullmatch(name)]


def is_copy(folder: str) -> bool:
    return _parts(folder)[0] == "best"


def read_listing(store: Store, place: str) -> Listing:
    """The checkpoints of a training. Reads their markers, and no file."""
    sizes = {entry.key: entry.num_bytes for entry in store.stored(root_of(place))}
    # What a recipe's own program keeps here may be files of any name.
    inner = [key.removeprefix(f"{root_of(place)}/").split("/") for key in sizes]
    names = sorted({parts[0] for parts in inner if len(parts) > 1 and _NAME.fullmatch(parts[0])})
    found: list[Saved] = []
    damaged, unfinished, set_aside, retired = {}, [], [], set()
    for folder in (f"{root_of(place)}/{name}" for name in names):
        marker = f"{folder}/{MARKER}"
        if f"{folder}/{RETIRED}" in sizes:
            retired.add(folder)
        if marker not in sizes:
            unfinished.append(folder)
            set_aside += [folder] if f"{folder}/{SET_ASIDE}" in sizes else []
            continue
        try:
            saved = Saved.load(store.get(marker), marker)
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


def superseded(
    listing: Listing, *, saved: Saved, keep_latest: int, ours: Collection[str], distrusted: Collection[str]
) -> list[str]:
    """
    Folders to remove once a checkpoint is committed, of those that its process group may remove.

    The latest whole ones up to the committed one stay, each with the best one of its time; so do later ones. What is
    damaged, retired or unfinished counts for none of them.

    :param ours: folders that this process group wrote, or that were there when it began
    :param distrusted: folders whose bytes it has read and found damaged
    """
    trusted = [one for one in listing.complete if one.folder not in distrusted and one.folder not in listing.retired]
    earlier = [one for one in trusted if one.step <= saved.step]
    latest = earlier[-keep_latest:] + trusted[len(earlier) :]
    best = {one.best_step for one in latest}
    kept = {one.folder for one in latest}
    # Retired ones too: where a kept checkpoint is one that was to go, its best one was as well.
    kept |= {one.folder for one in (*listing.complete, *listing.copies) if one.step in best} - set(distrusted)
    return [folder for folder in listing.folders if folder in ours and folder not in kept]


def _check_sizes(saved: Saved, sizes: Mapping[str, int]) -> None:
    """:raises DamagedCheckpointError: naming the first file that is not as it was written"""
    index = RankFile(saved.index.key, saved.index.num_bytes)
    for file in (index, *saved.files):
        check_size(file, sizes.get(file.key))


@cache
def _parts(folder: str) -> tuple[str, int, int]:
    found = _NAME.fullmatch(folder.rpartition("/")[2])
    assert found is not None, f"{folder} is no checkpoint's"
    return found[1], int(found[2]), int(found[3] or 0)
