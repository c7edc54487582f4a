"""Going back to an earlier checkpoint: the later ones are set aside, until the training saves its next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mlops_provider.step import BadConfigError
from training.store import REF_FILE, Store
from training.trainer.checkpoint.committed import MARKER, Saved, find_damage, folder_of, read_listing, step_of
from training.trainer.checkpoint.files import DamagedCheckpointError

SET_ASIDE: Final = "set-aside.json"
"""A marker under another name: not there for a training, and brought back by another restore."""


def steps_set_aside(store: Store, place: str) -> list[int]:
    folders = read_listing(store, place).unfinished
    return [step_of(folder) for folder in folders if store.exists(f"{folder}/{SET_ASIDE}")]


def restore(store: Store, place: str, step: int) -> tuple[Saved, Sequence[int]]:
    """
    Make the checkpoint of a step the newest one. No training may be running there.

    The best one of its time comes back with it: without that no training goes on from it.

    :return: the checkpoint, and the steps that were set aside
    :raises BadConfigError: where either is not there, or the training's result is committed
    :raises DamagedCheckpointError: where the checksums of either do not hold; nothing is changed then
    """
    if store.exists(f"{place}/{REF_FILE}"):
        raise BadConfigError(
            f"the training has ended: {place}/{REF_FILE} is what a retry returns, whatever its checkpoints are. "
            "Delete it to train on from here, and whatever was made of its result"
        )
    chosen = find_saved(store, place, step)
    wanted = [chosen]
    if chosen.best_step is not None and chosen.best_step != step:
        # First: killed between, the chosen one would be passed over without it.
        wanted.insert(0, _best_of_its_time(store, place, chosen, chosen.best_step))
    if damage := [problem for saved in wanted for problem in find_damage(store, saved)]:
        raise DamagedCheckpointError("; ".join(damage))
    # Before others are set aside: killed between, there are more to go on from, not none.
    for saved in wanted:
        if not store.exists(saved.marker):
            store.copy(f"{saved.folder}/{SET_ASIDE}", saved.marker)
    later = [saved for saved in read_listing(store, place).complete if saved.step > step]
    for saved in reversed(later):
        store.copy(saved.marker, f"{saved.folder}/{SET_ASIDE}")
        store.delete([saved.marker])
    return chosen, [saved.step for saved in later]


def _best_of_its_time(store: Store, place: str, chosen: Saved, step: int) -> Saved:
    try:
        return find_saved(store, place, step)
    except BadConfigError as error:
        raise BadConfigError(
            f"no training goes on from step {chosen.step} without the best one of its time: {error}. "
            "Restore another, or export the weights with --weights"
        ) from error


def find_saved(store: Store, place: str, step: int) -> Saved:
    """The checkpoint of a step, set aside or not."""
    for name in (MARKER, SET_ASIDE):
        key = f"{folder_of(place, step)}/{name}"
        try:
            return Saved.load(store.get(key), key)
        except FileNotFoundError:
            continue
    known = [*(saved.step for saved in read_listing(store, place).complete), *steps_set_aside(store, place)]
    raise BadConfigError(
        f"{place} has no checkpoint of step {step}; it has {', '.join(map(str, sorted(known))) or 'none at all'}"
    )
