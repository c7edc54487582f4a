"""Read every object of a snapshot and compare it with its digest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from mlops.contract.refs import Artifact
from mlops.data.snapshots.catalog import CommittedSnapshot
from mlops.store import Store
from mlops.store_errors import DamagedObjectError

_READERS: Final = 4
"""Number of blobs held in memory at once, at most 128 MB each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DamagedObject:
    """An object that is missing, or whose bytes are not those that were written."""

    key: str
    problem: str
    """The fault of the object, and how to fix it."""
    snapshots: Sequence[str]
    """Names of the snapshots that need the object."""


def find_damage(
    store: Store, snapshots: Sequence[CommittedSnapshot], progress: Callable[[int, int], None]
) -> list[DamagedObject]:
    """
    Check blobs, index files and manifests; one that several snapshots share is read once.

    :param progress: called with the number of bytes read so far, and of all to read
    """
    artifacts: dict[str, Artifact] = {}
    owners: dict[str, list[str]] = {}
    for snapshot in snapshots:
        for key, artifact in snapshot.artifacts().items():
            artifacts[key] = artifact
            owners.setdefault(key, []).append(snapshot.name)
    problems = find_problems(store, list(artifacts.values()), progress)
    return [DamagedObject(key=key, problem=problem, snapshots=owners[key]) for key, problem in problems.items()]


def find_problems(store: Store, artifacts: Sequence[Artifact], progress: Callable[[int, int], None]) -> dict[str, str]:
    """
    Read objects and check their digests.

    :param progress: see :func:`find_damage`
    :return: the problem of each missing or damaged object, by its key
    """
    total = sum(artifact.num_bytes for artifact in artifacts)

    def problem_of(artifact: Artifact) -> str | None:
        try:
            store.read(artifact)
        except DamagedObjectError as error:
            return str(error)
        return None

    found, done = {}, 0
    with ThreadPoolExecutor(_READERS) as pool:
        for artifact, problem in zip(artifacts, pool.map(problem_of, artifacts), strict=True):
            done += artifact.num_bytes
            progress(done, total)
            if problem is not None:
                found[artifact.key] = problem
    return found
