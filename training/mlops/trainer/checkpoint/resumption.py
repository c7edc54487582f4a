"""
Going on from a checkpoint of another training. A copy of it stays with this one for as long as this one does: the other
one removes its own, and this one is to be made again exactly.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace

from mlops.contract.checkpoint_listing import root_of, start_of
from mlops.contract.checkpoint_markers import DamagedCheckpointError, RankFile, Saved
from mlops.contract.refs import Artifact
from mlops.contract.resumption import Standing, TrainingFacts
from mlops.contract.sections.checkpointing import ResumeFrom
from mlops.contract.step import BadConfigError
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoint_verification import find_damage
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.checkpoint.restoring import find_saved

logger = logging.getLogger(__name__)


def take(store: Store, place: str, asked: ResumeFrom, facts: TrainingFacts) -> Saved:
    """
    Return a training's own copy of the checkpoint that it goes on from, made where it is not there yet.

    With it comes a copy of the best weights of its time.

    :param place: of the training that goes on
    :param facts: of it, as its checkpoints have them
    :raises BadConfigError: where there is no such checkpoint, or it is of another data, model or optimizer
    :raises DamagedCheckpointError: where its checksums do not hold
    """
    start = start_of(place)
    kept = _at(store, start, asked.step)
    chosen = kept or find_saved(store, asked.training, asked.step)
    if kept is None:
        _check(chosen, asked, facts)
        if damage := find_damage(store, chosen):
            raise DamagedCheckpointError(f"train.resume_from: {'; '.join(damage)}; take another step")
    if chosen.best_step not in (None, chosen.step):
        _keep_best(store, chosen.best_step or 0, asked, start)
    if kept is not None:
        return kept
    copied = _copy(store, chosen, start)  # last: with it all is there
    logger.info("goes on from step %d of %s", asked.step, asked.training)
    return copied


def kept_start(store: Store, place: str, asked: ResumeFrom) -> Artifact:
    """Return the marker of the copy that :func:`take` has made."""
    saved = _at(store, start_of(place), asked.step)
    assert saved is not None, "it was taken"
    data = store.get(saved.marker)
    return Artifact(key=saved.marker, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))


def _at(store: Store, start: str, step: int) -> Saved | None:
    return next((saved for saved in read_listing(store, start).complete if saved.step == step), None)


def _keep_best(store: Store, step: int, asked: ResumeFrom, start: str) -> None:
    """Keep a copy of the best weights too, of the first that are whole; where none are, the training says so."""
    # The other training may itself have gone on from one, before which the best weights were.
    for place in (start, asked.training, start_of(asked.training)):
        for saved in read_listing(store, place).weights_of(step):
            if not find_damage(store, saved):
                if place != start:
                    _copy(store, saved, start)
                return


def _check(chosen: Saved, asked: ResumeFrom, facts: TrainingFacts) -> None:
    where = f"the checkpoint of step {asked.step} of {asked.training}"
    if (standing := Standing.of(chosen.meta)) is None:
        raise BadConfigError(f"train.resume_from: {where} does not say how it was trained: take another training's")
    if problems := [*standing.hindrances(facts.settings), *standing.changes(facts)]:
        raise BadConfigError(
            f"train.resume_from: cannot go on from {where}: {'; '.join(problems)}. To learn something else from its "
            "weights, give them to train.initialise"
        )
    if standing.training.code != facts.code:
        logger.warning("the recipe's code is not what it was at %s", where)


def _copy(store: Store, saved: Saved, start: str) -> Saved:
    folder = f"{root_of(start)}/{saved.folder.rpartition('/')[2]}"

    def copied(key: str) -> str:
        to = f"{folder}/{key.rpartition('/')[2]}"
        if not store.copy(key, to):
            raise DamagedCheckpointError(f"train.resume_from: {key} is gone: try again, or take another step")
        return to

    copy = replace(
        saved,
        folder=folder,
        index=replace(saved.index, key=copied(saved.index.key)),
        files=tuple(RankFile(copied(file.key), file.num_bytes) for file in saved.files),
    )
    store.put(copy.marker, copy.dump())
    return copy
