"""The references that a snapshot is compared with: the champion's snapshot, and the one validated before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.contract.grain import Grain
from mlops.contract.refs import Ref, ValidationRef
from mlops.contract.step import RunIdentity
from mlops.data.snapshots.snapshot import Snapshot
from mlops.store import REF_FILE, Store
from mlops.store_errors import DamagedObjectError
from mlops.validation.statistics import GENERATOR, generator
from mlops.validation.window_periods import WindowPeriods

CHAMPION: Final = "champion"
PREVIOUS: Final = "previous snapshot"
WINDOW: Final = "window"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A snapshot that passed before, or why there is none."""

    name: str
    """Name of the reference, :data:`CHAMPION` or :data:`PREVIOUS`."""
    description: str
    """Description of the snapshot; if ``statistics`` is None, the reason why there is none to compare with."""
    statistics: statistics_pb2.DatasetFeatureStatistics | None = None
    """Statistics of the whole window; None if there is nothing to compare with."""
    num_rows: Mapping[str, int] | None = None
    """Number of rows by period; None if there is nothing to compare with."""
    expected: Sequence[str] = ()
    """Periods in which there had to be rows, oldest first."""

    @property
    def words(self) -> str:
        """The reference in a sentence."""
        return "the champion's snapshot" if self.name == CHAMPION else "the previous snapshot"


def find_references(store: Store, run: RunIdentity, baselines: Mapping[str, Ref], grain: Grain) -> list[Reference]:
    """
    Return the champion's snapshot and the previous one, in this order.

    :param grain: of the snapshot that is compared with them
    :param baselines: what the operator found: the champion's ValidationRef, where a model is in production
    :raises DamagedObjectError: where one of their files is not what was written
    """
    champion = baselines.get(CHAMPION)
    previous = last_validation(store, run.pipeline, before=datetime.fromisoformat(run.interval_end))
    return [
        _open(store, CHAMPION, champion, run, grain)
        if isinstance(champion, ValidationRef)
        else Reference(
            name=CHAMPION,
            description="No model is in production yet, or the validate task was not told which (registered_model)",
        ),
        _open(store, PREVIOUS, previous, run, grain)
        if previous is not None
        else Reference(
            name=PREVIOUS,
            description="No snapshot of an earlier interval has passed validation",
        ),
    ]


def last_validation(store: Store, pipeline: str, before: datetime | None = None) -> ValidationRef | None:
    """
    Return the last validation that data passed.

    :param before: of the intervals that ended before it; None: of all
    """
    found = []
    for entry in store.stored(f"pipelines/{pipeline}/validate"):
        # .../validate/20130208T050000Z-<digest>/ref.json: its presence is the commit.
        *_, run_key, name = entry.key.split("/")
        if name != REF_FILE:
            continue
        end = datetime.fromisoformat(run_key.rpartition("-")[0])
        if before is None or end < before:
            found.append((end, entry.modified, entry.key))
    if not found:
        return None
    # Of several of one interval (other settings, other code) the one committed last.
    ref = store.committed(max(found)[2].removesuffix(f"/{REF_FILE}"))
    if not isinstance(ref, ValidationRef):
        raise DamagedObjectError(f"{max(found)[2]} in {store.uri} is no validation's ref: restore it from a backup")
    return ref


def _open(store: Store, name: str, ref: ValidationRef, run: RunIdentity, grain: Grain) -> Reference:
    dataset = ref.parent
    manifest = Snapshot.open(store, dataset).manifest
    window = WindowPeriods.of(manifest)
    which = f"{window.all[0]} to {window.all[-1]}, version {dataset.version[:12]}"
    stored = statistics_pb2.DatasetFeatureStatisticsList.FromString(store.read(ref.artifacts["statistics"]))
    statistics = next((dataset for dataset in stored.datasets if dataset.name == WINDOW), None)
    if statistics is None or (made_by := generator(statistics)) != GENERATOR:
        made_by = "an unknown generator" if statistics is None else made_by
        return Reference(
            name=name,
            description=f"{which}, was described by {made_by}, and this is {GENERATOR}: statistics of two generators "
            "are not comparable. The next snapshot that passes can be compared with",
        )
    # Days of two time zones are other hours: their rows cannot be compared.
    same_periods = (manifest.timezone, manifest.grain) == (run.timezone, grain)
    if not same_periods:
        which += f" ({manifest.grain}s of {manifest.timezone}: their rows were not compared)"
    return Reference(
        name=name,
        description=which,
        statistics=statistics,
        num_rows={partition.period: partition.num_rows for partition in manifest.partitions} if same_periods else None,
        expected=window.expected if same_periods else (),
    )
