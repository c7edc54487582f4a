"""The checkpoints of a training, as they lie in the store, and which of them can go."""

from __future__ import annotations

from collections.abc import Collection

from mlops.contract.checkpoint_listing import Listing, is_folder, listing_of, root_of
from mlops.contract.checkpoint_markers import Saved
from mlops.store import Store


def list_folders(store: Store, place: str) -> list[str]:
    """All folders of checkpoints and copies, whatever is in them."""
    return [f"{root_of(place)}/{name}" for name in store.folders(root_of(place)) if is_folder(name)]


def read_listing(store: Store, place: str) -> Listing:
    """The checkpoints of a training. Reads their markers, and no file."""
    sizes = {entry.key: entry.num_bytes for entry in store.stored(root_of(place))}
    return listing_of(sizes, place, store.get)


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
