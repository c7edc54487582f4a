"""Going back to an earlier checkpoint: the later ones are set aside, until the training saves its next."""

from __future__ import annotations

from collections.abc import Sequence

from mlops.contract.checkpoint_listing import Listing, generation_of, is_copy, step_of
from mlops.contract.checkpoint_markers import MARKER, SET_ASIDE, DamagedCheckpointError, Saved
from mlops.contract.step import BadConfigError
from mlops.store import REF_FILE, Store
from mlops.trainer.checkpoint.checkpoint_verification import find_damage
from mlops.trainer.checkpoint.generation import Generation
from mlops.trainer.checkpoint.listing import read_listing


def restore(store: Store, place: str, step: int) -> tuple[Saved, Sequence[int]]:
    """
    Make the checkpoint of a step the newest one. A training that runs there ends at its next save.

    The best one of its time comes back with it, if it was set aside.

    :return: the checkpoint, and the steps that were set aside
    :raises BadConfigError: where it is not there, or the training's result is committed
    :raises DamagedCheckpointError: where its checksums do not hold; nothing is changed then
    """
    if store.exists(f"{place}/{REF_FILE}"):
        raise BadConfigError(
            f"the training has ended: {place}/{REF_FILE} is what a retry returns, whatever its checkpoints are. "
            "Delete it to train on from here, and whatever was made of its result"
        )
    chosen = find_saved(store, place, step)
    if damage := find_damage(store, chosen):
        raise DamagedCheckpointError("; ".join(damage))
    Generation.take(store, place)
    # Before others are set aside: killed between, there are more to go on from, not none.
    for folder in read_listing(store, place).set_aside:
        if folder == chosen.folder or step_of(folder) == chosen.best_step:
            store.copy(f"{folder}/{SET_ASIDE}", f"{folder}/{MARKER}")
    later = [saved for saved in read_listing(store, place).complete if saved.step > step]
    for saved in reversed(later):
        store.copy(saved.marker, f"{saved.folder}/{SET_ASIDE}")
        store.delete([saved.marker])
    return chosen, sorted({saved.step for saved in later})


def find_saved(store: Store, place: str, step: int, listing: Listing | None = None) -> Saved:
    """
    The checkpoint of a step, set aside or not: that of the newest generation.

    :param listing: of the training, where it is read already
    :raises BadConfigError: where there is none
    :raises DamagedCheckpointError: where its marker is damaged
    """
    listing = listing or read_listing(store, place)
    if found := [saved for saved in listing.complete if saved.step == step]:
        return found[-1]
    others = [folder for folder in (*listing.set_aside, *listing.damaged) if not is_copy(folder)]
    for folder in sorted(others, key=generation_of, reverse=True):
        if step_of(folder) == step:
            key = f"{folder}/{SET_ASIDE if folder in listing.set_aside else MARKER}"
            return Saved.load(store.get(key), key)
    known = {saved.step for saved in listing.complete} | {step_of(folder) for folder in listing.set_aside}
    raise BadConfigError(
        f"{place} has no checkpoint of step {step}; it has {', '.join(map(str, sorted(known))) or 'none at all'}"
    )
