"""
Everything that the committed refs of a store name: artifacts, objects of manifests, checkpoints, decisions, audit
trails.

Of a ref only what ties it to others is kept, and each object once, whoever names it: memory grows with the number of
objects, and not with their bytes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

from mlops.contract.checkpoint_listing import start_of
from mlops.contract.checkpoint_markers import Saved
from mlops.contract.refs import INPUT, MANIFEST, Artifact, CheckpointRef, ModelVersionRef, Ref, named_in, ref_from_wire
from mlops.contract.step import EXPERIMENTS, BadConfigError
from mlops.integrity.damage import DAMAGED, MISSING, Damage
from mlops.reproduction.rerun import SUFFIX
from mlops.store import REF_FILE, Store
from mlops.store_errors import DamagedObjectError
from mlops.trainer.checkpoint.listing import read_listing

REQUESTS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A committed ref, reduced to what others depend on."""

    kind: str
    digest: str
    version: tuple[str, str] | None
    """Model and number of the version, if the ref registered one."""


@dataclass(kw_only=True, slots=True)
class Inventory:
    """The objects that must be in the store."""

    refs: dict[str, Committed] = field(default_factory=dict)
    """Committed refs by place."""
    made_of: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Place of a ref's parent and the digest that it had, by the ref's place."""
    needed: set[str] = field(default_factory=set)
    """Places of all refs that others descend from."""
    children: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Places of the refs that were made of each, directly. A parent's own ref may be gone."""
    objects: defaultdict[Artifact, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Objects still to be read, with the places of the refs that name each."""
    manifests: defaultdict[Artifact, set[str]] = field(default_factory=lambda: defaultdict(set))
    approvals: dict[Artifact, str] = field(default_factory=dict)
    """Input documents of steps that recorded approvals, with their places: they name decisions."""
    trainings: set[str] = field(default_factory=set)
    checkpoints: list[tuple[str, Saved]] = field(default_factory=list)
    """Listed checkpoints of trainings that have ended, with the training's place."""
    marks: list[tuple[str, str, str]] = field(default_factory=list)
    """Keys of deprecation marks, with their dataset and version."""
    damage: list[Damage] = field(default_factory=list)
    """Damage found while refs and manifests were read."""
    num_read: int = 0
    """Number of refs and manifests that were read."""

    @property
    def num_bytes(self) -> int:
        """Bytes that are still to be read."""
        files = sum(saved.num_bytes for _, saved in self.checkpoints)
        return sum(artifact.num_bytes for artifact in self.objects) + files

    @property
    def models(self) -> list[str]:
        return sorted({ref.version[0] for ref in self.refs.values() if ref.version})

    def made_from(self, places: Iterable[str]) -> list[str]:
        """Return these places, and those of all refs that descend from them."""
        found: set[str] = set()
        todo = list(places)
        while todo:
            if (place := todo.pop()) not in found:
                found.add(place)
                todo += self.children.get(place, ())
        return sorted(found)

    def add(self, ref: Ref) -> None:
        lineage = list(ref.lineage())
        parent = lineage[1] if len(lineage) > 1 else None
        registered = PurePosixPath(ref.place).parent.name == "register" and isinstance(ref, ModelVersionRef)
        version = (ref.name, ref.version) if registered and isinstance(ref, ModelVersionRef) else None
        self.refs[ref.place] = Committed(kind=ref.kind, digest=ref.digest(), version=version)
        if parent is not None:
            self.made_of[ref.place] = parent.place, parent.digest()
        for before, link in zip((None, *lineage), lineage, strict=False):
            if before is not None:
                self.needed.add(link.place)
                self.children[link.place].add(before.place)
            # Also of parents: what they name is needed, whether or not their own ref is there.
            for name, artifact in link.artifacts.items():
                (self.manifests if name == MANIFEST else self.objects)[artifact].add(link.place)
            if isinstance(link, CheckpointRef):
                self.trainings.add(link.place)
                if "start" in link.artifacts:
                    self.trainings.add(start_of(link.place))
        if isinstance(ref, ModelVersionRef) and not registered and INPUT in ref.artifacts:
            self.approvals[ref.artifacts[INPUT]] = ref.place


def take_inventory(store: Store, pipeline: str | None = None) -> Inventory:
    """
    Read the refs, and the manifests that they name.

    :param pipeline: limits the inventory to its refs, and those that they were made from
    :raises BadConfigError: where there is no such pipeline
    """
    pipelines = store.folders("pipelines")
    if pipeline is not None and pipeline not in pipelines:
        raise BadConfigError(
            f"there is no pipeline {pipeline!r} in {store.uri}; it holds {', '.join(pipelines) or 'none at all'}"
        )
    # Reproductions at work remove what they made.
    folders = [name for name in pipelines if not name.endswith(SUFFIX)] if pipeline is None else [pipeline]
    folders = [f"pipelines/{name}" for name in folders] + ([EXPERIMENTS] if pipeline is None else [])
    places: set[str] = set()
    found = Inventory()
    for key in (PurePosixPath(key) for folder in folders for key in store.list(folder)):
        if key.match(f"pipelines/*/*/*/{REF_FILE}") or key.match(f"{EXPERIMENTS}/*/*/*/*/{REF_FILE}"):
            places.add(str(key.parent))
        elif key.match("pipelines/*/deprecated/*.json"):
            found.marks.append((str(key), key.parts[1], key.stem))
    asked: set[str] = set()
    with ThreadPoolExecutor(REQUESTS) as pool:
        while places:
            asked |= places
            for outcome in pool.map(lambda place: _read_ref(store, place), sorted(places)):
                if isinstance(outcome, Damage):
                    found.damage.append(outcome)
                else:
                    found.add(outcome)
            places = found.needed - asked
        found.damage += _changed_parents(found)
        for manifest, named in pool.map(lambda item: _read_manifest(store, *item), list(found.manifests.items())):
            if isinstance(named, Damage):
                found.damage.append(named)
                continue
            for artifact in named:
                found.objects[artifact] |= found.manifests[manifest]
        for place, listing in pool.map(lambda place: (place, read_listing(store, place)), sorted(found.trainings)):
            found.checkpoints += [(place, saved) for saved in (*listing.complete, *listing.copies)]
            found.damage += [
                Damage(key=folder, problem=DAMAGED, detail=detail, owners=(place,))
                for folder, detail in listing.damaged.items()
            ]
    found.num_read = len(found.refs) + len(found.manifests)
    return found


def parse_ref(data: bytes, place: str) -> Ref:
    """
    Parse a ref, and check its place.

    :raises ValueError: if it is not the ref of that place
    """
    try:
        ref = ref_from_wire(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"it is no ref: {error}") from error
    if ref.place != place:
        raise ValueError(f"it is the ref of another place, {ref.place!r}")
    return ref


def _read_ref(store: Store, place: str) -> Ref | Damage:
    key = f"{place}/{REF_FILE}"
    try:
        return parse_ref(store.get(key), place)
    except FileNotFoundError:
        return Damage(key=key, problem=MISSING, owners=(place,))
    except ValueError as error:
        return Damage(key=key, problem=DAMAGED, detail=str(error), owners=(place,))


def _changed_parents(found: Inventory) -> Iterable[Damage]:
    """Report refs whose digest differs from the one recorded by the refs that were made from them."""
    changed = {
        parent: digest
        for parent, digest in found.made_of.values()
        if parent in found.refs and found.refs[parent].digest != digest
    }
    for place, digest in changed.items():
        detail = "these are digests of its content, as it is and as what was made of it has it"
        yield Damage(
            key=f"{place}/{REF_FILE}", problem=DAMAGED, expected=digest, found=found.refs[place].digest,
            detail=detail, owners=(place,),
        )  # fmt: skip


def _read_manifest(store: Store, manifest: Artifact, owners: set[str]) -> tuple[Artifact, list[Artifact] | Damage]:
    try:
        return manifest, named_in(store.read(manifest))
    except DamagedObjectError:
        return manifest, replace(damage_of(store, manifest, owners), hides=True)
    except ValueError as error:  # whoever wrote the ref has named something else
        return manifest, Damage(
            key=manifest.key, problem=DAMAGED, detail=str(error), owners=tuple(sorted(owners)), hides=True
        )


def damage_of(store: Store, artifact: Artifact, owners: Collection[str]) -> Damage:
    """Describe an object that is known to be missing or damaged."""
    try:
        found, problem = store.sha256(artifact.key)[0], DAMAGED
    except FileNotFoundError:
        found, problem = None, MISSING
    return Damage(
        key=artifact.key, problem=problem, expected=artifact.sha256, found=found, owners=tuple(sorted(owners))
    )
