"""The remedies for damage, found before anything is changed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from typing import Final

from mlops.contract.refs import INPUT, Ref, ReportRef
from mlops.contract.step import BadConfigError
from mlops.integrity.damage import Damage
from mlops.integrity.inventory import Inventory, parse_ref
from mlops.store import REF_FILE, Store
from mlops.tracking.connection import TrackingError, connect
from mlops.tracking.run import EVALUATION, reopen_run

AGAIN: Final = ("ingest", "validate", "features", "tune", "train", "predict")
"""Steps that make the same bits when they are done again, in the order in which they need each other."""
_MOST_STEPS: Final = 3
"""
Most steps to run again for an object that they share; if three nights cannot make a day's blob again, older ones will
not.
"""
_BACKUP: Final = "restore it from a backup"


class Way(Enum):
    """Source of the bytes of a lost object."""

    LINEAGE = "what was made of it holds it"
    COPY = "equal bytes"
    TRACKING = "MLflow's copy"
    STEP = "its step, done again"
    NONE = "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    damage: Damage
    way: Way
    sources: Sequence[str]
    """Places of refs that hold it, the key of the copy, or the places of steps that made it, the newest first."""
    sentence: str
    """Sentence on what will be done; or on why nothing can be done, and what else helps."""


def find_remedies(store: Store, inventory: Inventory, damage: Sequence[Damage], tracking_uri: str) -> list[Remedy]:
    damaged = {each.key for each in damage}
    copies: dict[str, list[str]] = {}
    for artifact in (*inventory.objects, *inventory.manifests):
        if artifact.key not in damaged:
            copies.setdefault(artifact.sha256, []).append(artifact.key)
    return [_remedy(store, inventory, each, copies, tracking_uri) for each in damage]


def held_ref(store: Store, place: str, holder: str) -> Ref | None:
    """Return the ref of a place as held by a ref that was made from it."""
    ref = parse_ref(store.get(f"{holder}/{REF_FILE}"), holder)
    return next((link for link in ref.lineage() if link.place == place), None)


def _remedy(
    store: Store, inventory: Inventory, damage: Damage, copies: dict[str, list[str]], tracking_uri: str
) -> Remedy:
    def by(way: Way, sentence: str, *sources: str) -> Remedy:
        return Remedy(damage=damage, way=way, sources=sources, sentence=sentence)

    if damage.owners and damage.key == f"{damage.owners[0]}/{REF_FILE}":
        return _of_ref(store, inventory, damage)
    if damage.model is not None:
        return by(Way.NONE, f"nothing else holds what happened to {damage.model}: {_BACKUP}")
    if not damage.owners:
        return by(Way.NONE, f"{_BACKUP}, or delete it and deprecate the snapshot again")
    if damage.expected is None:
        if "/checkpoints/" in damage.key:
            return by(
                Way.NONE,
                "a checkpoint is not made again. The training has ended, and its weights lie apart: nothing that is "
                f"committed needs it. {_BACKUP.capitalize()}, or delete {damage.key}",
            )
        return by(Way.NONE, f"nothing else holds it: {_BACKUP}")
    if same := copies.get(damage.expected):
        return by(Way.COPY, f"copy {same[0]}, which has the same bytes", same[0])
    return _of_artifact(store, inventory, damage, tracking_uri)


def _of_ref(store: Store, inventory: Inventory, damage: Damage) -> Remedy:
    place = damage.owners[0]
    holders = [holder for holder in inventory.made_from([place]) if holder != place and holder in inventory.refs]
    held = [ref for holder in holders if (ref := held_ref(store, place, holder)) is not None]
    way, sources = Way.NONE, tuple(holders[:1])
    if damage.found is not None:
        sentence = f"whether it or what was made of it was changed, nothing tells: {_BACKUP}"
    elif len({ref.digest() for ref in held}) > 1:
        sentence = f"what was made of it does not agree on what it was: {_BACKUP}"
    elif not held:
        sentence = f"nothing was made of it: {_BACKUP}, or delete it and clear its task"
    else:
        way, sentence = Way.LINEAGE, f"write it as {len(held)} refs that were made of it hold it"
    return Remedy(damage=damage, way=way, sources=sources, sentence=sentence)


def _of_artifact(store: Store, inventory: Inventory, damage: Damage, tracking_uri: str) -> Remedy:
    # Newest first: a source may have forgotten what an old night read of it.
    steps = sorted(damage.owners, key=lambda place: PurePosixPath(place).name, reverse=True)
    again: list[str] = []
    why = f"nothing else holds it: {_BACKUP}"
    for place in steps:
        step = PurePosixPath(place).parent.name
        ref = _ref_of(store, inventory, place)
        names = [name for name, artifact in ref.artifacts.items() if artifact.key == damage.key] if ref else []
        if isinstance(ref, ReportRef) and names and names[0] in EVALUATION:
            copy = tracked_copy(ref, names[0], tracking_uri)
            if isinstance(copy, bytes) and hashlib.sha256(copy).hexdigest() == damage.expected:
                run = ref.parent.tracking_run
                sentence = f"take the copy in MLflow, {EVALUATION[names[0]]} of run {run}"
                return Remedy(damage=damage, way=Way.TRACKING, sources=(place,), sentence=sentence)
            missing = copy if isinstance(copy, str) else "MLflow's copy is none, or of a later evaluation"
            why = f"an evaluation is not done again, for its result would be another one today; {missing}: {_BACKUP}"
        elif names == [INPUT]:
            why = (
                "it is what Airflow told the step. Delete it and clear the task, which puts it back where Airflow says "
                f"the same again; else {_BACKUP}"
            )
        elif ref is None:
            why = f"the ref that names it cannot be read, and nothing was made of that: {_BACKUP}"
        elif step in AGAIN and INPUT in ref.artifacts and len(again) < _MOST_STEPS:
            again.append(place)
    if not again:
        return Remedy(damage=damage, way=Way.NONE, sources=(), sentence=why)
    step = PurePosixPath(again[0]).parent.name
    sentence = f"do {step} again at {again[0]}, and keep what has the same digest"
    return Remedy(damage=damage, way=Way.STEP, sources=tuple(again), sentence=sentence)


def _ref_of(store: Store, inventory: Inventory, place: str) -> Ref | None:
    """Return the ref of a place as it is committed, or as it will be when it is healed."""
    if place in inventory.refs:
        return store.committed(place)
    holder = next((other for other in inventory.made_from([place]) if other in inventory.refs), None)
    return held_ref(store, place, holder) if holder else None


def tracked_copy(report: ReportRef, name: str, tracking_uri: str) -> bytes | str | None:
    """
    Return MLflow's copy of an evaluation's file, None if it has none; or the reason as text if MLflow cannot be asked.
    """
    try:
        return reopen_run(connect(tracking_uri), report.parent.tracking_run).read(EVALUATION[name])
    except (TrackingError, BadConfigError) as error:
        return str(error)
