"""What experiments made long ago, and nothing newer rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mlops.contract.refs import Ref, ReportRef
from mlops.contract.step import EXPERIMENTS
from mlops.store import Store, Stored

_LEAVES: Final = ("train", "evaluate")
"""Steps whose result is in the lineage of a run that names it, or of none. Those before them may be found by a run that
has written nothing of its own yet."""
_RUNS: Final = timedelta(days=1)
"""So long after it has written something a step without a result may still run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Of a step in an experiment."""

    name: str
    step: str
    objects: Sequence[Stored]

    @property
    def written(self) -> datetime:
        """The newest object's time."""
        return max(each.modified for each in self.objects)

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.objects)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expired:
    """Of the experiments of one user."""

    expired: Sequence[Place]
    needed: Sequence[Place]
    """Old too, but newer runs rest on them, or models that a pipeline has judged."""
    running: Sequence[Place]
    """Steps without a result that may run; old results that they may rest on are not expired."""


def expired(store: Store, names: Sequence[str], user: str, before: datetime, now: datetime) -> Expired:
    """
    Tell what may be removed of a user's experiments.

    :param names: those that are asked for, ``USER/...``
    :param before: what was written earlier is old
    """
    # Runs of one experiment find snapshots of another one of the user's.
    every = [f"{user}/{name}" for name in store.folders(f"{EXPERIMENTS}/{user}")]
    places = {name: list(_places(store, name)) for name in every}
    rested, running = set[str](), list[Place]()
    for place in (each for found in places.values() for each in found if each.written >= before):
        ref = store.committed(place.name)
        if ref is not None:
            rested |= _lineage(ref)
        elif place.written >= now - _RUNS:
            running.append(place)
    for pipeline in {name.split("/")[1].partition(".")[0] for name in names}:
        for ref in judged(store, pipeline, f"{EXPERIMENTS}/{user}/"):
            rested |= _lineage(ref)
    old = [each for name in names for each in places[name] if each.written < before]
    is_needed = {each.name: each.name in rested or bool(running and each.step not in _LEAVES) for each in old}
    return Expired(
        expired=[each for each in old if not is_needed[each.name]],
        needed=[each for each in old if is_needed[each.name]],
        running=running,
    )


def judged(store: Store, pipeline: str, below: str) -> Iterator[ReportRef]:
    """Return the evaluations of a pipeline's own runs that are of trainings below a place (``mlops register``)."""
    for key in store.folders(f"pipelines/{pipeline}/evaluate"):
        ref = store.committed(f"pipelines/{pipeline}/evaluate/{key}")
        if isinstance(ref, ReportRef) and ref.parent.place.startswith(below):
            yield ref


def _places(store: Store, name: str) -> Iterator[Place]:
    folder = f"{EXPERIMENTS}/{name}/"
    by_place: dict[tuple[str, str], list[Stored]] = {}
    for entry in store.stored(f"{EXPERIMENTS}/{name}"):
        step, _, rest = entry.key.removeprefix(folder).partition("/")
        key, _, within = rest.partition("/")
        if within:
            by_place.setdefault((step, key), []).append(entry)
    for (step, key), objects in by_place.items():
        yield Place(name=f"{folder}{step}/{key}", step=step, objects=objects)


def _lineage(ref: Ref) -> set[str]:
    return {each.place for each in ref.lineage()}
