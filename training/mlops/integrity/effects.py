"""The effects of damage: refs, the runs that made them, and the model versions that come from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mlops.contract.refs import INPUT
from mlops.contract.stages import ARCHIVED, CHAMPION, STAGE_TAG
from mlops.contract.step import BadConfigError, StepInput
from mlops.integrity.damage import Damage
from mlops.integrity.inventory import REQUESTS, Inventory, parse_ref
from mlops.store import REF_FILE, Store
from mlops.store_errors import DamagedObjectError
from mlops.tracking.connection import TrackingError, connect
from mlops.tracking.model_registry import ModelRegistry


@dataclass(frozen=True, kw_only=True, slots=True)
class AffectedVersion:
    model: str
    version: str
    stage: str | None
    """Stage of the version; None if MLflow did not answer."""
    champion: bool | None

    def __str__(self) -> str:
        known = "stage unknown" if self.stage is None else self.stage
        return f"{self.model}/{self.version} ({known}{', the champion' if self.champion else ''})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    damage: Damage
    refs: Sequence[str]
    """Places of the refs that name the object, and of all that were made from them."""
    runs: Sequence[str]
    """Runs that made these refs, ``DAG/run``, as far as they are known."""
    versions: Sequence[AffectedVersion]


def effects_of(
    store: Store, inventory: Inventory, damage: Sequence[Damage], tracking_uri: str
) -> tuple[list[Effect], str | None]:
    """
    Find the refs, runs and model versions that damage affects.

    :return: the effects; and why the stages of versions are unknown, None if they are known
    """
    refs = {each: inventory.made_from(each.owners) for each in damage}
    affected = sorted({place for places in refs.values() for place in places})
    with ThreadPoolExecutor(REQUESTS) as pool:
        runs = dict(zip(affected, pool.map(lambda place: _run_of(store, place), affected), strict=True))
    named = {place: ref.version for place, ref in inventory.refs.items() if ref.version}
    models = {named[place][0] for place in affected if place in named}
    stages, unknown = _stages(models, tracking_uri) if models else ({}, None)
    effects = []
    for each, places in refs.items():
        versions = sorted({named[place] for place in places if place in named}, key=lambda v: (v[0], int(v[1])))
        effects.append(
            Effect(
                damage=each,
                refs=places,
                runs=sorted({run for place in places if (run := runs[place])}),
                versions=[_version(stages, *version) for version in versions],
            )
        )
    return effects, unknown


def _run_of(store: Store, place: str) -> str | None:
    try:
        ref = parse_ref(store.get(f"{place}/{REF_FILE}"), place)
        run = StepInput.load(store.read(ref.artifacts[INPUT]).decode()).run
    except (FileNotFoundError, ValueError, KeyError, DamagedObjectError):
        return None  # itself damaged, or of a release that kept no input
    return f"{run.dag_id}/{run.run_id}"


def _stages(
    models: set[str], tracking_uri: str
) -> tuple[Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]], str | None]:
    """Return by model its stages by version and its aliases; and why they are unknown, None if they are known."""
    try:
        client = connect(tracking_uri)
        registries = {name: ModelRegistry(client=client, name=name) for name in models}
        return {
            name: (
                {str(found.version): found.tags.get(STAGE_TAG, ARCHIVED) for found in registry.versions()},
                registry.aliases(),
            )
            for name, registry in registries.items()
        }, None
    except (TrackingError, BadConfigError) as error:
        return {}, str(error)


def _version(
    stages: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]], model: str, version: str
) -> AffectedVersion:
    if model not in stages:
        return AffectedVersion(model=model, version=version, stage=None, champion=None)
    by_version, aliases = stages[model]
    return AffectedVersion(
        model=model,
        version=version,
        stage=by_version.get(version, "no longer in MLflow"),
        champion=aliases.get(CHAMPION) == version,
    )
