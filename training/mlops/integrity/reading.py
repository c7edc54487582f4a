"""Read everything that an inventory lists, each object once, and compare it with its digest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Final

from mlops.contract.checkpoint_markers import Saved
from mlops.contract.refs import Artifact
from mlops.contract.step import StepInput
from mlops.data.snapshots.deprecation import find_deprecation
from mlops.integrity.damage import DAMAGED, MISSING, Damage
from mlops.integrity.inventory import REQUESTS, Inventory
from mlops.registry.audit import AuditTrail
from mlops.signing.decision import Decision
from mlops.signing.envelope import EnvelopeError
from mlops.store import Store
from mlops.store_errors import DamagedObjectError, StoreError
from mlops.trainer.checkpoint.checkpoint_verification import find_damage

_TRIES: Final = 3
_AT_ONCE: Final = 1024
"""Reads whose results may wait in memory at once."""

Look = Callable[[], list[Damage]]
Progress = Callable[[int], None]
"""Function called with the number of bytes read since the last call, by several threads."""


@dataclass(kw_only=True, slots=True)
class Findings:
    damage: list[Damage]
    unreadable: list[str] = field(default_factory=list)
    """A sentence for each object that the store did not return, so that nothing is known of it."""
    num_looked_at: int = 0
    """Number of refs, objects, checkpoints and audit trails that were looked at."""


def read_all(store: Store, inventory: Inventory, models: Sequence[str], progress: Progress) -> Findings:
    """
    Read all objects of an inventory, and return the damage. Objects are read 16 at a time, in parts of 16 MB;
    checkpoints one after the other, 256 MB at a time.

    :param models: models whose audit trails are read
    """
    findings = Findings(damage=list(inventory.damage), num_looked_at=inventory.num_read)
    small: Iterable[Look] = chain(
        (partial(_object, store, artifact, owners, progress) for artifact, owners in inventory.objects.items()),
        (partial(_decisions, store, artifact, place) for artifact, place in inventory.approvals.items()),
        (partial(_trail, store, model) for model in models),
        (partial(_mark, store, *mark) for mark in inventory.marks),
    )
    with ThreadPoolExecutor(REQUESTS) as pool:
        looks = iter(small)
        while batch := list(islice(looks, _AT_ONCE)):
            _note(findings, pool.map(_tried, batch))
    _note(findings, (_tried(partial(_checkpoint, store, *item, progress)) for item in inventory.checkpoints))
    return findings


def _note(findings: Findings, outcomes: Iterable[list[Damage] | str]) -> None:
    for outcome in outcomes:
        findings.num_looked_at += 1
        if isinstance(outcome, str):
            findings.unreadable.append(outcome)
        else:
            findings.damage += outcome


def _tried(look: Look) -> list[Damage] | str:
    """Return the damage that a read found, or the store's error if it did not answer even when asked again."""
    for left in range(_TRIES - 1, -1, -1):
        try:
            return look()
        except StoreError as error:
            if not left:
                return str(error)
    raise AssertionError("the last try returns")


def _object(store: Store, artifact: Artifact, owners: Iterable[str], progress: Progress) -> list[Damage]:
    named_by = tuple(sorted(owners))
    try:
        found, _ = store.sha256(artifact.key, progress)
    except FileNotFoundError:
        progress(artifact.num_bytes)
        return [Damage(key=artifact.key, problem=MISSING, expected=artifact.sha256, owners=named_by)]
    if found == artifact.sha256:
        return []
    return [Damage(key=artifact.key, problem=DAMAGED, expected=artifact.sha256, found=found, owners=named_by)]


def _checkpoint(store: Store, place: str, saved: Saved, progress: Progress) -> list[Damage]:
    problems = find_damage(store, saved)
    progress(saved.num_bytes)
    return [Damage(key=saved.folder, problem=DAMAGED, detail=problem, owners=(place,)) for problem in problems]


def _decisions(store: Store, told: Artifact, place: str) -> list[Damage]:
    """Check the records that a step's approval names: its input lists them, and the keys that they are signed by."""
    try:
        document = StepInput.load(store.read(told).decode())
    except DamagedObjectError:
        return []  # it is named as an object of its ref
    damage = []
    for key in document.config.get("decisions", ()):
        try:
            Decision.unsealed(store.get(key), document.config["keys"])
        except FileNotFoundError:
            damage.append(Damage(key=key, problem=MISSING, owners=(place,)))
        except EnvelopeError as error:
            damage.append(Damage(key=key, problem=DAMAGED, detail=str(error), owners=(place,)))
    return damage


def _trail(store: Store, model: str) -> list[Damage]:
    return [
        Damage(
            key=flaw.key,
            problem=MISSING if flaw.missing else DAMAGED,
            expected=flaw.expected,
            found=flaw.found,
            detail=flaw.detail,
            model=model,
        )
        for flaw in AuditTrail(store, model).flaws()
    ]


def _mark(store: Store, key: str, dataset: str, version: str) -> list[Damage]:
    try:
        find_deprecation(store, dataset, version)
    except DamagedObjectError as error:
        return [Damage(key=key, problem=DAMAGED, detail=str(error))]
    return []
