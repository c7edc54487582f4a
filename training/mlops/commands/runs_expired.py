"""What experiments made long ago, which nobody uses, and on which nothing newer rests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from mlops.contract.refs import Ref, ReportRef
from mlops.contract.step import EXPERIMENTS
from mlops.store import REF_FILE, Store, Stored
from mlops.store_errors import DamagedObjectError

_LEAVES: Final = ("train", "evaluate", "budgets")
"""What no step takes that has begun before it was there. The rest may be what a run takes that has no result yet."""
_READERS: Final = 16
_RUNS: Final = timedelta(days=1)
"""So long after it has written something a step without a result may still run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Of a step in an experiment; or a file of another kind."""

    name: str
    step: str
    objects: Sequence[Stored]

    @property
    def is_step(self) -> bool:
        return self.objects[0].key != self.name

    @property
    def written(self) -> datetime:
        """The newest object's time; where a run has taken the result, that of the last one (``used``)."""
        return max(each.modified for each in self.objects)

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.objects)

    @property
    def has_result(self) -> bool:
        return any(each.key == f"{self.name}/{REF_FILE}" for each in self.objects)

    def may_run(self, now: datetime) -> bool:
        """Whether a step may be at work there: it has no result, and has written something lately."""
        return self.is_step and not self.has_result and self.written >= now - _RUNS


@dataclass(kw_only=True, slots=True)
class Expired:
    """Of the experiments of one user."""

    expired: list[Place] = field(default_factory=list)
    needed: list[Place] = field(default_factory=list)
    """Old too, but newer runs rest on them, or models that a pipeline has judged, or it cannot be told."""
    running: list[Place] = field(default_factory=list)
    """Steps without a result that may run; old results that they may rest on are not expired."""
    damaged: list[str] = field(default_factory=list)
    """What is wrong with newer results that cannot be read. Nothing is expired then."""


def expired(store: Store, asked: Sequence[str], before: datetime, now: datetime) -> Mapping[str, Expired]:
    """
    Tell what may be removed of experiments.

    :param asked: their names, ``USER/...``
    :param before: what was written and used earlier is old
    :return: by user
    """
    found = {name.split("/")[0]: Expired() for name in asked}
    places: dict[str, list[Place]] = {}
    rested = set[str]()
    # Of all: one may rest on another one's, also of another user.
    for name in experiments(store):
        places[name] = list(_places(store, name))
        for place in places[name]:
            if not place.is_step or place.written < before:
                continue
            told = found.get(name.split("/")[0], Expired())
            try:
                ref = store.committed(place.name)
            except DamagedObjectError as error:
                told.damaged.append(str(error))
                continue
            if ref is not None:
                rested |= _lineage(ref)
            elif place.may_run(now):
                told.running.append(place)
    for ref in judged(store, f"{EXPERIMENTS}/"):
        rested |= _lineage(ref)
    for name in asked:
        told = found[name.split("/")[0]]
        for place in places.get(name, []):
            if place.written >= before:
                continue
            is_held = bool(told.damaged) or (bool(told.running) and place.step not in _LEAVES)
            (told.needed if is_held or place.name in rested else told.expired).append(place)
    return found


def experiments(store: Store) -> Iterator[str]:
    """Yield the names of all experiments, ``USER/...``."""
    return (f"{user}/{name}" for user in store.folders(EXPERIMENTS) for name in store.folders(f"{EXPERIMENTS}/{user}"))


def under_way(store: Store, name: str, now: datetime) -> Iterator[Place]:
    """
    Yield the places of steps of an experiment that may run.

    :param name: of the experiment, ``USER/...``
    """
    return (place for place in _places(store, name) if place.may_run(now))


def judged(store: Store, below: str) -> Iterator[ReportRef]:
    """
    Yield the evaluations of pipelines' own runs that rest on anything below a place (``mlops register``).

    :raises DamagedObjectError: after all others, where one of them cannot be read
    """
    places = (
        f"pipelines/{pipeline}/evaluate/{key}"
        for pipeline in store.folders("pipelines")
        for key in store.folders(f"pipelines/{pipeline}/evaluate")
    )
    for ref in _committed(store, places):
        if isinstance(ref, ReportRef) and rests_on(ref, below):
            yield ref


def of_others(store: Store, name: str) -> Iterator[Ref]:
    """
    Yield the results of other experiments that rest on what an experiment has made (``mlops run --dataset``).

    :param name: of the experiment, ``USER/...``
    :raises DamagedObjectError: after all others, where one of them cannot be read: nobody knows what it rests on
    """
    places = (
        place.name
        for other in experiments(store)
        if other != name
        for place in _places(store, other)
        if place.has_result
    )
    return (ref for ref in _committed(store, places) if rests_on(ref, f"{EXPERIMENTS}/{name}/"))


def _committed(store: Store, places: Iterable[str]) -> Iterator[Ref]:
    """
    Yield the refs of those places that have one, many read at once: of each night of each pipeline there may be one.

    :raises DamagedObjectError: after all others, where one of them cannot be read
    """

    def read(place: str) -> Ref | DamagedObjectError | None:
        try:
            return store.committed(place)
        except DamagedObjectError as error:
            return error

    damaged: DamagedObjectError | None = None
    with ThreadPoolExecutor(_READERS) as pool:
        for found in pool.map(read, places):
            if isinstance(found, DamagedObjectError):
                damaged = found
            elif found is not None:
                yield found
    if damaged is not None:
        raise damaged


def rests_on(ref: Ref, below: str) -> str | None:
    """Return the newest place below a folder in a ref's lineage; None if there is none."""
    return next((each.place for each in ref.lineage() if each.place.startswith(below)), None)


def _places(store: Store, name: str) -> Iterator[Place]:
    folder = f"{EXPERIMENTS}/{name}/"
    by_place: dict[tuple[str, str], list[Stored]] = {}
    for entry in store.stored(f"{EXPERIMENTS}/{name}"):
        step, _, rest = entry.key.removeprefix(folder).partition("/")
        by_place.setdefault((step, rest.partition("/")[0]), []).append(entry)
    for (step, key), objects in by_place.items():
        yield Place(name=f"{folder}{step}/{key}".rstrip("/"), step=step, objects=objects)


def _lineage(ref: Ref) -> set[str]:
    return {each.place for each in ref.lineage()}
